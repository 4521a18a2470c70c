"""A server on loopback that hands requests on to another one; a subclass says what happens in between."""

import http.client
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Forwarding(ThreadingHTTPServer):
    """Before the server at `target`, "host:port"."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.address, self.lock = target, f"http://127.0.0.1:{self.server_port}", threading.Lock()

    def respond(self, path, body, forward):
        """Status and body of the answer; None hangs up. `forward()` gives those of the other server."""
        raise NotImplementedError

    def handle_error(self, request, client_address):
        """A client that hung up has had enough."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.respond(self.path, body, lambda: self.forward(body))
        if answer is None:
            self.connection.close()
            return
        self.send_response(answer[0])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer[1])))
        self.end_headers()
        self.wfile.write(answer[1])

    def forward(self, body):
        with closing(http.client.HTTPConnection(self.server.target, timeout=120)) as there:
            headers = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "accept")}
            there.request(self.command, self.path, body, headers)
            answer = there.getresponse()
            return answer.status, answer.read()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815  # names that http.server asks for

    def log_message(self, *args):
        pass
