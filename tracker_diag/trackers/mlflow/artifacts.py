"""MLflow: the files of a run, and what is in them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tracker_diag.records import Cell
from tracker_diag.report.picture import Pixels, png_of

TABLES_TAG = "mlflow.loggedArtifacts"
"""Tag in which MLflow lists the tables of a run."""


def put(client: Any, run_id: str, path: str, content: bytes) -> None:
    """Write `content` as the file `path` of the run."""
    folder, _, name = path.rpartition("/")
    with TemporaryDirectory() as place:
        file = Path(place) / name
        file.write_bytes(content)
        client.log_artifact(run_id, str(file), folder or None)


def list_tables(client: Any, run_id: str, paths: Sequence[str]) -> None:
    """Name the tables `paths` in the run's list of tables, as MLflow's `log_table` does; the list is not ours alone."""
    listed = json.loads(client.get_run(run_id).data.tags.get(TABLES_TAG, "[]"))
    missing = [table for path in paths if (table := {"path": path, "type": "table"}) not in listed]
    if missing:
        client.set_tag(run_id, TABLES_TAG, json.dumps([*listed, *missing]), synchronous=True)


def store_of(client: Any, run_id: str) -> Any:
    """The store of the run's artifacts. To ask for it takes 20 ms."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(client.get_run(run_id).info.artifact_uri, tracking_uri=client.tracking_uri)


class HalfWritten(OSError):
    """A file on the server of which only a part has arrived."""


def rows_in(store: Any, path: str) -> list[Any]:
    """Rows of the table `path` in the `store` of a run; none if it is not there.

    Raises:
        HalfWritten: its upload broke off, and what it had before is lost.
        ValueError: something between us and the server has answered with a page of its own.
    """
    if path not in {artifact.path for artifact in store.list_artifacts(path.rpartition("/")[0])}:
        return []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "table.json"
        store._download_file(path, str(file))  # noqa: SLF001  # all else takes a pool of threads: none in `atexit`
        content = file.read_bytes()
    try:
        rows: list[Any] = json.loads(content)["data"]
    except ValueError:
        if content and not content.startswith(b"{"):
            raise
        raise HalfWritten(f"{path}: its upload broke off, so it begins anew without its earlier rows") from None
    return rows


def table_file(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bytes:
    """A table as `mlflow.load_table` reads it."""
    return json.dumps({"columns": columns, "data": rows}).encode()


def picture_file(draw: Callable[..., Pixels], *given: Any) -> bytes:
    """What `draw` makes of what is `given`, as PNG."""
    return png_of(draw(*given))
