import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.health import FOLDER
from tracker_diag.trackers.delivery import journal as module
from tracker_diag.trackers.delivery import owner
from tracker_diag.trackers.delivery.deliver import deliver
from tracker_diag.trackers.delivery.journal import DAMAGED, END, InUse, Journal, NoJournal, journal_for
from tracker_diag.trackers.tracker import Tracker

ABOUT = {"tracker": "jsonl", "address": {"run": "1"}, "kind": ""}
SCALAR = {"scalars": {"diag/x": 1.0}, "step": 0, "at": 0.0, "n": 0}


def rest(journal):
    """All that waits, which then was given."""
    lines = []
    for place, line in journal.entries():
        lines += [line] if "sent" not in line else []
        journal.given = place
    return lines


def again(journal):
    """The same in a process that comes after."""
    journal.close(keep=True)
    return Journal.taken(journal.path)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path / "folder"))
    return tmp_path / "folder"


@pytest.fixture
def journal(place):
    return Journal.new("jsonl-1", ABOUT)


class Known(Tracker):
    """A tracker by its name and address."""

    name, address = "jsonl", {"run": "1"}


def test_what_was_put_in_comes_out_in_order_and_so_it_does_in_another_process(journal, place):
    for i in range(5):
        journal.append({"i": i})
    (end, _), *_ = journal.entries()
    journal.given = end
    journal.delivered()
    later = again(journal)
    assert {name: later.about[name] for name in ABOUT} == ABOUT
    assert [line["i"] for line in rest(later)] == [1, 2, 3, 4]
    later.delivered()
    assert not later.undelivered
    later = again(later)
    assert not later.undelivered
    later.close(keep=False)
    assert list(place.iterdir()) == []


def test_a_process_that_changes_its_folder_finds_its_journal(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKER_DIAG_DIR", "relative")
    monkeypatch.chdir(tmp_path)
    journal = Journal.new("jsonl-1", ABOUT)
    monkeypatch.chdir("/")
    journal.close(keep=False)
    assert [*(tmp_path / "relative").iterdir()] == []


def test_files_are_for_the_users_eyes_alone_and_say_whose_they_are(journal, place):
    assert (place.stat().st_mode & 0o777, journal.path.stat().st_mode & 0o777) == (0o700, 0o600)
    me = owner.here()
    assert journal.path.match(f"jsonl-1.*.{me}{END}")
    assert [journal.about[name] for name in ("pid", "host", "start")] == [os.getpid(), me.host, me.start]


def test_a_torn_line_and_one_that_changed_cost_themselves_alone(journal):
    for i in range(3):
        journal.append({"value": 10 + i})
    journal.close(keep=True)
    data = journal.path.read_bytes().replace(b'"value": 11', b'"value": 71')
    journal.path.write_bytes(data + b'{"i": 1, "half')
    later = Journal.taken(journal.path)
    later.append({"value": 13})
    assert rest(later) == [{"value": 10}, DAMAGED, {"value": 12}, DAMAGED, {"value": 13}]


def head(about):
    data = json.dumps(about).encode()
    return b"%s\t%08x\n" % (data, crc32(data))


FOREIGN = {
    "empty": b"",
    "a user's own": b'{"step": 1}\n{"step": 2}\n',
    "a version without its checksum": b'{"version": 3, "data": "my only line"}\n',
    "no line": b"not json\nx",
    "a list": b"[1,2]\n[3,4]\n",
    "another version": head({"version": 99, "tracker": "jsonl"}),
    "a head without a process": head({"version": module.VERSION, **ABOUT}),
    "a head that was changed": head({"version": module.VERSION, **ABOUT}).replace(b'"jsonl"', b'"mlflo"'),
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_journal_is_left_as_it_is(place, data, linked, tmp_path):
    place.mkdir()
    file = tmp_path / "target.txt" if linked else place / f"mine{END}"
    file.write_bytes(data)
    file.chmod(0o600)
    if linked:
        (place / f"link{END}").symlink_to(file)
    before = sorted(place.iterdir())
    ((_, outcome, well),) = deliver(place, 1.0)
    assert (outcome.partition(":")[0], well) == ("left alone", False)
    assert file.read_bytes() == data
    assert sorted(place.iterdir()) == before


def test_a_journal_whose_process_is_alive_is_left_alone_and_two_of_one_process_are_two(journal, place):
    with pytest.raises(InUse, match=rf"its process {os.getpid()} is alive and delivers it itself"):
        Journal.taken(journal.path)
    assert Journal.new("jsonl-1", ABOUT).path != journal.path
    renamed = journal.path.rename(place / f"any{END}")
    assert {outcome for _, outcome, _ in deliver(place, 1.0)} == {
        f"left alone: its process {os.getpid()} is alive and delivers it itself"
    }
    journal.append({"i": 1})
    journal.close(keep=True)
    assert rest(Journal.taken(renamed)) == [{"i": 1}]


def closes_and_takes(place, number, together, out):
    """Fifty times, at the same moment as others: close a journal, then take all that were closed."""
    os.environ[FOLDER] = str(place)
    for turn in range(50):
        journal = Journal.new("jsonl-1", ABOUT)
        journal.append({"wrote": (turn, number)})
        together.wait(60)
        journal.close(keep=True)
        together.wait(60)
        mine = []
        for path in sorted(place.iterdir()):
            with contextlib.suppress(NoJournal, OSError):
                mine.append(Journal.taken(path))
        together.wait(60)
        for taken in mine:
            out.put([line["wrote"] for line in rest(taken)])
            taken.close(keep=False)


@pytest.mark.slow
def test_of_journals_that_several_processes_close_and_take_at_once_each_is_taken_once(place):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    together, out = context.Barrier(4), context.Queue()
    processes = [context.Process(target=closes_and_takes, args=(place, number, together, out)) for number in range(4)]
    for process in processes:
        process.start()
    got = [out.get(timeout=100) for _ in range(200)]
    for process in processes:
        process.join()
    assert sorted(got) == [[[turn, number]] for turn in range(50) for number in range(4)]
    assert list(place.iterdir()) == []


def test_what_another_process_did_while_a_journal_was_read_counts(journal, monkeypatch):
    journal.append(*({"i": i} for i in range(2)))
    journal.close(keep=True)
    read = Journal._read  # noqa: SLF001  # another process acts within it

    def meanwhile(mine):
        monkeypatch.setattr(Journal, "_read", read)
        whole = read(mine)
        other = Journal.taken(journal.path)
        other.given = next(other.entries())[0]
        other.delivered()
        other.append({"i": 2})
        other.close(keep=True)
        assert other.path == journal.path
        return whole

    monkeypatch.setattr(Journal, "_read", meanwhile)
    assert rest(Journal.taken(journal.path)) == [{"i": 1}, {"i": 2}]


def test_a_journal_with_a_second_name_is_left_as_it_is(journal, place, tmp_path):
    journal.append(SCALAR)
    journal.close(keep=True)
    before = journal.path.read_bytes()
    (tmp_path / "mine").hardlink_to(journal.path)
    ((_, outcome, well),) = deliver(place, 1.0)
    assert (outcome.partition(",")[0], well) == ("left alone: it has 2 names (hard links)", False)
    assert (tmp_path / "mine").read_bytes() == before


def test_a_journal_that_does_not_say_where_its_run_is_says_so(place):
    journal = Journal.new("tensorboard-1", {"tracker": "tensorboard"})
    journal.append(SCALAR)
    journal.close(keep=True)
    ((_, outcome, _),) = deliver(place, 1.0)
    assert outcome == "kept: the address of the run has no 'folder'"


@pytest.mark.slow
def test_a_killed_process_leaves_its_journal_though_a_fork_of_it_lives_on(place):
    code = (
        "import fcntl, os, sys, time\n"
        "fcntl.flock = fcntl.lockf = fcntl.fcntl = None  # as a file system without locks\n"
        "from tracker_diag.trackers.delivery.journal import Journal\n"
        f"journal = Journal.new('jsonl-1', {ABOUT})\n"
        "journal.append({'i': 1})\n"
        "child = os.fork()\n"
        "if not child: time.sleep(60)\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        process.wait()
        try:
            later = journal_for(Known())
            assert rest(later) == [{"i": 1}]
            renamed = later.path.rename(place / f"any{END}")
            with pytest.raises(InUse, match=f"its process {os.getpid()} is alive"):  # another process is as refused
                Journal.taken(renamed)
        finally:
            os.kill(child, 9)
    assert list(place.iterdir()) == [renamed]


@pytest.mark.parametrize("opened", [False, True])
def test_a_journal_that_another_process_takes_first_is_in_good_hands(journal, monkeypatch, opened):
    journal.append({"i": 0})
    journal.close(keep=True)
    others, calls = [], []

    def meanwhile(*_):
        calls.append(1)
        if len(calls) > opened:
            monkeypatch.undo()
            others.append(Journal.taken(journal.path))

    monkeypatch.setattr(module, "_refuse_living", meanwhile)
    outcome = "left alone: another process has just taken it, and delivers it"
    assert list(deliver(journal.path, 1.0)) == [(journal.path, outcome, True)]
    assert rest(*others) == [{"i": 0}]


def test_ctrl_c_just_after_a_line_was_written_costs_neither_that_line_nor_the_next(journal, monkeypatch):
    write = os.write

    def interrupted(fd, data):
        monkeypatch.undo()
        write(fd, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.append({"long": "x" * 100})
    assert journal.undelivered
    journal.append({"i": 1})
    assert rest(journal) == [{"long": "x" * 100}, {"i": 1}]


def test_containers_with_one_host_name_are_different_machines(monkeypatch):
    assert owner.FIRST_SPACE == 4026531836  # PROC_PID_INIT_INO, include/linux/proc_ns.h
    space = Path("/proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr(owner, "FIRST_SPACE", 0)
    inside = owner._here.__wrapped__(os.getpid())  # noqa: SLF001  # it is kept for a process
    assert inside.host == f"{socket.gethostname()}-{space}"


def test_a_journal_of_another_machine_waits_until_its_process_must_be_dead(place):
    place.mkdir()
    away = place / f"any{END}"
    journal = {"version": module.VERSION, "host": "elsewhere", "pid": 12, "start": 34, **ABOUT}
    away.write_bytes(head(journal))
    away.chmod(0o600)
    with pytest.raises(InUse, match=r"its process on elsewhere may be alive: it changed . s ago; try again in 600 s"):
        Journal.taken(away)
    long_ago = time.time() - 700
    os.utime(away, (long_ago, long_ago))
    Journal.taken(away).close(keep=False)


def test_it_is_synced_again_and_again(place, monkeypatch):
    monkeypatch.setattr(module, "SYNCED_EVERY", 0.02)
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), fsync(fd)))
    journal = Journal.new("jsonl-1", ABOUT)
    file, folder = journal.path.stat().st_ino, place.stat().st_ino
    until = time.monotonic() + 60
    # Journals that other tests have left open are synced too.
    while len(mine := [inode for inode in synced if inode in (file, folder)]) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert mine[:4] == [file, folder, file, file]
    journal.close(keep=False)


def test_a_disk_that_takes_half_a_first_line_keeps_no_file(place, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
    with pytest.raises(OSError, match="no room for a first line"):
        Journal.new("jsonl-1", ABOUT)
    assert list(place.iterdir()) == []


def test_what_an_earlier_process_could_not_deliver_comes_first(place):
    for run, number in (("1-2", 0), ("1", 1), ("1", 2)):
        journal = Journal.new(f"jsonl-{run}", {**ABOUT, "address": {"run": run}})
        journal.append({"arrived": number})
        rest(journal)
        journal.delivered()
        journal.append({"waits": number})
        journal.close(keep=True)
    later = journal_for(Known())
    later.append({"new": 3})
    assert rest(later) == [{"waits": 1}, {"new": 3}]
    assert len([*place.iterdir()]) == 3  # the second one of this run, and that of another, wait for `flush`


def test_a_closed_journal_writes_into_no_other_file(journal, tmp_path):
    """The operating system gives the number of a closed file to the next that is opened: a checkpoint, say."""
    journal.close(keep=True)
    with contextlib.ExitStack() as others:
        files = [others.enter_context((tmp_path / f"checkpoint-{number}").open("w+b")) for number in range(8)]
        with pytest.raises(OSError, match="Bad file descriptor"):
            journal.append({"step": 1})
        assert [file.read() for file in files] == [b""] * 8


def test_a_new_start_forgets_all(journal):
    for i in range(50):
        journal.append({"i": i})
    size = journal.path.stat().st_size
    journal.restart()
    assert journal.path.stat().st_size < size / 5
    assert not journal.undelivered
    journal.append({"i": 50})
    assert rest(again(journal)) == [{"i": 50}]


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20)), max_size=30), st.data())
def test_any_lines_survive_any_number_of_processes(values, data):
    values = [{**value, "i": i} for i, value in enumerate(values) if "sent" not in value]
    journal, out = Journal.new("any", ABOUT), []
    for value in values:
        journal.append(value)
        if data.draw(st.booleans()):
            for place, line in [*journal.entries()][: data.draw(st.integers(0, 3))]:
                out.append(line)
                journal.given = place
            journal.delivered()
        if data.draw(st.booleans()):
            journal = again(journal)
    out += rest(journal)
    journal.close(keep=False)
    assert [line for line in out if "sent" not in line] == json.loads(json.dumps(values))


def test_lines_of_any_size_and_what_follows_them(journal, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 64)
    written = [{"i": i, "text": "x" * size} for i, size in enumerate((1, 1000, 1, 70_000, 3))]
    journal.append(*written)
    assert rest(journal) == written


def test_a_journal_has_its_bound(journal, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", journal.size + 100)
    journal.append({"i": 0})
    with pytest.raises(OSError, match="a journal holds 0 MiB at most"):
        journal.append({"text": "x" * 100})
    assert rest(journal) == [{"i": 0}]


@pytest.mark.parametrize(("mode", "user", "message"), [
    (0o666, None, "left alone: others may have written it"), (0o600, 12345, "left alone: it belongs to another user"),
])  # fmt: skip
def test_a_journal_that_others_may_have_written_goes_nowhere(place, monkeypatch, mode, user, message):
    """Its first line names a server, or a folder to write to."""
    elsewhere = str(place / "elsewhere")
    journal = Journal.new("tensorboard-1", {"tracker": "tensorboard", "address": {"folder": elsewhere}})
    journal.append(SCALAR)
    journal.close(keep=True)
    journal.path.chmod(mode)
    with monkeypatch.context() as patch:
        if user:
            patch.setattr("os.getuid", lambda: user)
        ((_, outcome, well),) = deliver(place, 1)
    assert (outcome.partition(";")[0], well) == (message, False)
    assert not (place / "elsewhere").exists()
    journal.path.chmod(0o600)
    ((_, outcome, well),) = deliver(place, 1)
    assert (outcome, well) == ("delivered to tensorboard ", True)
