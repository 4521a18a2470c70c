"""A process that imports once what every run of train.py would import anew, and forks a process for each run.

    python zygote.py ANY INSTALLED

These are descriptors of two connections over which runs are asked for: at ANY listens the process itself, which has
imported no TRL yet, so that its forks can take any release; at INSTALLED a fork with the installed one.
No thread may be started before the last fork.
"""

import gc
import os
import sys
from multiprocessing.connection import Connection

import datasets  # noqa: F401
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
import peft  # noqa: F401
from transformers import Qwen2ForCausalLM, Trainer  # noqa: F401

import tracker_diag.report.figures
import tracker_diag.testing  # noqa: F401


def serve(asked):
    """Fork what is asked for and tell how it ended, until nobody asks any more. Each fork comes back from here too."""
    while True:
        try:
            runs = asked.recv()
        except EOFError:
            return
        children = []
        for run in runs:
            child = os.fork()
            if not child:
                asked.close()
                become(**run)
                return  # to the end of the program, and so to what is registered for it, as in any other process
            children.append(child)
        asked.send([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])


def become(scenario, folder, path, environment, output):
    """Be `python train.py SCENARIO FOLDER`, started in `folder`, with modules from `path` first."""
    said = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(said, stream.fileno())
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = path
    if "wandb" in sys.modules:  # with a folder of the process that imported it, which the first fork to end has removed
        from wandb.sdk.data_types._private import MEDIA_TMP

        os.makedirs(MEDIA_TMP.name, exist_ok=True)  # noqa: PTH103
    from train import main

    main(scenario, folder)


if __name__ == "__main__":
    any_release, installed = (Connection(int(descriptor)) for descriptor in sys.argv[1:])
    gc.freeze()  # what is there stays: the runs need not look through it when they collect
    if os.fork():
        installed.close()
        serve(any_release)
    else:
        any_release.close()
        import train  # noqa: F401

        gc.freeze()
        serve(installed)
