"""A W&B server in little, on loopback: what the real client sends is kept, and faults can be set on it."""

import gzip
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENTITY = "someone"
KEY = "0" * 40

THEN = "2026-01-01T00:00:00Z"
PROJECT = {"isBenchmark": False, "user": None, "__typename": "Project"}

PAGE = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}

HARMLESS = {"OrganizationCoreWeaveOrganizationID"}
"""Operations that the client may leave unanswered."""


class Stub:
    """`with Stub() as stub:` it listens at `stub.url`.

    Faults, by name of the operation, that of the file stream being `file_stream`: `delays` in seconds, or until they
    are taken away, `status` of the reply, `malformed` for replies that fit no schema.
    """

    def __init__(self):
        self.operations, self.unknown = [], set()
        self.files, self.views = {}, {}
        self.delays, self.status, self.malformed = {}, {}, set()
        self._lines, self._summaries = {}, {}
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stub = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def sent(self, name):
        """Variables of all calls of the operation `name`."""
        return [variables for operation, variables, _ in self.operations if operation == name]

    def history(self, run):
        """Rows of a run, as a server would have them."""
        return [json.loads(line) for _, line in sorted(self._lines.get(run, {}).items())]

    def runs(self):
        """Those that have rows."""
        return list(self._lines)

    def summary(self, run):
        """The last summary of a run."""
        return self._summaries.get(run, {})

    def wait_for(self, name, count=1, seconds=60):
        """Until `count` calls of the operation `name` have come."""
        until = time.monotonic() + seconds
        while len(self.sent(name)) < count:
            assert time.monotonic() < until, f"{name}: {len(self.sent(name))} calls, expected {count}"
            time.sleep(0.05)

    def answer(self, path, body):
        name, variables = "file_stream", body
        if not path.endswith("/file_stream"):
            name = re.search(r"\b(?:query|mutation)\s+(\w+)", body["query"])[1]
            variables = body.get("variables") or {}
        with self._lock:
            self.operations.append((name, variables, time.monotonic()))
        until = time.monotonic() + self.delays.get(name, 0)
        while time.monotonic() < until and name in self.delays and not self._stopped.wait(0.01):
            pass
        if name in self.status:
            return self.status[name], {"errors": [{"message": "out of order"}]}
        if name in self.malformed:
            return 200, {"data": {"project": {"artifactType": 3}, "viewer": "nobody", "upsertBucket": []}}
        with self._lock:
            if name == "file_stream":
                history = body.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
                if history["content"]:
                    lines = self._lines.setdefault(path.split("/")[-2], {})
                    lines.update(enumerate(history["content"], history["offset"]))
                for line in body.get("files", {}).get("wandb-summary.json", {}).get("content", ()):
                    self._summaries[path.split("/")[-2]] = json.loads(line)
                return 200, {}
            data = self.reply(name, variables)
            if data is None:
                self.unknown.add(name)
            return 200, {"data": data or {}}

    def reply(self, name, given):
        """What the client takes for an answer; None to an operation that is not known here."""
        entity = {"id": "e1", "name": ENTITY}
        project = {"id": "UHJvamVjdDox", "name": given.get("project") or given.get("name"), "entity": entity}
        stopped = {"run": {"stopped": False}}
        latest = {"id": "s1", "latestArtifact": {"id": "a1", "versionIndex": 0}}
        artifact = {"id": "a1", "state": "COMMITTED", "artifactSequence": latest}
        who = {"id": "u1", "entity": ENTITY, "username": ENTITY, "email": "", "name": ENTITY, "admin": False}
        known = {
            "Viewer": {"viewer": who | {"flags": "{}", "teams": {"edges": []}}},
            "ServerFeaturesQuery": {"serverInfo": {"features": []}},
            "RunResumeStatus": {"model": project | {"bucket": None}},
            "RunStoppedStatus": {"project": stopped},
            "ArtifactType": {"project": None},
            "CreateArtifact": {"createArtifact": {"artifact": artifact}},
            "NotifyScriptableRunAlert": {"notifyScriptableRunAlert": {"success": True}},
            "ProjectInternalId": {"project": {"id": "p1", "internalId": "UHJvamVjdDox"}},
            "GetProjects": {
                "models": {
                    "edges": [{"node": project | {"name": "rl", "entityName": ENTITY, "createdAt": THEN, **PROJECT}}],
                    "pageInfo": PAGE,
                }
            },
            "GetProject": {"project": project | {"entityName": ENTITY, "createdAt": THEN, **PROJECT}},
        }
        made = {
            "UpsertBucket": self._bucket,
            "CreateRunFiles": self._places,
            "View": self._view,
            "UpsertView2": self._save_view,
            "upsertView": self._save_view,
        }
        return made[name](given) if name in made else known.get(name)

    def _bucket(self, given):
        bucket = {"id": given["name"], "name": given["name"], "displayName": given["displayName"]}
        bucket |= {"description": "", "config": "{}", "sweepName": None, "historyLineCount": 0}
        project = {"id": "p1", "name": given["project"], "entity": {"id": "e1", "name": ENTITY}}
        return {"upsertBucket": {"bucket": bucket | {"project": project}, "inserted": True}}

    def _places(self, given):
        places = [{"name": name, "uploadUrl": f"{self.url}/upload/{given['run']}/{name}"} for name in given["files"]]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": places}}

    def _view(self, given):
        result = [{"node": view} for name, view in self.views.items() if name == given["viewName"]]
        return {"project": {"allViews": {"edges": result}}}

    def _save_view(self, given):
        view = {"id": given.get("id") or f"v{len(self.views)}"}
        self.views[given["name"]] = view | {key: given[key] for key in ("name", "displayName", "spec")}
        return {"upsertView": {"view": self.views[given["name"]], "inserted": not given.get("id")}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that does not wait for a slow reply is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self._send({})

    def do_POST(self):
        status, reply = self.server.stub.answer(self.path, json.loads(self._body()))
        self._send(reply, status)

    def do_PUT(self):
        self.server.stub.files[self.path.removeprefix("/upload/")] = self._body()
        self._send({})

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _send(self, reply, status=200):
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
