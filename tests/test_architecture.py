"""Data flows one way through the house; so do imports. And the core stands without trackers and trainers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tracker_diag"

# From left to right. A room may import from those before it, and from itself.
ROOMS = [
    "arrays", "errors", "state", "stats", "batch", "slices", "chat", "detect", "windows", "step", "metrics", "records",
    "rules", "report", "health", "backends", "notify", "reduce", "readout", "monitor", "hooks", "proxies", "wrap",
    "testing", "sources", "replay", "diagnose", "run_page", "demo", "rules_cli", "panels_cli", "integrations_cli",
    "cli",
]  # fmt: skip
OPTIONAL = {
    "wandb", "mlflow", "torch", "pyarrow", "matplotlib", "jinja2", "safetensors", "trackio", "tensorboard", "pandas",
    "apprise", "wandb_workspaces", "wandb_reports", "transformers", "trl", "lightning", "ray",
}  # fmt: skip
# Rooms that are an optional library's own; whoever imports them does so where they are used.
AT_HOME = {"demo": OPTIONAL, "report/figures.py": {"matplotlib"}}


def imports(file: Path) -> list[tuple[str, bool]]:
    """Modules that `file` imports, and whether it does so at module level."""
    tree = ast.parse(file.read_text())
    top = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, id(node) in top))
        elif isinstance(node, ast.Import):
            found += [(name.name, id(node) in top) for name in node.names]
    return found


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "tracker_diag" and len(parts) > 1 else None


FILES = sorted(file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py" or file.parent != PACKAGE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_run_one_way(file):
    here = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module, _ in imports(file):
        there = room(module)
        if there is not None:
            assert ROOMS.index(there) <= ROOMS.index(here), f"{here} imports {module}, which lies behind it"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_optional_libraries_are_imported_where_they_are_used(file):
    path = file.relative_to(PACKAGE)
    allowed = AT_HOME.get(path.parts[0], set()) | AT_HOME.get(path.as_posix(), set())
    for module, at_top in imports(file):
        library = module.split(".")[0]
        assert not (at_top and library in OPTIONAL - allowed), f"{path} imports {library} at module level"


def test_the_core_imports_no_integration_and_stats_no_pydantic():
    for file in FILES:
        libraries = {module.split(".")[0] for module, _ in imports(file)}
        assert not any(name.startswith("tracker_diag_") for name in libraries)
        if file.parent.name == "stats":
            assert libraries <= {
                "numpy",
                "tracker_diag",
                "collections",
                "dataclasses",
                "functools",
                "itertools",
                "math",
                "sys",
                "typing",
            }


def test_importing_the_package_loads_no_optional_library():
    code = f"import sys, tracker_diag, tracker_diag.cli; print(*sorted(set(sys.modules) & {OPTIONAL!r}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
