#!/usr/bin/env python3
"""How fast the scaler answers KEDA while the data path is full.

    LOADTEST_BIN=... PENSTOCK_BIN=... loadtest/bench/scaler.py [SECONDS]

A gateway before an engine that answers at once; clients that each send as soon as
they have an answer take all of the machine's cores. KEDA's three calls are timed
without that load and with it.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
LOADTEST = os.environ.get("LOADTEST_BIN", str(ROOT / "target" / "release" / "loadtest"))
PENSTOCK = os.environ.get("PENSTOCK_BIN", str(ROOT / "target" / "release" / "penstock"))
GATEWAY, ADMIN, SCALER, ENGINE = 19331, 19332, 19333, 19334
CLIENTS = 512

CONFIG = f"""version: 1
auth: {{mode: off}}
server: {{listen: "127.0.0.1:{GATEWAY}", admin: "127.0.0.1:{ADMIN}"}}
scale: {{listen: "127.0.0.1:{SCALER}"}}
pools:
  p: {{engine: vllm, models: [m], max_seqs: 64, replicas: ["http://127.0.0.1:{ENGINE}"]}}
"""


def poll(seconds):
    address = f"http://127.0.0.1:{SCALER}"
    subprocess.run([LOADTEST, "scaler", "--address", address, "--pool", "p", "--duration", str(seconds)], check=True)


def main(seconds="30"):
    seconds = float(seconds)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "penstock.yaml"
        file.write_text(CONFIG)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = [
            subprocess.Popen([LOADTEST, "engine", "--port", str(ENGINE)], **quiet),
            subprocess.Popen([PENSTOCK, "serve", "--config", str(file)], **quiet),
        ]
        try:
            time.sleep(3)
            print("no load", flush=True)
            poll(min(seconds, 10))
            load = [LOADTEST, "run", "--url", f"http://127.0.0.1:{GATEWAY}", "--model", "m"]
            load += ["--concurrency", str(CLIENTS), "--stream", "--duration", str(seconds + 5)]
            running.append(subprocess.Popen(load, stderr=subprocess.DEVNULL))
            time.sleep(4)
            print(f"{CLIENTS} clients", flush=True)
            poll(seconds)
            running.pop().wait()
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
