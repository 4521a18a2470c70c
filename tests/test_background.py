import threading

import pytest

from tracker_diag.background import Background


@pytest.fixture
def background():
    background = Background()
    yield background
    background.close()


def test_tasks_run_in_order_on_one_other_thread(background):
    seen = []
    for i in range(50):
        background.run(lambda i=i: seen.append((i, threading.get_ident())))
    background.settle()
    assert [i for i, _ in seen] == list(range(50))
    assert len({ident for _, ident in seen}) == 1
    assert seen[0][1] != threading.get_ident()


def test_a_task_is_waited_for_by_the_next_one_alone(background):
    go, seen, handed = threading.Event(), [], []

    def first():
        go.wait()
        seen.append("first")

    background.run(first)  # comes back at once
    assert seen == []
    second = threading.Thread(target=lambda: (background.run(lambda: seen.append("second")), handed.append(seen[0])))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go.set()
    second.join()
    background.settle()
    assert handed == ["first"]
    assert seen == ["first", "second"]


def test_where_no_thread_can_be_started_the_caller_does_it(background, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen = []
    background.run(lambda: seen.append(threading.get_ident()))
    background.settle()
    assert seen == [threading.get_ident()]


def test_after_the_end_a_task_begins_another_thread(background):
    seen = []
    background.run(lambda: seen.append(threading.current_thread()))
    background.close()
    assert not seen[0].is_alive()
    background.close()
    background.run(lambda: seen.append(threading.current_thread()))
    background.settle()
    assert seen[1].is_alive()
    assert seen[1] is not seen[0]


def test_a_task_that_ends_its_thread_holds_nobody_up(background, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    def leave():
        raise KeyboardInterrupt

    seen = []
    background.run(leave)
    background.settle()
    background._thread.join()
    background.run(lambda: seen.append(1))
    background.settle()
    assert seen == [1]
