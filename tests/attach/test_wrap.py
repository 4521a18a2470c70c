import copy
import os
import pickle
import threading

import pytest

from tracker_diag import DiagError, Monitor, wrap


def test_a_run_that_is_not_there_yet_is_reported():
    with pytest.raises(DiagError, match=r"None given, expected a run; begin it first, by wandb.init\(\)"):
        wrap(None)


@pytest.mark.parametrize("target", [3, "wandb", object()])
def test_what_cannot_be_wrapped_is_reported_with_what_can(target):
    with pytest.raises(DiagError) as error:
        wrap(target)
    assert str(error.value) == (
        f"target: builtins.{type(target).__qualname__} given, expected a run, module or writer of mlflow, tensorboard, "
        "trackio, wandb; a logger of Lightning; a tracker of accelerate; or anything with log(data, step), "
        "log_metrics(metrics, step) or a call of (metrics, step)"
    )


@pytest.mark.slow
def test_a_wrapped_client_forwards_everything_else(mlflow_store):
    import mlflow

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    wrapped = wrap(client, run_id=run_id)
    wrapped.set_tag(run_id, "mine", "1")
    assert client.get_run(run_id).data.tags["mine"] == "1"
    assert repr(client) in repr(wrapped)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = wrapped.no_such_thing
    assert copy.copy(wrapped).diag is wrapped.diag
    wrapped.diag.close()


class OwnLogger:
    """As many loops have one; keeps the calls as they came."""

    def __init__(self):
        self.calls, self.ended = [], 0

    def log(self, data, step=None, **more):
        self.calls.append((dict(data), step, more))
        return "logged"

    def finish(self):
        self.ended += 1


class Metrics:
    def __init__(self):
        self.calls = []

    def log_metrics(self, metrics, step):
        self.calls.append((dict(metrics), step, {}))


def own(calls):
    """Your calls, without those of the diagnostics."""
    return [call for call in calls if not all(key.startswith("diag/") for key in call[0])]


CALLS = [(({"a": 1.0},), {"step": 0}), (({"b": 2.0}, 0), {}), (({"a": float("nan")}, 1), {}), (({"t": "x"}, 5), {})]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OwnLogger, Metrics, "function"])
def test_anything_that_takes_metrics_and_a_step(kind, rng, make_batch):
    def logged(target):
        name = "log" if kind is OwnLogger else "log_metrics"
        for args, kwargs in CALLS:
            (target if kind == "function" else getattr(target, name))(*args, **kwargs)

    def a_target():
        calls = []
        if kind == "function":
            return calls, lambda metrics, step: calls.append((dict(metrics), step, {}))
        target = kind()
        return target.calls, target

    plain, target = a_target()
    logged(target)
    calls, target = a_target()
    wrapped = wrap(target)
    wrapped.diag.observe(**make_batch(rng))
    logged(wrapped)
    wrapped.diag.close()
    assert repr(own(calls)) == repr(plain)
    diagnostics = {step: data for data, step, _ in calls if any(key.startswith("diag/") for key in data)}
    assert "diag/policy/all/p95" in diagnostics[0]
    assert wrapped.diag.summary().steps == 3
    steps = [step for _, step, _ in calls]
    assert steps == sorted(steps)


def test_the_targets_own_answer_and_its_own_end_come_through():
    target = OwnLogger()
    wrapped = wrap(target)
    assert wrapped.log({"a": 1.0}, step=0) == "logged"
    wrapped.finish()
    assert target.ended == 1
    assert wrapped.diag.summary().steps == 1
    assert not hasattr(wrapped, "log_metrics")
    with pytest.raises(TypeError, match="missing"):
        wrapped.log()


@pytest.mark.slow
def test_it_is_the_object_itself_and_a_copy_has_the_same_monitor():
    target = OwnLogger()
    wrapped = wrap(target)
    assert wrapped is target
    copied = copy.deepcopy(wrapped)
    assert copied.diag is target.diag
    copied.log({"a": 1.0}, step=3)  # it is logged to itself, and is not heard
    assert target.diag.step is None
    assert not target.calls
    assert pickle.loads(pickle.dumps(wrapped)).diag is None  # noqa: S301  # our own


def test_what_takes_no_attribute_is_refused_before_anything_begins():
    class Slots:
        __slots__ = ("calls",)

        def log(self, data, step=None):
            self.calls = [data]

    target = Slots()
    with pytest.raises(DiagError, match=r"Slots with slots given, expected .*wrap\(target\.log\)"):
        wrap(target)
    logged = wrap(target.log)
    logged({"a": 1.0}, 2)
    assert target.calls == [{"a": 1.0}]
    assert logged.diag.step == 2


@pytest.mark.slow
def test_a_function_is_wrapped_once_and_so_is_what_stands_for_it():
    calls = []

    def log(metrics, step):
        calls.append(step)

    first = wrap(log)
    assert first.__wrapped__ is log
    assert wrap(first) is first
    assert wrap(log).diag is first.diag
    with pytest.raises(DiagError, match="wrapped already, and window given"):
        wrap(first, window=4)


@pytest.mark.slow
def test_your_log_from_another_thread_loses_no_step(rng, make_batch):
    calls = []
    wrapped = wrap(lambda metrics, step: calls.append((dict(metrics), step, {})))

    def log(steps):
        for step in steps:
            wrapped({"loss": 0.5}, step)

    for start in range(0, 200, 20):
        thread = threading.Thread(target=log, args=(range(start, start + 20),))
        thread.start()
        wrapped.diag.observe(**make_batch(rng))
        thread.join()
    wrapped({"loss": 0.5}, 200)  # of the last tensors, which may have come after the thread's last step
    wrapped.diag.close()
    assert [step for _, step, _ in own(calls)] == list(range(201))
    assert wrapped.diag.summary().steps == 201
    assert wrapped.diag.failures == []


@pytest.mark.slow
def test_a_fork_trains_on_and_writes_nothing(rng, make_batch, tmp_path):
    calls = []
    wrapped = wrap(lambda metrics, step: calls.append(step))
    wrapped.diag.observe(**make_batch(rng))
    wrapped({"loss": 0.5}, 0)
    child = os.fork()
    if child == 0:  # a worker of a data loader, say
        wrapped.diag.observe(**make_batch(rng))
        wrapped({"loss": 0.5}, 1)
        wrapped.diag.close()
        os._exit(0 if calls == [0, 0, 1] else 1)
    assert os.waitpid(child, 0)[1] == 0
    wrapped({"loss": 0.5}, 1)
    assert wrapped.diag.close().steps == 2


@pytest.mark.slow
def test_settings_come_from_the_tracker_and_name_the_algorithm(mlflow_store):
    import mlflow

    with mlflow.start_run():
        mlflow.log_params({"algorithm": "GSPO", "lr": "1e-6"})
        wrapped = wrap(mlflow)
        assert wrapped.diag.config == {"algorithm": "GSPO", "lr": "1e-6"}
        assert wrapped.diag.algorithm == "gspo"
        wrapped.diag.close()


class Plain:
    def __init__(self):
        self.rows = []

    def log(self, data, step=None):
        self.rows.append((dict(data), step))


def test_a_diag_of_the_targets_own_is_reported_with_the_way_out():
    class Doctor(Plain):
        def diag(self, text):
            return text

    message = r"Doctor with a `diag` of its own given, expected none, .*; rename it, or .* wrap\(target\.log\)"
    with pytest.raises(DiagError, match=message):
        wrap(Doctor())
    target = Doctor()
    wrapped = wrap(target.log)
    wrapped({"loss": 0.5}, step=2)
    assert target.rows[-1] == ({"loss": 0.5}, 2)
    assert wrapped.diag.step == 2


@pytest.mark.slow
def test_a_diag_that_is_only_declared_or_answered_to_is_none():
    class Declared(Plain):
        diag: Monitor

    class Answers(Plain):
        def __getattr__(self, name):
            return name

    assert isinstance(wrap(Declared()).diag, Monitor)
    assert isinstance(wrap(Answers()).diag, Monitor)
    assert wrap(Answers()).anything == "anything"
