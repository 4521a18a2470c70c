import json
import os
from dataclasses import replace

import pytest

from tracker_diag import Monitor
from tracker_diag.monitor.context import Code, context_of
from tracker_diag.records import Table
from tracker_diag.runs.postmortem.folder import Ending, Remains, files, nan_at_the_end, page, write
from tracker_diag.testing import example_batch

SECRET = "sk_*not*for_the_page*"  # noqa: S105
TRACE = "Traceback (most recent call last):\n" + "".join(f"  line {n}\n" for n in range(60)) + f"ValueError: {SECRET}"


@pytest.fixture(scope="module")
def summary():
    with Monitor() as monitor:
        for step in range(100):
            monitor.observe(**example_batch(step))
            monitor.log({"reward": 0.5}, step)
        return monitor.close()


def remains(summary, **given):
    ending = Ending("exception", f"ValueError: {SECRET}", TRACE)
    context = context_of({"seed": 3, "api_key": SECRET}, {"torch": "2"}, Code("abc", dirty=True))
    return Remains("mlflow-1", "mlflow:1", (ending,), context, summary, **given)


@pytest.mark.slow
def test_the_page_says_what_ended_it_what_broke_first_and_from_what_to_repeat_it(summary):
    text = files(remains(summary))["README.md"]
    assert text.startswith("# mlflow-1: what ended it\n\n**ValueError: \\*\\*\\***, after step 99.")
    assert "Token probabilities shift after tool results since " in text
    assert "| code | abc, with changes that are not committed |" in text
    assert "Not recorded: the data splits (`data_splits`)" in text
    assert "None was registered." in text
    assert "    line 59\n" in text
    assert "line 20\n" not in text  # all of it is in a file
    assert "`tracker-diag diagnose mlflow:1` shows it again." in text


@pytest.mark.slow
def test_no_file_has_a_secret_in_it_however_it_is_written(summary):
    events, failures = [(3, f"new baseline: {SECRET}")], [f"tracker_errors: {SECRET}"]
    for name, content in files(remains(summary, events=events, failures=failures)).items():
        assert "sk_" not in content, name


@pytest.mark.slow
def test_the_files_are_those_that_are_listed(summary):
    tables = [Table("diag/slices", ("pair", "slice", "p95"), (("policy", "all", 0.1),) * 20)]
    tables.append(Table("diag/checkpoints", ("step", "path"), ((5, "step-5"),)))
    contents = files(remains(summary, tables=tables))
    document = json.loads(contents["postmortem.json"])
    assert set(contents) == {
        "README.md", "postmortem.json", "context.json", "traceback.txt", "slices.json", "checkpoints.json",
        "report.html",
    }  # fmt: skip
    assert document["tables"] == ["slices.json", "checkpoints.json"]
    assert document["diagnosis"]["first_break"]["rule"] == "POL001"
    assert json.loads(contents["slices.json"])["data"][0] == ["policy", "all", 0.1]
    text = contents["README.md"]
    assert "| 5 | step-5 |" in text
    assert "And 8 more slices, in `slices.json`." in text


@pytest.mark.slow
def test_what_else_ended_is_named_below(summary):
    first = remains(summary)
    text = page(replace(first, endings=(*first.endings, Ending("stop", "guard stop_training"))))
    assert "- then guard stop\\_training" in text or "- then guard stop_training" in text


@pytest.mark.slow
def test_an_earlier_folder_stays(summary, tmp_path):
    made = [write(remains(summary), tmp_path / "deep" / "run") for _ in range(3)]
    assert [folder.name for folder in made] == ["run", "run-2", "run-3"]
    assert {folder.name for folder in (tmp_path / "deep").iterdir()} == {"run", "run-2", "run-3"}
    assert all((folder / "README.md").read_text() for folder in made)


@pytest.mark.slow
def test_a_disk_that_takes_no_more_leaves_nothing_behind(summary, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "README.md").write_text("earlier")
    with pytest.raises(OSError, match="no-such-folder"):
        write(remains(summary, tables=[Table("a" * 300 + "no-such-folder", ("step",), ((1,),))]), tmp_path / "run")
    assert [folder.name for folder in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / "README.md").read_text() == "earlier"


@pytest.mark.slow
def test_what_a_killed_process_of_the_same_number_left_is_in_nobodys_way(summary, tmp_path):
    left = tmp_path / f".run.{os.getpid()}.new"
    left.mkdir()
    (left / "half").write_text("a file of")
    made = write(remains(summary), tmp_path / "run")
    assert [folder.name for folder in tmp_path.iterdir()] == ["run"]
    assert not (made / "half").exists()


def test_nan_that_is_over_ended_nothing():
    monitor = Monitor()
    monitor.log({"loss": float("nan")}, 0)
    assert [ending.what for ending in nan_at_the_end(monitor.summary())] == [
        "NaN or infinity: loss is NaN or infinite (1 series at this step), since step 0"
    ]
    for step in range(1, 40):
        monitor.log({"loss": 0.5}, step)
    assert not [*nan_at_the_end(monitor.close())]
