"""MLflow: the files of a run, and what is in them."""

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tracker_diag.records import Cell
from tracker_diag.report.picture import Pixels, png_of

TABLES_TAG = "mlflow.loggedArtifacts"  # tag in which MLflow lists the tables of a run


class HalfWritten(OSError):
    """A file on the server of which only a part has arrived."""


class Artifacts:
    """The files of the run `run_id`."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def put(self, path: str, content: bytes) -> None:
        folder, _, name = path.rpartition("/")
        with TemporaryDirectory() as place:
            file = Path(place) / name
            file.write_bytes(content)
            self._client.log_artifact(self._run_id, str(file), folder or None)

    def list_tables(self, paths: Sequence[str]) -> None:
        """Name the tables `paths` in the run's list of them, as MLflow's `log_table` does; it is not ours alone."""
        listed = json.loads(self._client.get_run(self._run_id).data.tags.get(TABLES_TAG, "[]"))
        missing = [table for path in paths if (table := {"path": path, "type": "table"}) not in listed]
        if missing:
            self._client.set_tag(self._run_id, TABLES_TAG, json.dumps([*listed, *missing]), synchronous=True)

    @cached_property
    def _store(self) -> Any:  # to ask for it takes 20 ms
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        place = self._client.get_run(self._run_id).info.artifact_uri
        return get_artifact_repository(place, tracking_uri=self._client.tracking_uri)

    def rows_in(self, path: str) -> list[Any]:
        """Rows of the table `path`; none if it is not there.

        Raises:
            HalfWritten: its upload broke off, and what it had before is lost.
            ValueError: something between us and the server has answered with a page of its own.
        """
        if path not in {artifact.path for artifact in self._store.list_artifacts(path.rpartition("/")[0])}:
            return []
        with TemporaryDirectory() as folder:
            file = Path(folder) / "table.json"
            self._store._download_file(path, str(file))  # noqa: SLF001  # all else takes a pool of threads: none in `atexit`
            content = file.read_bytes()
        try:
            rows: list[Any] = json.loads(content)["data"]
        except ValueError:
            if content and not content.startswith(b"{"):
                raise
            raise HalfWritten(f"{path}: its upload broke off, so it starts over without its earlier rows") from None
        return rows


def table_file(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bytes:
    """A table as `mlflow.load_table` reads it."""
    return json.dumps({"columns": columns, "data": rows}).encode()


def picture_file(draw: Callable[..., Pixels], *given: Any) -> bytes:
    """What `draw` makes of what is `given`, as PNG."""
    return png_of(draw(*given))
