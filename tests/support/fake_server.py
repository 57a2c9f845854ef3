"""A stand-in for a vLLM server: `python fake_server.py HOST PORT BEHAVIOUR`. It needs no packages.

Behaviours, separated by commas: "child" starts a process of its own, in another session, as long-lived as it
can be; "fails" ends at once with an error; "fails-once=FILE" does so unless the file exists, and makes it;
"lacks" ends as vLLM does without a library; "hangs" never answers; "engine-hangs=FILE" answers only /health
and /metrics while the file exists; "deaf" ignores SIGTERM. Otherwise it answers questions about its state, as
vLLM does.
"""

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

METRICS = b"""\
# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.125
"""
ANSWERS = {
    "/health": b"",
    "/metrics": METRICS,
    "/weight_info": b'{"weight_version": "default"}',
    "/is_paused": b'{"is_paused": false}',
    "/v1/models": b'{"data": [{"id": "base", "max_model_len": 4096}]}',
}


HANGING: list[Path] = []


class FakeServer(BaseHTTPRequestHandler):
    def do_GET(self):
        while self.path not in ("/health", "/metrics") and HANGING and HANGING[0].exists():
            time.sleep(0.05)
        key = os.environ.get("ARPO_ENGINE_KEY")
        allowed = not key or self.headers.get("Authorization") == f"Bearer {key}"
        answer = ANSWERS.get(self.path)
        self.send_response(401 if not allowed else 404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(answer or b"")

    def log_message(self, *_):
        pass


def main(host, port, behaviours):
    for behaviour in behaviours.split(","):
        name, _, file = behaviour.partition("=")
        if name == "fails-once" and Path(file).exists():
            continue
        if name.startswith("fails"):
            if file:
                Path(file).touch()
            print("(EngineCore pid=7) ERROR 11-16 09:53:43 [core.py:12] ValueError: out of \x1b[1mmemory")
            sys.exit(3)
        if name == "lacks":
            print(
                "(EngineCore pid=7) ERROR 11-16 09:53:4 [core.py:12] ModuleNotFoundError: No module named 'x'"
            )
            print("    in a frame\n" * 40 + "RuntimeError: Engine core initialization failed.")
            sys.exit(1)
        if name == "engine-hangs":
            HANGING.append(Path(file))
        if name == "child":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        if name == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if name == "hangs":
            time.sleep(600)
    ThreadingHTTPServer((host, int(port)), FakeServer).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
