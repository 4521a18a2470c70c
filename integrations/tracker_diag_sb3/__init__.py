"""Stable-Baselines3: the ratios of every PPO update, and the metrics of any algorithm, into the diagnostics.

    model.learn(100_000, callback=DiagnosticsCallback())

Findings go to the run of W&B, MLflow or Trackio that is underway when training starts. They also go next to the event
files of `tensorboard_log`. The state of the diagnostics is saved with the model: `learn(reset_num_timesteps=False)` of
a loaded model continues with its baselines. Here a token is an action of the environment. Each is a sequence of its
own, as each is a sample in PPO's loss.
"""

from typing import TYPE_CHECKING

from tracker_diag.attach.kit import on_demand

if TYPE_CHECKING:
    from tracker_diag_sb3.callback import DiagnosticsCallback as DiagnosticsCallback  # what __getattr__ gives

__all__ = ["INSTALLED_AS", "SEES", "TESTED", "DiagnosticsCallback"]

INSTALLED_AS = ("stable-baselines3",)
TESTED = "2.9"
SEES: dict[str, str] = {
    "policy": "PPO, and sb3-contrib's recurrent PPO without its padding: each action's log-probability in the last "
    "epoch of an update, less that at the time of sampling",
    "env": "PPO with several environments: by their ids if these differ, else by their number",
    "advantage": "PPO: by the sign of the advantage, normalised if the loss normalises it",
    "samples": "any algorithm, of episodes that SB3's Monitor wrapper has seen to the end: return, is_success, "
    "TimeLimit.truncated and environment. Their mean is the reward that rules look at, and not rollout/ep_rew_mean, a "
    "mean of the last hundred. A2C, DQN, SAC and TD3 have further rows of ours: one after each hundredth of the "
    "run, if an episode has ended in it",
    "learner": "any algorithm: how large a step's reward is as the learner gets it. Whether it agrees with the return "
    "that the wrapper has recorded. How many time limits have passed without the end of an episode",
    "metrics": "all that the model's logger dumps, of any algorithm, under its step",
    "not": "A2C, DQN, SAC and TD3 have no ratio: metrics and episodes alone. "
    "There are no tools, so every action is text_only, and rules about post_tool stay blind",
}


__getattr__ = on_demand("tracker_diag_sb3.callback", "DiagnosticsCallback", "stable_baselines3", "sb3")
