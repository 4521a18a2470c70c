import tracemalloc
import zipfile
from io import BytesIO

import numpy as np
import pytest

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.sb3 import read_evaluations, read_monitor


def test_evaluations_become_means_by_environment_step(tmp_path):
    file = tmp_path / "evaluations.npz"
    results = np.array([[1.0, 3.0], [5.0, 5.0]])
    np.savez(file, timesteps=np.array([1000, 2000]), results=results, ep_lengths=np.array([[10, 20], [30, 30]]))
    assert read_evaluations(file, "it").rows == {
        1000: {"eval/mean_reward": 2.0, "eval/std_reward": 1.0, "eval/mean_ep_length": 15.0},
        2000: {"eval/mean_reward": 5.0, "eval/std_reward": 0.0, "eval/mean_ep_length": 30.0},
    }
    np.savez(file, timesteps=[5], results=[[1.0]], successes=[[True, False]])
    assert read_evaluations(file, "it").rows[5]["eval/success_rate"] == 0.5


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": [1]}, "arrays a, expected timesteps and results"),
        ({"timesteps": [1, 2], "results": [[1.0]]}, r"results: float64 \(1, 1\) given, expected numbers a timestep"),
        ({"timesteps": [1], "results": [["x"]]}, "results: 4 bytes for <U1"),
        ({"timesteps": [1.5], "results": [[1.0]]}, "timesteps: step is '1.5', expected a whole number"),
        ({"timesteps": [1], "results": np.array([[1], [1, 2]], object)}, "bytes for object"),
        ({"timesteps": [], "results": np.empty((0, 5))}, "no metrics"),
    ],
)
def test_arrays_that_are_no_evaluations(tmp_path, arrays, message):
    file = tmp_path / "evaluations.npz"
    np.savez(file, **arrays)
    with pytest.raises(SourceError, match=message):
        read_evaluations(file, "it")


MONITOR = '#{"t_start": 100.5, "env_id": "Ant-v3"}\nr,l,t,is_success\n-5.5,10,1.5,False\n7,15,3.5,True\n'


def test_a_monitor_file_counts_environment_steps(tmp_path):
    file = tmp_path / "monitor.csv"
    file.write_text(MONITOR + "1.0,2")
    run = read_monitor(file, "it")
    assert run.rows == {
        10: {"monitor/r": -5.5, "monitor/l": 10.0, "monitor/is_success": 0.0},
        25: {"monitor/r": 7.0, "monitor/l": 15.0, "monitor/is_success": 1.0},
    }
    assert run.seconds == {10: 0.0, 25: 2.0}
    assert run.config == {"t_start": 100.5, "env_id": "Ant-v3"}
    assert run.notes == ("the last row, at line 5, breaks off and was left out",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#{broken\nr,l,t\n", r"monitor\.csv:1: no header of a monitor file"),
        ('#{"a": 1}\nx,y\n', r"monitor\.csv:2: columns x,y, expected r, l and t"),
        ('#{"a": 1}\nr,l,t\n', "it: no metrics"),
    ],
)
def test_what_is_wrong_in_a_monitor_file(tmp_path, text, message):
    file = tmp_path / "monitor.csv"
    file.write_text(text)
    with pytest.raises(SourceError, match=message):
        read_monitor(file, "it")


def member(shape, data=b"", dtype="<f8"):
    """An array as numpy writes it, whose header says what it likes."""
    out = BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue() + data


@pytest.mark.parametrize("claimed", [(10**12, 3), (1 << 40,), (2, 10**9)])
def test_an_archive_that_claims_more_than_it_holds_costs_no_memory(tmp_path, claimed):
    file = tmp_path / "evaluations.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("timesteps.npy", member((2,), bytes(16), "<i8"))
        archive.writestr("results.npy", member(claimed, bytes(1000)))
    with pytest.raises(SourceError, match=r"no arrays of numbers: results: 1000 bytes for float64"):
        read_evaluations(file, "it")


@pytest.mark.nightly
def test_an_archive_that_unpacks_to_gigabytes_is_left_alone(tmp_path):
    file = tmp_path / "evaluations.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("timesteps.npy", member((2,), bytes(16), "<i8"))
        with archive.open("results.npy", "w") as out:
            out.write(member((1 << 26,)))
            for _ in range(512):
                out.write(bytes(1 << 20))
    assert file.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="results has more than 256 MiB"):
            read_evaluations(file, "it")
        assert tracemalloc.get_traced_memory()[1] < 600 << 20
    finally:
        tracemalloc.stop()
