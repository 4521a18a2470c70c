"""DiagnosticsCallback: hears the results, and looks on while a local learner makes its losses."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback  # pyright: ignore[reportMissingImports]  # Ray pins too much to be in every environment

from tracker_diag import Monitor
from tracker_diag.attach.kit import Hooks, add_active, clip_range, monitor_knowing, resume, watch_once, watching
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.hooks import after, before
from tracker_diag.metrics.series import PAIRS, Pair
from tracker_diag_rllib import SEES, TESTED
from tracker_diag_rllib.results import joined, row, settings

LEARNER = "_learner"
"""Where a group of learners has the one of this process; None where they are remote."""
REMOTE = (
    "no ratios of RLlib are seen, only its metrics: the learners are remote; with num_learners=0 the learner is in "
    "this process"
)

_log = logging.getLogger("tracker_diag")


class DiagnosticsCallback(RLlibCallback):  # pyright: ignore[reportUntypedBaseClass]
    """Made by RLlib in every process; it does something only in that of the algorithm."""

    def __init__(self) -> None:
        super().__init__()
        self.monitor: Monitor | None = None
        self._learner: Any = None
        self._minibatches: list[dict[str, Any]] = []

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        self.begin(algorithm, None)

    def begin(self, algorithm: Any, monitor: Monitor | None, writer: Any = None) -> Monitor:
        """Look on from now on; gives the monitor, a new one if none is given."""
        if (there := watching(algorithm, monitor)) is not None:  # by another callback
            return there
        config = getattr(algorithm, "config", None)
        if monitor is None:
            clip = clip_range(getattr(config, "clip_param", None))
            # PPO's rules are those of any policy with a critic; those that see nothing say so.
            make = partial(Monitor, algorithm="ppo", clip=clip)
            monitor = monitor_knowing(lambda: make(config=settings(config)), "Ray", TESTED)
            seen: set[Pair] = {"policy"} if hasattr(config, "clip_param") and local_learner(algorithm) else set()
            blind = dict.fromkeys(PAIRS.keys() - seen)
            add_active(monitor, *([writer] if writer is not None else []), sees=SEES, blind=blind, tools=False)
        watch_once(algorithm, monitor, "RLlib")
        self.monitor, hooks = monitor, Hooks("Ray", TESTED)
        with hooks.part("the diagnostics are closed when the process ends") as on:
            on.callback(before(algorithm, "cleanup", [], lambda _: monitor.close(), monitor))
        if hasattr(config, "clip_param"):
            with hooks.part("no ratios are seen, only its metrics") as on:
                on.callback(self._look_on(algorithm, monitor))
        with hooks.part(UNSAVED) as on:
            self._save_state(algorithm, monitor, on)
        return monitor

    @staticmethod
    def _save_state(algorithm: Any, monitor: Monitor, on: ExitStack) -> None:
        saved = Saved(monitor)

        def put(folder: Any, given: Mapping[str, Any]) -> None:
            if given.get("filesystem") is None:
                saved.put(folder)

        def find(_: Any, given: Mapping[str, Any]) -> None:
            if "component" not in given.get("kwargs", {}):  # else only a part of it is restored
                saved.find(given["path"])

        on.callback(after(algorithm, "save_to_path", ("path",), put, monitor))
        on.callback(after(algorithm, "restore_from_path", ("path",), find, monitor))
        if (done := algorithm.iteration) and monitor.step is None:
            resume(monitor, None, f"{done} iterations were made without the diagnostics")

    def _look_on(self, algorithm: Any, monitor: Monitor) -> Callable[[], None]:
        self._learner = getattr(algorithm.learner_group, LEARNER)
        if self._learner is None:
            _log.warning(REMOTE)
            return lambda: None
        wanted = ["module_id", "batch", "fwd_out"]
        return after(self._learner, "compute_loss_for_module", wanted, self._seen_loss, monitor)

    def _seen_loss(self, result: Any, given: Mapping[str, Any]) -> None:
        batch, fwd_out = given["batch"], given["fwd_out"]
        module = self._learner.module[given["module_id"]].unwrapped()
        new = module.get_train_action_dist_cls().from_logits(fwd_out["action_dist_inputs"].detach())
        self._minibatches.append(
            {
                "logprobs": new.logp(batch["actions"]).detach().flatten(),
                "old_logprobs": batch["action_logp"].detach().flatten(),
                "advantages": batch["advantages"].detach().flatten(),
                # RLlib adds a step to each episode for the critic, and pads sequences; neither is an action.
                "model_mask": batch["loss_mask"].flatten().bool() if "loss_mask" in batch else None,
            }
        )

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        monitor = self.monitor
        if monitor is None:
            return
        with monitor.guard("integration_errors"):
            minibatches, self._minibatches = self._minibatches, []
            # Of several epochs the last one counts, whose ratios are those of nearly the whole update.
            last = max(len(minibatches) // max(int(getattr(algorithm.config, "num_epochs", None) or 1), 1), 1)
            if minibatches:
                monitor.observe(**joined(minibatches[-last:]))
        with monitor.guard("integration_errors"):
            kl_computed = bool(getattr(algorithm.config, "use_kl_loss", True))
            monitor.log(row(result, kl_computed=kl_computed), int(result["training_iteration"]))


def local_learner(algorithm: Any) -> Any:
    """The learner in this process; None where they are remote."""
    return getattr(getattr(algorithm, "learner_group", None), LEARNER, None)
