"""A proxy before MLflow's server, in a process of its own, that does to requests of ours what it is told.

    python proxy.py HOST:PORT

prints the port that it listens on. `PUT /chaos` sets what happens to a run's requests of ours:
{"run": id, "answers": [...], "stays": bool}. Those of the user's own are handed on as they are.
"""

import http.client
import json
import sys
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGES = {"ingress": 404, "garbage": 200}
CODES = {"400": "BAD_REQUEST", "404": "ENDPOINT_NOT_FOUND", "401": "UNAUTHENTICATED"}


class Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.lock, self.runs = target, threading.Lock(), {}

    def next_answer(self, request):
        with self.lock:
            for run, (answers, stays) in self.runs.items():
                if run.encode() in request and answers:
                    return answers[0] if stays and len(answers) == 1 else answers.pop(0)
        return ""

    def handle_error(self, request, client_address):
        """Whoever hung up has had enough."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/chaos":
            told = json.loads(body)
            with self.server.lock:
                self.server.runs[told["run"]] = (told["answers"], told["stays"])
            self.answer(200, b"{}")
            return
        request = self.path.encode() + body
        what = self.server.next_answer(request) if b'"diag' in request or b"/diag" in request else ""
        if what in ("", "lost", "late"):
            done = self.forward(body)
            time.sleep(1.0 if what == "late" else 0.0)
        if what in ("cut", "lost"):
            self.connection.close()
        elif what in ("", "late"):
            self.answer(*done)
        elif what in PAGES:
            self.answer(PAGES[what], b"<html><body>no such page</body></html>")
        else:
            code = CODES.get(what, "INTERNAL_ERROR")
            self.answer(int(what), json.dumps({"error_code": code, "message": "no"}).encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def forward(self, body):
        with closing(http.client.HTTPConnection(self.server.target, timeout=120)) as there:
            headers = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "accept")}
            there.request(self.command, self.path, body, headers)
            answer = there.getresponse()
            return answer.status, answer.read()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815  # names that http.server asks for

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    proxy = Proxy(sys.argv[1])
    print(proxy.server_port, flush=True)
    proxy.serve_forever()
