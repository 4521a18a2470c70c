"""For trackers that show pages: a server on loopback."""

import os
import signal
import subprocess

import pytest


@pytest.fixture
def serve(tmp_path, free_port, answers):
    """Starts a server on loopback, given its port in place of `PORT`; it is stopped at the end."""
    started = []

    def start(*command):
        log = tmp_path / "server.log"
        address = f"http://127.0.0.1:{free_port}"
        with log.open("w") as out:
            words = [word.replace("PORT", str(free_port)) for word in command]
            started.append(subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True))
        answers(started[-1], address, log)
        return address

    yield start
    for server in started:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
