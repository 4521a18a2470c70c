"""What is said of a module that is not there, or not as it was."""

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from tracker_diag.errors import MissingExtra, require, require_installed


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A package on the path with one module that works, and one that lacks something."""
    folder = tmp_path / "a_trainer"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "works.py").write_text("here = 1")
    (folder / "lacks.py").write_text("import no_such_library_at_all")
    (folder / "breaks.py").write_text("from os import no_such_name")
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_trainer"
    for name in [name for name in sys.modules if name.partition(".")[0] == "a_trainer"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("extra", "how"),
    [
        ("wandb", r'pip install "tracker-diag\[wandb\]"'),
        ("slime", "install slime as its own documentation says"),
    ],
)
def test_what_is_not_installed_is_named_with_what_installs_it(extra, how):
    for missing in (require, require_installed):
        with pytest.raises(MissingExtra, match=f"no_such_library is not installed: {how}$"):
            missing("no_such_library", extra)


def test_a_source_tree_takes_the_extra_at_its_word(monkeypatch):
    def none(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.metadata", none)
    with pytest.raises(MissingExtra, match=r"tracker-diag\[slime\]"):
        require("no_such_library", "slime")


def test_the_first_name_that_there_is_counts(trainer):
    assert require("a_trainer.newer", "slime", "a_trainer.works", "a_trainer.lacks").here == 1
    assert require("a_trainer.works", "slime", "a_trainer.lacks").here == 1


def test_a_package_without_the_module_is_another_version(trainer):
    lacking = "no module a_trainer.newest or a_trainer.newer.one in the a_trainer that is installed"
    with pytest.raises(MissingExtra, match=f"{lacking}; it is not a tested version"):
        require("a_trainer.newest", "slime", "a_trainer.newer.one")


@pytest.mark.parametrize(("name", "reason"), [("lacks", "no_such_library_at_all"), ("breaks", "no_such_name")])
def test_a_module_that_is_there_and_cannot_be_imported_says_why(trainer, name, reason):
    with pytest.raises(MissingExtra, match=f"a_trainer.{name} cannot be imported: .*{reason}"):
        require(f"a_trainer.{name}", "slime", "a_trainer.works")


def test_a_module_that_is_hidden_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match="wandb is not installed"):
        require("wandb", "wandb")
