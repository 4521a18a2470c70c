"""What the client of W&B Weave sends and exports of two tasks of a made agent; a server replaces Weave's.

    uv run --no-project --with weave==0.54.0 python tests/samples/traces/weave_client.py tests/samples/traces

writes weave_complete.jsonl, the calls as the client posts them today, and weave_export.jsonl, what `get_calls` gives
once the server has them. Traces of the stack are taken out, as they hold paths.

The client is the real one, from `weave.init` on; what a real server adds to a call is not there.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

QUESTION, ANSWER = "What is 2+2?", "It is 4."
PROJECT = {"data": {"project": {"name": "p"}, "viewer": {"username": "u", "defaultEntity": {"name": "e"}}}}


class StandIn(BaseHTTPRequestHandler):
    """Keeps calls, and gives them back as JSON Lines; says yes to all else."""

    protocol_version = "HTTP/1.1"
    calls: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - one for all requests
    posted: list[dict[str, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer: Any = {"digest": "a" * 30, "res": []}
        if self.path.startswith("/graphql"):
            answer = PROJECT
        elif self.path.endswith("/calls/complete"):
            self._keep(json.loads(body)["batch"])
        elif self.path.endswith("/upsert_batch"):
            self._keep([load["req"] for load in json.loads(body)["batch"]])
        elif "query" in self.path:
            answer = list(self.calls.values())
        self._send("".join(json.dumps(load) + "\n" for load in (answer if isinstance(answer, list) else [answer])))

    def do_GET(self) -> None:
        self._send(json.dumps({"min_required_weave_python_version": "0.0.1", "trace_server_version": "99.0.0"}))

    def _keep(self, batch: list[dict[str, Any]]) -> None:
        for item in batch:
            call = item.get("start", item.get("end", item))
            if call.get("exception"):
                call["exception"] = json.dumps(json.loads(call["exception"]) | {"traceback": []})
            self.posted.append(item)
            known = self.calls.setdefault(call["id"], {})
            known |= {key: value for key, value in call.items() if value is not None}

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(out: Path) -> None:
    """Have the agent do two tasks, and write both files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    os.environ |= {"WF_TRACE_SERVER_URL": address, "WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}
    os.environ |= {"WEAVE_CAPTURE_SYSTEM_INFO": "false", "WEAVE_PRINT_CALL_LINK": "false"}
    import weave

    @weave.op(kind="tool")
    def search(q: str) -> dict[str, str]:
        if q == "bad":
            raise TimeoutError("slow")
        return {"result": f"r {q}"}

    @weave.op(kind="llm")
    def chat(messages: list[dict[str, str]]) -> dict[str, Any]:
        output = {"role": "assistant", "content": ANSWER if messages else ""}
        return {"choices": [{"message": output, "finish_reason": "stop"}]}

    @weave.op(kind="agent")
    def agent(prompt: str) -> str:
        search(prompt)
        try:
            search("bad")
        except TimeoutError:
            return chat([{"role": "user", "content": prompt}])["choices"][0]["message"]["content"]
        return ""

    client = weave.init("e/p")
    for step in range(2):
        with weave.attributes({"step": step, "reward": 1.0}):
            agent(QUESTION)
    client.flush()
    _write(out / "weave_complete.jsonl", StandIn.posted)
    _write(out / "weave_export.jsonl", [call.to_dict() for call in client.get_calls()])
    server.shutdown()


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
