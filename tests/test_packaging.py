"""What is built is what is installed: the wheel holds all that the package needs, and nothing generic."""

import subprocess
import zipfile
from email.parser import Parser
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(built_wheel):
    return zipfile.ZipFile(built_wheel)


def test_the_wheel_holds_the_whole_package(wheel):
    tracked = subprocess.run(["git", "ls-files", "tracker_diag"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(tracked.stdout.split()) <= set(wheel.namelist())
    for name in ("py.typed", "rules/catalog/POL001.yaml", "report/report.html.j2", "demo/warm_start.safetensors"):
        assert f"tracker_diag/{name}" in wheel.namelist()


def test_no_generic_name_is_installed(wheel):
    installed = {name.split("/")[0] for name in wheel.namelist()}
    packages = {name for name in installed if not name.endswith(".dist-info")}
    assert packages == {"tracker_diag", *(path.parent.name for path in ROOT.glob("integrations/*/__init__.py"))}


def test_every_integration_is_typed():
    for package in ROOT.glob("integrations/*/__init__.py"):
        assert (package.parent / "py.typed").exists()


def test_the_extras_stand(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    extras = set(metadata.get_all("Provides-Extra"))
    assert {"wandb", "mlflow", "torch", "trackio", "tensorboard", "notify", "trl", "verl", "all", "dev"} <= extras
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_command_is_installed():
    (script,) = entry_points(group="console_scripts", name="tracker-diag")
    assert callable(script.load())


def test_the_shipped_policy_is_small():
    assert (ROOT / "tracker_diag/demo/warm_start.safetensors").stat().st_size < 1_000_000
