"""RLlib: the result of every training iteration, and where the learner is local the ratios of PPO's updates.

    algorithm = PPOConfig().environment("CartPole-v1").build_algo()
    monitor = attach(algorithm)

or, for Ray Tune, which builds the algorithm in another process,

    config.callbacks(DiagnosticsCallback)

Findings go to the run of W&B, MLflow or Trackio that is underway in the algorithm's process. If you pass a `writer`,
they also go next to its event files. Under Tune, whose trackers are in another process, they go to the algorithm's log,
to files there, and to TRACKER_DIAG_NOTIFY.
"""

from typing import TYPE_CHECKING, Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import on_demand
from tracker_diag.errors import require

if TYPE_CHECKING:
    from tracker_diag_rllib.callback import DiagnosticsCallback as DiagnosticsCallback

__all__ = ["INSTALLED_AS", "SEES", "TESTED", "DiagnosticsCallback", "attach"]

INSTALLED_AS = ("ray",)
TESTED = "2.60, new API stack"
SEES: dict[str, str] = {
    "policy": "PPO with a local learner (num_learners=0): each action's log-probability in the last epoch of an "
    "update, less that at the time of sampling",
    "advantage": "PPO with a local learner: by the sign of the advantage",
    "metrics": "every number of each result but its settings, nested names joined by /, under training_iteration",
    "state": "in a checkpoint's folder, found again by restore_from_path, and by from_checkpoint with the callback",
    "not": "remote learners keep their tensors in their own processes: metrics alone. "
    "There are no tools, so every action is text_only, and rules about post_tool stay blind",
}


def attach(algorithm: Any, *, monitor: Monitor | None = None, writer: Any = None) -> Monitor:
    """Watch an `Algorithm` that is built; the monitor is closed by `algorithm.stop()`.

    Args:
        monitor: by default one is made, with the algorithm's settings and the trackers that are underway.
        writer: the `SummaryWriter` that your loop logs with, for a monitor that is made: RLlib has none of its own.
    """
    require("ray.rllib", "rllib")
    from tracker_diag_rllib.callback import DiagnosticsCallback

    callback = DiagnosticsCallback()
    watching = callback.begin(algorithm, monitor, writer)
    if callback.monitor is not None:  # else another one watches already
        present = algorithm.callbacks
        algorithm.callbacks = [*(present if isinstance(present, list) else [present]), callback]
    return watching


__getattr__ = on_demand("tracker_diag_rllib.callback", "DiagnosticsCallback", "ray.rllib", "rllib")
