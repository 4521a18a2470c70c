import numpy as np
import pytest

from tracker_diag import SourceError
from tracker_diag.runs.sources.sb3 import read_evaluations, read_monitor


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
        ({"timesteps": [1], "results": [["x"]]}, "results: <U1"),
        ({"timesteps": [1.5], "results": [[1.0]]}, "timesteps: step is '1.5', expected a whole number"),
        ({"timesteps": [1], "results": np.array([[1], [1, 2]], object)}, "Object arrays cannot be loaded"),
        ({"timesteps": [], "results": np.empty((0, 5))}, "no metrics"),
    ],
)
def test_arrays_that_are_no_evaluations(tmp_path, arrays, message):
    file = tmp_path / "evaluations.npz"
    np.savez(file, **arrays)
    with pytest.raises(SourceError, match=message):
        read_evaluations(file, "it")


def test_an_archive_that_breaks_off(tmp_path):
    file = tmp_path / "evaluations.npz"
    np.savez(file, timesteps=np.arange(1000), results=np.ones((1000, 5)))
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(SourceError, match=r"evaluations\.npz: no arrays of numbers: "):
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
    assert run.notes == ("the last line, 5, breaks off and was left out",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MONITOR + "oops\n1,2,3,True\n", r"monitor\.csv:5: 'oops', expected r,l,t,is_success"),
        ("#{broken\nr,l,t\n", r"monitor\.csv:1: no header of a monitor file"),
        ('#{"a": 1}\nx,y\n', r"monitor\.csv:2: columns x,y, expected r, l and t"),
        (MONITOR + "1,2.5,3,True\n", r"monitor\.csv:5: step is '2.5'"),
        ('#{"a": 1}\nr,l,t\n', "it: no metrics"),
    ],
)
def test_what_is_wrong_in_a_monitor_file(tmp_path, text, message):
    file = tmp_path / "monitor.csv"
    file.write_text(text)
    with pytest.raises(SourceError, match=message):
        read_monitor(file, "it")
