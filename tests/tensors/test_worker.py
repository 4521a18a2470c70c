import threading

from tracker_diag.tensors.worker import LIMIT, Writer


def test_calls_run_in_order_and_errors_are_kept():
    writer, done = Writer("test"), []

    def fail():
        raise ConnectionError("down")

    for i in range(50):
        writer.put(lambda i=i: done.append(i))
        if i % 10 == 0:
            writer.put(fail)
    writer.close(60)
    assert done == list(range(50))
    assert [str(error) for error in writer.errors()] == ["down"] * 5
    assert writer.errors() == []


def test_a_slow_tracker_costs_droppable_calls_only_and_nobody_waits():
    writer, gate, done = Writer("test"), threading.Event(), []
    writer.put(gate.wait)
    for i in range(LIMIT + 100):
        writer.put(lambda i=i: done.append(i), droppable=True)
    writer.put(lambda: done.append("finding"))
    gate.set()  # a rank that had waited until now would be waiting still
    writer.close(60)
    assert done[-1] == "finding"
    assert len(done) == LIMIT  # the first call waits in the queue too
    (error,) = writer.errors()
    assert str(error) == "101 calls dropped: what they were for is slower than the run"


def test_closing_waits_no_longer_than_it_is_reported():
    writer, gate = Writer("test"), threading.Event()
    writer.put(gate.wait)
    writer.put(lambda: None)
    writer.close(0.2)
    (error,) = writer.errors()
    assert str(error) == "2 calls not written within 0 s"
    gate.set()
