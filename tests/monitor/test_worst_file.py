import numpy as np
import pytest

from tracker_diag.monitor import worst_file as file
from tracker_diag.monitor.worst_file import save, unused
from tracker_diag.records import WorstSequence


def sequence(n=40, **given):
    about = {
        "pair": "policy", "slice": "post_tool", "onset": 80, "moment": "worst", "step": 112, "batch": 0, "sequence": n,
        "tool": "search", "length": 600, "first": 88, "position": 90, "limit": 0.1, "share": 0.25,
    }  # fmt: skip
    flags = np.arange(n) % 2 == 0
    logprobs, ids = np.stack([np.full(n, -1.0), np.full(n, -2.0)]), np.arange(n) + 1000 * n
    return WorstSequence(
        **about | given, logprobs=logprobs, sampled=flags, tool_output=~flags, in_slice=flags, token_ids=ids
    )


def test_it_is_read_back_without_pickle_sequence_by_sequence(journals):
    path = unused()
    save(path, [sequence(40), sequence(3, share=None, tool="<script>\u202e"), sequence(7, slice="tool:search")])
    with np.load(path, allow_pickle=False) as found:
        assert found["sequence"].tolist() == [40, 3, 7]
        assert found["slice"].tolist() == ["post_tool", "post_tool", "tool:search"]
        assert found["tool"].tolist()[1] == "<script>\u202e"
        assert np.isnan(found["share"]).tolist() == [False, True, False]
        _, second, third = np.split(found["token_ids"], found["end"][:-1])
        assert (second.tolist(), third.tolist()) == ([3000, 3001, 3002], [7000 + i for i in range(7)])
        np.testing.assert_array_equal(found["logprobs"], np.repeat([[-1], [-2]], 50, axis=1))
        np.testing.assert_array_equal(found["sampled"], ~found["tool_output"])
    assert path.parent == journals
    assert path.stat().st_mode & 0o777 == 0o600


def test_each_run_has_a_file_of_its_own():
    assert len({unused() for _ in range(3)}) == 3


def test_it_never_grows_beyond_its_limit(monkeypatch):
    path = unused()
    monkeypatch.setattr(file, "LARGEST", 30_000)
    save(path, [sequence(400 + i) for i in range(50)])
    assert path.stat().st_size <= 30_000
    with np.load(path) as found:
        assert found["sequence"].tolist() == [400, 401]


def test_all_that_can_be_kept_is_less_than_the_limit():
    path = unused()
    save(path, [sequence(512) for _ in range(1000)])
    with np.load(path) as found:
        assert len(found["end"]) > 384  # 16 findings, 3 steps of each, 8 sequences of each step
    assert path.stat().st_size <= file.LARGEST


def test_what_stood_there_stays_where_the_disk_takes_no_more(monkeypatch):
    path = unused()
    save(path, [sequence(5)])

    def full(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        save(path, [sequence(6)])
    monkeypatch.undo()
    with np.load(path) as found:
        assert found["sequence"].tolist() == [5]
    assert [one.name for one in path.parent.iterdir()] == [path.name]
