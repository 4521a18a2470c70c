"""Every way of logging to every tracker is heard, of the wrapped object and of the raw one, and changes nothing."""

import copy
import math
import pickle
import signal
import threading
from importlib import import_module
from itertools import groupby

import numpy as np
import pytest

from tests.conftest import batch
from tests.trackers.adapters import ADAPTERS
from tracker_diag import Monitor, wrap
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.slow

STEPS = 9
BAD = 6
"""The step at which the loss is NaN, which is an alert."""
SERIES = ("diag/policy/all/p95", "diag/policy/post_tool/p95", "diag/reference/text_only/p95", "diag/rule/NUM004")


def metrics(step):
    return {"loss": math.nan if step == BAD else 1 / (step + 1), "reward": float(step)}


def train(log, diag=None):
    """The same tensors and metrics, whichever way they are logged; `diag` is None for a run without us."""
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        if diag is not None:
            diag.observe(**batch(rng))
        log(metrics(step), step)
    if diag is not None:
        diag.close()


@pytest.fixture(scope="module")
def by_hand():
    """What is logged by hand, without a tracker: rows of numbers by step, and the alert."""
    monitor = Monitor([seen := CapturingTracker()])
    train(monitor.log, monitor)
    rows = {step: seen.scalars(step) for step in seen.records}
    assert next(step for step, row in rows.items() if row.get("diag/rule/NUM004") == 2) == BAD
    return rows


def singly(log):
    """A call for each metric."""

    def log_each(values, step):
        for name, value in values.items():
            log(name, value, step)

    return log_each


def by_batch(client, run_id):
    from mlflow.entities import Metric

    def log(values, step):
        client.log_batch(run_id, [Metric(name, value, 0, step) for name, value in values.items()])

    return log


MLFLOW_WAYS = {
    "module": lambda mlflow, run: (wrap(mlflow), mlflow.log_metrics),
    "module, one by one": lambda mlflow, run: (wrap(mlflow), singly(mlflow.log_metric)),
    "wrapped run, raw module": lambda mlflow, run: (wrap(run), mlflow.log_metrics),
    "wrapped client": lambda mlflow, run: (
        w := wrap(mlflow.MlflowClient(), run_id=run.info.run_id), by_batch(w, run.info.run_id),
    ),
    "wrapped client, one by one": lambda mlflow, run: (
        w := wrap(mlflow.MlflowClient(), run_id=run.info.run_id),
        singly(lambda name, value, step: w.log_metric(run.info.run_id, name, value, step=step)),
    ),
    "another client": lambda mlflow, run: (wrap(mlflow), by_batch(mlflow.MlflowClient(), run.info.run_id)),
    "function taken before": lambda mlflow, run: (mlflow.log_metrics, wrap(mlflow))[::-1],
    "autologging": lambda mlflow, run: (wrap(mlflow), queued(mlflow, run.info.run_id)),
    "callback of transformers": lambda mlflow, run: (wrap(mlflow), by_callback()),
    "logger of Lightning": lambda mlflow, run: (wrap(mlflow), lightning_logger(mlflow, run).log_metrics),
    "wrapped logger of Lightning": lambda mlflow, run: (w := wrap(lightning_logger(mlflow, run)), w.log_metrics),
}  # fmt: skip


def queued(mlflow, run_id):
    """As autologging logs: from a queue of its own."""
    from mlflow.utils.autologging_utils.client import MlflowAutologgingQueueingClient

    def log(values, step):
        client = MlflowAutologgingQueueingClient()
        client.log_metrics(run_id, values, step=step)
        client.flush(synchronous=True)

    return log


def by_callback():
    """As the Trainer logs to MLflow."""
    import torch
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations import MLflowCallback

    arguments, callback, model = TrainingArguments(), MLflowCallback(), torch.nn.Linear(1, 1)

    def log(values, step):
        state = TrainerState(global_step=step, is_world_process_zero=True)
        callback.on_log(arguments, state, TrainerControl(), values, model=model)

    return log


def lightning_logger(mlflow, run):
    from lightning.pytorch.loggers import MLFlowLogger

    return MLFlowLogger(run_id=run.info.run_id, tracking_uri=mlflow.get_tracking_uri())


WANDB_WAYS = {
    "run": lambda wandb, run: (wrap(run), run.log),
    "global": lambda wandb, run: (wrap(run), lambda values, step: wandb.log(values, step=step)),
    "wrapped module": lambda wandb, run: (w := wrap(wandb), w.log),
    "wrapped module, raw run": lambda wandb, run: (wrap(wandb), run.log),
    "automatic steps, global": lambda wandb, run: (wrap(run), lambda values, step: wandb.log(values)),
    "two calls": lambda wandb, run: (wrap(run), lambda values, step: [
        wandb.log({name: value}, step=step, commit=name == "reward") for name, value in values.items()
    ]),
}  # fmt: skip


TRACKIO_WAYS = {
    "module": lambda trackio, run: (wrap(trackio), trackio.log),
    "wrapped module, raw run": lambda trackio, run: (wrap(trackio), run.log),
    "wrapped run": lambda trackio, run: (w := wrap(run), w.log),
    "wrapped run, raw module": lambda trackio, run: (wrap(run), trackio.log),
    "automatic steps": lambda trackio, run: (wrap(run), lambda values, step: trackio.log(values)),
}


TENSORBOARD_WAYS = {
    "writer": lambda library, run: (w := wrap(run), singly(lambda *scalar: w.add_scalar(*scalar, 100.0))),
}
WAYS = {
    ("mlflow", "mlflow"): MLFLOW_WAYS, ("wandb", "wandb"): WANDB_WAYS, ("trackio", "trackio"): TRACKIO_WAYS,
    ("tensorboard", "torch.utils.tensorboard"): TENSORBOARD_WAYS, ("tensorboardX", "tensorboardX"): TENSORBOARD_WAYS,
}  # fmt: skip
"""By tracker and module: from module and run to what is wrapped, and the function that is logged by."""
ALL = [
    pytest.param(*names, way, id=f"{names[0]}: {name}") for names, ways in WAYS.items() for name, way in ways.items()
]


@pytest.mark.nightly
@pytest.mark.parametrize(("tracker", "module", "way"), ALL)
def test_it_is_heard_and_your_rows_stay_as_they_are(request, tracker, module, way, by_hand):
    adapter = ADAPTERS[tracker](request)
    more = {"reinit": "finish_previous"} if tracker == "wandb" else {}  # so that it is the run of `wandb.log`
    start = adapter.runs.start if more else adapter.start
    run = start("plain", **more)
    train(lambda values, step: adapter.log(run, values, step))
    adapter.end(run)
    run = start("watched", **more)
    wrapped, log = way(import_module(module), run)
    train(log, wrapped.diag)
    assert wrapped.diag.failures == []
    adapter.end(run)
    assert repr(adapter.own("watched")) == repr(adapter.own("plain"))  # so that NaN equals itself
    for name in SERIES:
        expected = {step: row[name] for step, row in by_hand.items() if name in row}
        logged = adapter.series("watched", name)
        if name.startswith("diag/rule/"):  # of a state that stays, MLflow keeps the first and the last
            assert {min(expected), max(expected)} <= logged.keys() <= expected.keys()
            expected = {step: expected[step] for step in logged}
        assert logged == pytest.approx(expected, rel=1e-6), name


class Own:
    def __init__(self):
        self.rows = []

    def log(self, data, step=None):
        self.rows.append((dict(data), step))
        return len(self.rows)

    def finish(self):
        self.rows.append("finished")


def test_a_logger_of_your_own(by_hand):
    own = Own()
    wrapped = wrap(own)
    train(own.log, wrapped.diag)
    user = [(row, step) for row, step in own.rows if "reward" in row]
    assert repr(user) == repr([(metrics(step), step) for step in range(STEPS)])
    rows = {step: row for row, step in own.rows if "reward" not in row}
    for step, row in by_hand.items():
        assert {key: rows[step].get(key) for key in row} == pytest.approx(row, rel=1e-9), step
    assert "log" not in vars(own)


def test_a_logger_that_is_heard_is_copied_and_pickled_as_ever():
    own = Own()
    wrapped = wrap(own)
    own.log({"a": 1}, 4)
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):  # noqa: S301  # our own
        assert other.log({"b": 1}, 9) == len(own.rows) + 1
    assert wrapped.diag.step == 4
    assert own.rows == [({"a": 1}, 4)]


def test_what_is_wrapped_already_has_one_monitor():
    own = Own()
    first = wrap(own).diag
    assert wrap(own).diag is first
    first.close()
    assert wrap(own).diag is not first


def test_the_hooks_are_off_once_the_diagnostics_are_closed(mlflow_store):
    import mlflow

    log_batch = mlflow.MlflowClient.log_batch
    with mlflow.start_run():
        outer = wrap(mlflow).diag
        with mlflow.start_run(nested=True):
            inner = wrap(mlflow).diag
            assert mlflow.MlflowClient.log_batch is not log_batch
            mlflow.log_metrics({"loss": 1.0}, step=3)
        assert (inner.step, outer.step) == (3, None)
        assert mlflow.diag is outer
        mlflow.log_metrics({"loss": 1.0}, step=4)
        assert outer.step == 4
        assert not any(inner.health.values())
    assert mlflow.MlflowClient.log_batch is log_batch


@pytest.mark.nightly
def test_two_runs_that_alternate_in_one_process(mlflow_store):
    import mlflow

    client = mlflow.MlflowClient()
    ids = [client.create_run("0").info.run_id for _ in range(2)]
    monitors = [wrap(client, run_id=run_id).diag for run_id in ids]
    for step in range(4):
        for number, run_id in enumerate(ids):
            client.log_metric(run_id, "loss", 1.0, step=10 * number + step)
    assert [monitor.close().last_step for monitor in monitors] == [3, 13]


@pytest.mark.nightly
def test_mlflow_without_steps_is_one_after_the_other(mlflow_store, make_batch, rng):
    """To MLflow a call without a step is one of step 0; one tensor batch each distinguishes them."""
    import mlflow

    with mlflow.start_run():
        run = wrap(mlflow)
        for _ in range(4):
            run.diag.observe(**make_batch(rng))
            mlflow.log_metrics({"loss": 1.0})
            mlflow.log_metric("reward", 0.5)
        assert run.diag.close().steps == 4


def test_tensors_that_say_their_step_make_steps_of_calls_that_do_not(mlflow_store, make_batch, rng):
    import mlflow

    with mlflow.start_run():
        run = wrap(mlflow)
        for step in range(5, 9):
            run.diag.observe(**make_batch(rng), step=step)
            mlflow.log_metrics({"loss": 1.0})
        summary = run.diag.close()
    assert (summary.first_step, summary.last_step, summary.steps) == (5, 8, 4)


@pytest.mark.nightly
def test_what_mlflow_measures_of_the_machine_is_no_step(mlflow_store):
    import mlflow

    with mlflow.start_run():
        run = wrap(mlflow)
        mlflow.log_metrics({"loss": 1.0}, step=1)
        mlflow.log_metrics({"system/cpu_utilization_percentage": 3.0}, step=700)
        mlflow.log_metrics({"loss": 1.0}, step=2)
        assert (run.diag.step, run.diag.failures) == (2, [])


def test_the_tracker_ends_before_the_training_does(mlflow_store, make_batch, rng, caplog):
    import mlflow

    with mlflow.start_run():
        run = wrap(mlflow)
        run.diag.observe(**make_batch(rng))
        mlflow.log_metrics({"loss": 1.0}, step=0)
    for _ in range(3):
        run.diag.observe(**make_batch(rng))
    assert run.diag.health["after_close"] == 3
    assert sum("the run that was watched has ended" in record.message for record in caplog.records) == 1


def test_from_threads_and_signal_handlers(make_batch, rng):
    own = Own()
    monitor = wrap(own).diag
    monitor.observe(**make_batch(rng))

    def handler(*_):
        own.log({"from": 1.0}, 1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        own.log({"loss": 1.0}, 0)
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    thread = threading.Thread(target=own.log, args=({"loss": 1.0}, 2))
    thread.start()
    thread.join(60)
    assert [step for step, _ in groupby(step for _, step in own.rows)] == [0, 1, 2]
    assert (monitor.step, monitor.failures) == (2, [])
