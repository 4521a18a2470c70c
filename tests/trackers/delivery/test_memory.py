from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.trackers.delivery.memory import Memory


def entry(n, kind="scalars"):
    return {kind: {}, "n": n, "step": n // 2}


def test_what_was_given_stays_until_it_has_arrived():
    memory = Memory()
    for n in range(6):
        assert memory.append(entry(n), 10) == 0
    read = []
    for one in memory.read():
        if len(read) == 4:
            break
        read.append(one["n"])
        memory.given += 1
    assert (read, len(memory), memory.steps) == ([0, 1, 2, 3], 6, 3)
    memory.delivered()
    assert (len(memory), memory.steps, next(memory.read())["n"]) == (2, 1, 4)


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 5))
def test_the_oldest_scalars_go_and_no_finding_does(findings, given):
    memory, dropped = Memory(), 0
    memory.given = given
    for n, finding in enumerate(findings):
        dropped += memory.append(entry(n, "finding" if finding else "scalars"), 10)
    memory.given = 0
    left = []
    for one in memory.read():
        left.append(one["n"])
        memory.given += 1
    assert left == sorted(left)
    assert dropped == len(findings) - len(left)
    assert {n for n, finding in enumerate(findings) if finding} <= set(left)
    assert set(range(min(given + 1, len(findings)))) <= set(left)
