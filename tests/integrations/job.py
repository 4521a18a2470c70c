"""A Ray job on this machine, whose actors run a framework's own workers and send what their losses come to."""

import json
import logging
import os
import socket
import time
from contextlib import contextmanager

import pytest
import ray

from tracker_diag.attach.workers import Workers


@contextmanager
def job(kind, world, *given, hook=None):
    """Actors made from their rank, a free port and `given`, and a function that waits for what they have sent.

    Args:
        hook: what Ray calls in each process that it starts, as our pages say.
    """
    come, due, receive = [], 0, Workers.receive

    def received(workers, message):
        receive(workers, message)
        come.append(message)

    def wait(actors, each=1):
        """Until `each` message of each of `actors` is here since the last time."""
        nonlocal due
        ray.get([actor.wait.remote() for actor in actors])
        due, end = due + each * len(actors), time.monotonic() + 120
        while len(come) < due:
            assert time.monotonic() < end, f"{len(come)} of {due} messages have come"
            time.sleep(0.005)

    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as server:
        patch.setattr(Workers, "receive", received)
        if hook:
            patch.setenv(
                "RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {"worker_process_setup_hook": hook}})
            )
        ray.init("local", num_cpus=world + 2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        port = server.getsockname()[1]
        server.close()
        yield [ray.remote(num_cpus=1)(kind).remote(rank, port, *given) for rank in range(world)], wait
        ray.shutdown()


class Waits:
    """What any such actor can do besides; `recorder` is in its integration."""

    recorder = ""

    def wait(self):
        """Until what was sent has gone out."""
        module, _, name = self.recorder.partition(":")
        getattr(__import__(module, fromlist=[name]), name).close(60)

    def die(self):
        os._exit(1)
