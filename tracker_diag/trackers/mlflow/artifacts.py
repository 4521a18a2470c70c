"""MLflow: files, tables and pictures of a run, one request each, so that each can be tried again on its own."""

import json
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from tracker_diag.records import Table
from tracker_diag.report.tables import CHECKPOINTS
from tracker_diag.report.tokens import WORST

TABLES_TAG = "mlflow.loggedArtifacts"
"""Tag in which MLflow lists the tables of a run."""

Task: TypeAlias = Callable[[], "Sequence[Task] | None"]
"""Writes one thing, or writes nothing and gives the tasks to be done in its place."""


class Artifacts:
    """Those of the run `run_id`."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def table(self, table: Table) -> list[Task]:
        """The tasks that write `table` and list it among the run's tables."""
        path = f"{table.name}.json"
        if table.name in (WORST, CHECKPOINTS):  # each is the whole; MLflow's own call would add to what stands there
            whole = json.dumps({"columns": table.columns, "data": table.rows}).encode()
            return [partial(self.put, path, whole), partial(self._list_table, path)]
        columns = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
        file, *_ = self.parts(lambda client: client.log_table(self._run_id, columns, path))
        return [file, partial(self._list_table, path)]

    def _list_table(self, path: str) -> None:
        """As MLflow's `log_table` ends; read again each time, since the list is not ours alone."""
        listed = json.loads(self._client.get_run(self._run_id).data.tags.get(TABLES_TAG, "[]"))
        ours = {"path": path, "type": "table"}
        if ours not in listed:
            self._client.set_tag(self._run_id, TABLES_TAG, json.dumps([*listed, ours]), synchronous=True)

    def parts(self, write: Callable[[Any], object]) -> list[Task]:
        """What `write` makes its client write, one request each; done here, it reads and writes nothing.

        MLflow's own calls write several things each, and under a new name or beneath the last ones when repeated.
        """
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        parts: list[Task] = []

        def log_artifact(_: str, local_path: str, artifact_path: str | None = None) -> None:
            file = Path(local_path)
            parts.append(partial(self.put, str(Path(artifact_path or "", file.name)), file.read_bytes()))

        def set_tag(run_id: str, key: str, value: object, *_: object, **__: object) -> None:
            parts.append(partial(self._client.set_tag, run_id, key, value, synchronous=True))

        def download_artifacts(run_id: str, path: str, dst_path: str) -> str:
            place = str(Path(dst_path) / Path(path).name)
            uri = client.get_run(run_id).info.artifact_uri
            store: Any = get_artifact_repository(uri, tracking_uri=client.tracking_uri)
            store._download_file(path, place)  # noqa: SLF001  # all else takes a pool of threads: none in `atexit`
            return place

        client = copy(self._client)
        client.log_artifact, client.set_tag, client.download_artifacts = log_artifact, set_tag, download_artifacts
        write(client)
        return parts

    def put(self, path: str, content: bytes) -> None:
        """Write `content` as the file `path` of the run."""
        folder, _, name = path.rpartition("/")
        with TemporaryDirectory() as place:
            (Path(place) / name).write_bytes(content)
            self._client.log_artifact(self._run_id, str(Path(place) / name), folder or None)
