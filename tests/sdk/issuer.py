"""An identity provider: its keys over HTTP, and tokens of it."""

import http.server
import json
import pathlib
import subprocess
import threading

TOKENS = pathlib.Path(__file__).parent / "tokens.mjs"


class Issuer:
    """Answers with its configuration and its keys; `tokens` by what is wrong with each."""

    def __init__(self):
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                pages = {
                    "/.well-known/openid-configuration": {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"},
                    "/keys": {"keys": [issuer.jwk]},
                }
                body = json.dumps(pages.get(self.path, {})).encode()
                self.send_response(200 if self.path in pages else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        made = subprocess.run(["node", str(TOKENS), self.url], capture_output=True, text=True, check=True).stdout
        made = json.loads(made)
        self.jwk, self.tokens = made["jwk"], made["tokens"]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
