import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.trackers.delivery import journal as module
from tracker_diag.trackers.delivery.deliver import deliver
from tracker_diag.trackers.delivery.journal import Journal, JournalInUse, JournalVersion


def lines(journal):
    """All that can be read from where the journal stands, and moved on."""
    found = []
    while journal.unread:
        for place, line in journal.read():
            found.append(line)
            journal.given = place
    return found


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "run.jsonl"


def test_what_was_put_in_comes_out_in_order_and_so_it_does_in_another_process(path):
    journal = Journal(path, {"tracker": "x"})
    for i in range(5):
        journal.append({"i": i})
    assert [line["i"] for line in lines(journal)[:3]] == [0, 1, 2]
    journal.given = journal.sent
    (place, _), *_ = journal.read()
    journal.given = place
    journal.delivered()
    journal.close(keep=True)

    again = Journal(path, {"tracker": "another"})
    assert again.about == {"version": 2, "tracker": "x"}
    assert [line["i"] for line in lines(again)] == [1, 2, 3, 4]
    again.delivered()
    assert not again.undelivered
    again.close(keep=False)
    assert list(path.parent.iterdir()) == []


def test_a_torn_line_costs_itself_alone(path):
    journal = Journal(path, {})
    journal.append({"i": 0})
    journal.close(keep=True)
    with path.open("a") as file:
        file.write('{"i": 1, "half')
    journal = Journal(path, {})
    journal.append({"i": 2})
    assert lines(journal) == [{"i": 0}, {}, {"i": 2}]


def test_a_journal_of_another_version_is_left_alone_and_told(path, monkeypatch):
    Journal(path, {"tracker": "jsonl"}).close(keep=True)
    before = path.read_bytes()
    monkeypatch.setattr(module, "VERSION", 3)
    monkeypatch.setattr(module, "READ", {3})
    with pytest.raises(JournalVersion, match=r"run\.jsonl: a journal of version 2 given, expected 3; deliver it with"):
        Journal(path, {})
    ((told, outcome, well),) = deliver(path.parent, 1.0)
    assert (told, well) == (path, False)
    assert outcome.startswith(f"left alone: {path}: a journal of version 2")
    assert path.read_bytes() == before


def test_a_journal_that_is_open_is_told(path):
    journal = Journal(path, {})
    with pytest.raises(JournalInUse, match=r"run\.jsonl: in use by a process that is alive"):
        Journal(path, {})
    journal.close(keep=True)
    Journal(path, {}).close(keep=False)


def test_a_closed_journal_writes_into_no_other_file(path, tmp_path):
    """The operating system gives the number of a closed file to the next that is opened: a checkpoint, say."""
    journal = Journal(path, {"run": "1"})
    journal.close(keep=True)
    with contextlib.ExitStack() as others:
        files = [others.enter_context((tmp_path / f"checkpoint-{number}").open("w+b")) for number in range(8)]
        with pytest.raises(OSError, match="Bad file descriptor"):
            journal.append({"step": 1})
        assert [file.read() for file in files] == [b""] * 8


def test_what_is_kept_outlives_the_delivery(path, monkeypatch):
    monkeypatch.setattr(module, "SHRINK", 100)
    journal = Journal(path, {"tracker": "x"})
    for i in range(50):
        journal.append({"i": i}, keep=i == 7)
    size = path.stat().st_size
    assert len(lines(journal)) == 50
    journal.delivered()
    journal.shrink()
    assert path.stat().st_size < size / 10
    journal.append({"i": 50})
    assert lines(journal) == [{"i": 50}]
    assert journal.kept() == [{"i": 7}]
    journal.close(keep=True)
    assert [line["i"] for line in Journal(path, {}).kept()] == [7]


def test_nothing_is_lost_by_shrinking_while_something_waits(path, monkeypatch):
    monkeypatch.setattr(module, "SHRINK", 10)
    journal = Journal(path, {})
    journal.append({"i": 0})
    journal.shrink()
    assert lines(journal) == [{"i": 0}]


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20)), max_size=30), st.data())
def test_any_lines_survive_any_number_of_processes(tmp_path_factory, values, data):
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    journal, out = Journal(path, {}), []
    for value in values:
        journal.append(value)
        if data.draw(st.booleans()):
            for place, line in journal.read()[: data.draw(st.integers(0, 3))]:
                out.append(line)
                journal.given = place
            journal.delivered()
        if data.draw(st.booleans()):
            journal.close(keep=True)
            journal = Journal(path, {})
    out += lines(journal)
    journal.close(keep=False)
    assert out == json.loads(json.dumps(values))


def test_a_line_that_changed_on_the_disk_is_put_aside_and_counted(path):
    journal = Journal(path, {})
    for i in range(3):
        journal.append({"value": 10 + i})
    journal.close(keep=True)
    path.write_bytes(path.read_bytes().replace(b"11", b"71"))
    journal = Journal(path, {})
    assert lines(journal) == [{"value": 10}, {}, {"value": 12}]
    assert journal.damaged == 1
    assert b"71" in journal.aside.read_bytes()


@pytest.mark.parametrize("mark", [b"", b"nonsense", b"\xff" * 20, b"9" * 20, b"-5"])
def test_a_damaged_mark_loses_nothing(mark, path):
    journal = Journal(path, {})
    journal.append({"i": 0})
    journal.close(keep=True)
    path.with_suffix(".sent").write_bytes(mark)
    assert lines(Journal(path, {})) == [{"i": 0}]


def test_lines_of_any_size_and_what_follows_them(path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 64)
    journal = Journal(path, {})
    written = [{"i": i, "text": "x" * size} for i, size in enumerate((1, 1000, 1, 70_000, 3))]
    for line in written:
        journal.append(line)
    assert lines(journal) == written


def test_findings_that_are_damaged_leave_the_others(path):
    journal = Journal(path, {})
    journal.append({"finding": 1}, keep=True)
    journal.append({"finding": 2}, keep=True)
    findings = path.with_suffix(".findings.jsonl")
    findings.write_bytes(b"\x00\xff{\n" + findings.read_bytes() + b'{"finding": 3, "torn')
    assert [line["finding"] for line in journal.kept()] == [1, 2]
    assert journal.damaged == 2


def test_the_older_half_is_forgotten(path):
    journal = Journal(path, {"tracker": "x"})
    for i in range(10):
        journal.append({"i": i})
    journal.halve()
    journal.append({"i": 10})
    journal.close(keep=True)
    again = Journal(path, {})
    assert again.about["tracker"] == "x"
    assert [line["i"] for line in lines(again)] == [5, 6, 7, 8, 9, 10]


def test_a_journal_has_its_bound_and_what_is_beyond_is_told(path, monkeypatch):
    journal = Journal(path, {})
    monkeypatch.setattr(module, "LARGEST", journal.size + 100)
    with contextlib.suppress(OSError):
        for i in range(100):
            journal.append({"i": i})
    with pytest.raises(OSError, match="a journal holds 0 MiB at most"):
        journal.append({"i": 1_000_000_000})
    assert 50 < path.stat().st_size <= module.LARGEST
    assert [line["i"] for line in lines(journal)] == list(range(len(path.read_bytes().splitlines()) - 1))
    journal.close(keep=False)


def trust(path, monkeypatch, *, mode=0o600, owner=None):
    path.chmod(mode)
    if owner is not None:
        monkeypatch.setattr("os.getuid", lambda: owner)
    return list(deliver(path.parent, 1))


def test_a_journal_that_others_may_have_written_goes_nowhere(path, monkeypatch):
    """Its first line names a server, or a folder to write to."""
    journal = Journal(path, {"tracker": "tensorboard", "address": {"folder": str(path.parent / "elsewhere")}})
    journal.append({"scalars": {"diag/x": 1.0}, "step": 0, "at": 0.0, "n": 0})
    journal.close(keep=True)
    ((_, told, well),) = trust(path, monkeypatch, mode=0o666)
    assert (told.partition(";")[0], well) == ("left alone: others may have written it", False)
    ((_, told, well),) = trust(path, monkeypatch, owner=12345)
    assert (told.partition(";")[0], well) == ("left alone: it belongs to another user", False)
    assert not (path.parent / "elsewhere").exists()
    monkeypatch.undo()
    ((_, told, well),) = trust(path, monkeypatch)
    assert (told, well) == ("delivered to tensorboard ", True)
