"""A proxy before MLflow's server, in a process of its own, that does to requests of ours what it is asked to.

    python proxy.py HOST:PORT

prints the port that it listens on. `PUT /chaos` sets what happens to a run's requests of ours:
{"run": id, "answers": [...], "stays": bool}. Those of the user's own are handed on as they are.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.trackers.forwarding import Forwarding

PAGES = {"ingress": 404, "garbage": 200}
CODES = {"400": "BAD_REQUEST", "404": "ENDPOINT_NOT_FOUND", "401": "UNAUTHENTICATED"}


class Proxy(Forwarding):
    def __init__(self, target):
        super().__init__(target)
        self.runs = {}

    def respond(self, path, body, forward):
        if path == "/chaos":
            asked = json.loads(body)
            with self.lock:
                self.runs[asked["run"]] = (asked["answers"], asked["stays"])
            return 200, b"{}"
        what = self.next_answer(path.encode() + body) if b'"diag' in body or "/diag" in path else ""
        answer = forward() if what in ("", "lost", "late") else None
        if what == "late":
            time.sleep(1.0)
        if what in ("", "late", "cut"):
            return answer
        if what == "lost":
            return None
        if what in PAGES:
            return PAGES[what], b"<html><body>no such page</body></html>"
        return int(what), json.dumps({"error_code": CODES.get(what, "INTERNAL_ERROR"), "message": "no"}).encode()

    def next_answer(self, request):
        with self.lock:
            for run, (answers, stays) in self.runs.items():
                if run.encode() in request and answers:
                    return answers[0] if stays and len(answers) == 1 else answers.pop(0)
        return ""


if __name__ == "__main__":
    proxy = Proxy(sys.argv[1])
    print(proxy.server_port, flush=True)
    proxy.serve_forever()
