"""What is built is what is installed: the wheel holds all that the package needs, and works with what it requires."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from importlib.metadata import distribution, entry_points
from importlib.metadata import metadata as metadata_of
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
HARD = {"numpy", "pydantic", "pyyaml", "rich", "typer"}


@pytest.fixture(scope="module")
def wheel(built_wheel):
    return zipfile.ZipFile(built_wheel)


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_the_whole_package(wheel):
    tracked = subprocess.run(["git", "ls-files", "tracker_diag"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert {name for name in tracked.stdout.split() if (ROOT / name).exists()} <= set(wheel.namelist())
    for name in ("py.typed", "rules/catalog/POL001.yaml", "report/report.html.j2", "demo/warm_start.safetensors"):
        assert f"tracker_diag/{name}" in wheel.namelist()


def test_no_generic_name_is_installed(wheel):
    installed = {name.split("/")[0] for name in wheel.namelist()}
    packages = {name for name in installed if not name.endswith(".dist-info")}
    assert packages == {"tracker_diag", *(path.parent.name for path in ROOT.glob("integrations/*/__init__.py"))}


def test_every_integration_is_typed_and_has_its_line_in_pyproject(wheel):
    packages = {path.parent.name for path in ROOT.glob("integrations/*/__init__.py")}
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    lines = ConfigParser()
    lines.read_string(wheel.read(name).decode())
    assert set(lines["tracker_diag.integrations"].values()) == packages
    for package in packages:
        assert (ROOT / "integrations" / package / "py.typed").exists()


def test_the_extras_stand(metadata):
    extras = set(metadata.get_all("Provides-Extra"))
    assert {"wandb", "mlflow", "torch", "trackio", "tensorboard", "notify", "trl", "verl", "all", "dev"} <= extras
    assert metadata["License-Expression"] == "Apache-2.0"
    links = [link.partition(", ")[0] for link in metadata.get_all("Project-URL")]
    assert links == ["Documentation", "Source", "Issues", "Changelog"]


def test_the_command_is_installed():
    (script,) = entry_points(group="console_scripts", name="tracker-diag")
    assert callable(script.load())


def test_the_shipped_policy_is_small():
    assert (ROOT / "tracker_diag/demo/warm_start.safetensors").stat().st_size < 1_000_000


def needed(requirements):
    """The distributions that `requirements` bring, extras left out, and those that they need in turn."""
    names = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower()
        if name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            names.add(name)
            waiting += [Requirement(text) for text in distribution(name).requires or ()]
    return names


@pytest.fixture(scope="module")
def fresh(built_wheel, metadata, tmp_path_factory):
    """A new environment with the wheel and what it requires, as installed here: nothing comes over the network."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in needed(metadata.get_all("Requires-Dist")):
        files = distribution(name).files
        for top in {file.parts[0] for file in files if file.parts[0] != ".."} - {"__pycache__"}:
            (site / top).symlink_to(Path(distribution(name).locate_file(top)).resolve())
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", built_wheel]
    subprocess.run(install, check=True, capture_output=True)  # refuses if anything that it requires is not there
    return folder


@pytest.fixture
def run(fresh, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def call(program, *arguments):
        command = [fresh / "bin" / program, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    return call


@pytest.fixture
def metrics(tmp_path):
    file = tmp_path / "metrics.jsonl"
    rewards = [0.5] * 20 + [float("nan")]
    file.write_text("".join(json.dumps({"step": step, "reward": reward}) + "\n" for step, reward in enumerate(rewards)))
    return file


def test_only_a_few_distributions_are_required(metadata):
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    assert {requirement.name for requirement in required if "extra" not in str(requirement.marker)} <= HARD


@pytest.mark.nightly
def test_the_wheel_alone_diagnoses_a_file_on_the_command_line(run, metrics):
    result = json.loads(run("tracker-diag", "diagnose", metrics, "--json"))
    assert result["first_break"] == {"rule": "NUM004", "slice": "all", "onset": 20}
    assert "NaN or infinity" in run("tracker-diag", "diagnose", metrics)


@pytest.mark.slow
def test_the_wheel_alone_diagnoses_a_file_in_python(run, metrics, fresh):
    code = f"import tracker_diag as td; print(td.__file__, td.diagnose({str(metrics)!r}).summary.first_break.rule.id)"
    file, rule = run("python", "-c", code).split()
    assert Path(file).is_relative_to(fresh)
    assert rule == "NUM004"


PERMISSIVE = r"MIT|BSD|Apache|Python Software|PSF|ISC|HPND|MPL|Mozilla|Zlib|Permission is hereby granted"
"""Marks of licences that a dependency may have. MPL binds changes of its own files alone."""
ELSEWHERE = r"extra == .(dev|verl|openrlhf|skyrl|areal|rllib)"
"""Extras that are not installed here, and what only tests use."""


def licence(name):
    """What a distribution says of its licence, with the beginning of the licence that is in it."""
    about = metadata_of(name)
    listed = [text for text in about.get_all("Classifier") or [] if text.startswith("License ::")]
    texts = [file.read_text()[:200] for file in distribution(name).files or () if file.name.startswith("LICENSE")]
    fields = about.get("License-Expression"), (about.get("License") or "")[:200]
    return " / ".join(filter(None, [*fields, *listed, *texts[:1]]))


@pytest.mark.slow
def test_no_dependency_of_any_extra_has_a_licence_that_binds_its_users(metadata):
    direct = [text for text in metadata.get_all("Requires-Dist") if not re.search(ELSEWHERE, text)]
    names = needed(text.partition(";")[0] for text in direct if not text.startswith("tracker-diag"))
    stated = {name: licence(name) for name in names}
    assert len(stated) > 100
    assert {name: text for name, text in stated.items() if not re.search(PERMISSIVE, text)} == {}
    assert {name: text for name, text in stated.items() if re.search(r"(?<!L)GPL|SSPL", text)} == {}


def built_elsewhere(folder, *arguments, **environment):
    """What a copy of the working tree, with another time of change, is built to."""
    copy = folder / "source"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for file in filter(None, files.split("\0")):
        if (ROOT / file).exists():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, copy / file)
    command = [sys.executable, "-m", "hatchling", "build", *arguments, "--directory", folder / "dist"]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, env=os.environ | environment)
    return sorted((folder / "dist").iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("compiler", "kind", "counts"), [("cc", "linux", "the compiled kernel"), ("no", "any", "numpy")]
)
def test_a_wheel_says_whether_it_was_built_with_a_compiler(compiler, kind, counts, tmp_path):
    if compiler == "cc" and not shutil.which(compiler):
        pytest.skip("no compiler here")
    (wheel,) = built_elsewhere(tmp_path, "--target", "wheel", CC=compiler)
    assert kind in wheel.name
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import tracker_diag as td; print(td.__file__); td.Monitor().explain()"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert output.startswith(str(tmp_path / "site"))
    assert f"counted by {counts}" in output


@pytest.mark.nightly
def test_wheel_and_sdist_are_built_to_the_same_bytes_twice(tmp_path):
    hashes = []
    for name in ("first", "second"):
        built = built_elsewhere(tmp_path / name)
        hashes.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in built})
    assert hashes[0] == hashes[1]
    assert {Path(name).suffix for name in hashes[0]} == {".whl", ".gz"}


MODULES = {"mcp": "mcp", "notify": "apprise", "panels": "wandb_workspaces", "replay": "pyarrow"}
"""What each extra brings. Those of trackers have their own environments in test_quickstart.py."""


@pytest.mark.nightly
@pytest.mark.parametrize("extra", MODULES)
def test_each_extra_is_all_that_its_part_needs(extra, built_wheel, metrics, tmp_path):
    environment = ROOT / "build" / "quickstart" / extra
    assert environment.is_dir(), f"{environment} is missing; `make {environment.relative_to(ROOT)}` makes it"
    install = [sys.executable, "-m", "pip", "--python", environment, "install", "--no-index", "--no-deps"]
    subprocess.run([*install, "--force-reinstall", built_wheel], check=True, capture_output=True, cwd=tmp_path)
    code = f"import sys, {MODULES[extra]}; print(*sorted({{*{tuple(MODULES.values())}}} & {{*sys.modules}}))"
    results = subprocess.run([environment / "bin" / "python", "-c", code], check=True, capture_output=True, text=True)
    assert results.stdout.split() == [MODULES[extra]]
    command = [environment / "bin" / "tracker-diag", "diagnose", metrics, "--json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert json.loads(printed)["first_break"]["rule"] == "NUM004"
