"""An identity provider for the console's sign-in, as strict as a real one with a public client."""

import base64
import contextlib
import hashlib
import json
import secrets
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

CLIENT = "penstock-console"


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Provider:
    """The provider at `issuer`. What it says next can be set."""

    def __init__(self, folder):
        self.key = folder / "provider.key"
        subprocess.run(["openssl", "genrsa", "-out", self.key, "2048"], check=True, capture_output=True)
        said = subprocess.run(["openssl", "rsa", "-in", self.key, "-noout", "-modulus"], check=True, capture_output=True)
        self.modulus = bytes.fromhex(said.stdout.decode().strip().removeprefix("Modulus="))
        self.groups, self.audience, self.lifetime = ["viewers"], CLIENT, 300
        #: Whether pages of other origins may read the token's address; an error in place of a code.
        self.cors, self.error = True, None
        #: The authorization requests that were answered with a code, by the code.
        self.codes = {}
        self.asked = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.issuer = f"http://127.0.0.1:{self.server.server_port}/realm"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def sign(self, claims):
        parts = [{"alg": "RS256", "kid": "k1"}, claims]
        text = ".".join(base64url(json.dumps(part).encode()) for part in parts)
        signed = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", self.key], input=text.encode(), check=True, capture_output=True
        )
        return f"{text}.{base64url(signed.stdout)}"

    def token(self, nonce=None):
        now = int(time.time())
        who = {"iss": self.issuer, "aud": self.audience, "sub": "7", "email": "ann@example.com", "nonce": nonce}
        return self.sign({**who, "groups": self.groups, "iat": now, "exp": now + self.lifetime})

    def document(self):
        at = {f"{name}_endpoint": f"{self.issuer}/{name}" for name in ("authorization", "token")}
        return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **at}

    def keys(self):
        key = {"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256", "e": "AQAB", "n": base64url(self.modulus)}
        return {"keys": [key]}

    def authorize(self, query):
        """Where the browser is sent: nobody is asked, as while a session at the provider lasts."""
        assert query["response_type"] == "code" and query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256" and "openid" in query["scope"].split()
        self.asked.append(query)
        answer = {"state": query["state"], "iss": self.issuer}
        if self.error:
            answer |= {"error": self.error, "error_description": "you may not"}
        else:
            answer["code"] = secrets.token_urlsafe(16)
            self.codes[answer["code"]] = query
        return f"{query['redirect_uri']}?{urlencode(answer)}"

    def exchange(self, form, head):
        """The token for a code, once, to who began the sign-in."""
        begun = self.codes.pop(form.get("code"), None)
        proof = base64url(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if not begun or proof != begun["code_challenge"] or form["redirect_uri"] != begun["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        if "client_secret" in form or "authorization" in head or "cookie" in head or form["client_id"] != CLIENT:
            return 401, {"error": "invalid_client"}
        return 200, {"token_type": "Bearer", "access_token": "opaque", "id_token": self.token(begun["nonce"])}

    def handler(provider):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                where = urlsplit(self.path)
                if where.path == "/realm/authorization":
                    query = {name: values[0] for name, values in parse_qs(where.query).items()}
                    self.send_response(302)
                    self.send_header("location", provider.authorize(query))
                    self.send_header("content-length", "0")
                    return self.end_headers()
                known = {"/realm/.well-known/openid-configuration": provider.document, "/realm/keys": provider.keys}
                self.answer(*((200, known[where.path]()) if where.path in known else (404, {})))

            def do_POST(self):
                text = self.rfile.read(int(self.headers["content-length"])).decode()
                form = {name: values[0] for name, values in parse_qs(text).items()}
                head = {name.lower() for name in self.headers}
                self.answer(*provider.exchange(form, head))

            def answer(self, status, body):
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                if provider.cors and self.headers["origin"]:
                    self.send_header("access-control-allow-origin", self.headers["origin"])
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        return Handler


@contextlib.contextmanager
def provider(folder):
    one = Provider(folder)
    yield one
    one.server.shutdown()
    one.server.server_close()
