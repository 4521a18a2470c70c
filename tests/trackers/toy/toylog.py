"""A toy tracker: a run is a folder with a line of JSON for each row."""

import json
from pathlib import Path

current = None
"""The run that is underway."""


class Run:
    def __init__(self, folder):
        self.folder, self.id = Path(folder), Path(folder).name
        self.folder.mkdir(parents=True, exist_ok=True)

    def track(self, values, step):
        self.put("rows", {"step": step, **values})

    def put(self, name, line):
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def stop(self):
        global current  # noqa: PLW0603  # as trackers have one
        current = None


def start(folder):
    global current  # noqa: PLW0603
    current = Run(folder)
    return current
