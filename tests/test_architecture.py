"""Data flows one way through the house; so do imports. And the core works without trackers and trainers."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tracker_diag"

STANDS_ON = {
    "errors": set(),
    "hooks": {"errors"},
    "scrub": set(),
    "stats": set(),
    "records": {"stats"},
    "detect": {"errors", "stats"},
    "metrics": {"errors", "stats"},
    "tensors": {"errors", "health", "scrub", "records", "stats", "metrics"},
    "samples": {
        "errors",
        "health",
        "scrub",
        "records",
        "stats",
        "metrics",
        "tensors",
        "rules",
        "report",
        "trackers",
        "detect",
    },
    "rules": {"errors", "stats", "records", "detect", "metrics"},
    "guards": {"errors", "health", "metrics", "records", "report", "rules", "tensors"},
    "report": {"errors", "stats", "records", "metrics", "rules"},
    "trackers": {"errors", "health", "scrub", "hooks", "stats", "records", "metrics", "rules", "report"},
}
"""Rooms whose independence matters, and all that they may use: numbers know no names, rules no tensors, a tracker
neither tensors nor the monitor. The other rooms only must not go in circles."""

OPTIONAL = {
    "wandb", "mlflow", "torch", "pyarrow", "matplotlib", "jinja2", "safetensors", "trackio", "tensorboard", "pandas",
    "apprise", "wandb_workspaces", "wandb_reports", "transformers", "trl", "lightning", "ray", "mcp",
}  # fmt: skip
# Rooms that are an optional library's own, imported only where they are used.
AT_HOME = {"demo": OPTIONAL, "report/figures.py": {"matplotlib"}}


@cache
def imports(file: Path) -> list[tuple[str, bool]]:
    """Modules that `file` imports, and whether it does so at module level."""
    tree = ast.parse(file.read_text())
    top = {id(node) for node in tree.body}
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tracker_diag":
            modules += [(f"tracker_diag.{name.name}", id(node) in top) for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append((node.module, id(node) in top))
        elif isinstance(node, ast.Import):
            modules += [(name.name, id(node) in top) for name in node.names]
    return modules


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "tracker_diag" and len(parts) > 1 else None


FILES = sorted(file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py" or file.parent != PACKAGE)


@cache
def uses() -> dict[str, set[str]]:
    """Which rooms each room imports, within functions too."""
    rooms: dict[str, set[str]] = {}
    for file in FILES:
        here = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        there = {room(module) for module, _ in imports(file)}
        rooms.setdefault(here, set()).update(name for name in there if name not in (None, here))
    return rooms


def test_no_import_runs_back():
    order = list(TopologicalSorter(uses()).static_order())  # a CycleError names the rooms of a circle
    assert order.index("stats") < order.index("monitor") < order.index("attach") < order.index("cli")


def test_a_room_uses_no_more_than_it_says():
    more = {name: uses()[name] - allowed for name, allowed in STANDS_ON.items()}
    assert {name: rooms for name, rooms in more.items() if rooms} == {}


def test_the_root_holds_seven_files():
    root = {file.name for file in PACKAGE.glob("*.py")}
    assert root == {
        "__init__.py", "records.py", "health.py", "errors.py", "hooks.py", "scrub.py", "testing.py"
    }  # fmt: skip


def test_optional_libraries_are_imported_where_they_are_used():
    for file in FILES:
        path = file.relative_to(PACKAGE)
        allowed = AT_HOME.get(path.parts[0], set()) | AT_HOME.get(path.as_posix(), set())
        at_top = {module.split(".")[0] for module, top in imports(file) if top}
        assert not at_top & (OPTIONAL - allowed), f"{path} imports them at module level"


def test_the_core_imports_no_integration():
    for file in FILES:
        assert not any(module.startswith("tracker_diag_") for module, _ in imports(file))


def test_stats_need_numpy_alone_and_torch_where_it_is_loaded_already():
    for file in FILES:
        if file.parent.name == "stats":
            libraries = {module.split(".")[0] for module, _ in imports(file)}
            assert libraries - set(sys.stdlib_module_names) <= {"numpy", "tracker_diag"}


@pytest.mark.slow
def test_importing_the_package_loads_no_optional_library():
    code = f"import sys, tracker_diag, tracker_diag.cli.app; print(*sorted(set(sys.modules) & {OPTIONAL!r}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []


def test_a_tracker_is_named_in_its_own_folder_alone():
    """The protocol is enough for all others; Trackio represents any tracker."""
    own = PACKAGE / "trackers" / "trackio"
    others = (file for file in PACKAGE.rglob("*") if file.suffix in {".py", ".yaml", ".j2"} and own not in file.parents)
    assert [str(file) for file in others if "trackio" in file.read_text().lower()] == []
