"""Frameworks that cannot be installed beside each other: their checks run in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ROOT / "build" / "frameworks"
OFFLINE = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "WANDB_API_KEY": "0" * 40, "WANDB_SILENT": "true"}
"""For W&B as frameworks start it, which looks at these once in a process; and small tensors need one thread."""


TRAINING = {"test_trainer.py", "test_accelerate.py", "test_sb3.py", "test_lightning.py"}


def pytest_ignore_collect(collection_path, config):
    """Without the slow tests, modules of which all are slow: to import their trainers alone takes ten seconds."""
    return True if config.option.markexpr == "not slow" and collection_path.name in TRAINING else None


@pytest.fixture
def run_checks(tmp_path, migrated_mlflow):
    """Runs `<framework>/<file>` with the framework's own modules; `stand_ins` are libraries it imports besides.

    `release` is the folder of another release than that in the framework's own, which still has what all need.
    """

    def run(framework, folders=(), stand_ins=(), plugins="", *, file="checks.py", release=None, **variables):
        path = [tmp_path, ROOT, ROOT / "integrations", Path(__file__).parent, Path(__file__).parent / framework]
        for folder in (*([release] if release else []), framework, *folders, "shared"):
            assert (FRAMEWORKS / folder).is_dir(), f"{FRAMEWORKS / folder} is missing; `make frameworks` makes it"
            path.append(FRAMEWORKS / folder)
        installed = tmp_path / "checks-0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: checks\nVersion: 0\n")
        (installed / "entry_points.txt").write_text(plugins)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "ignore",
            "-p",
            "stand_ins",
            "-p",
            "no:cacheprovider",
            "--timeout=900",
        ]
        done = subprocess.run(
            [*command, str(Path(__file__).parent / framework / file)],
            env=os.environ
            | OFFLINE
            | variables
            | {"PYTHONPATH": os.pathsep.join(map(str, path)), "STAND_INS": " ".join(stand_ins)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]

    return run
