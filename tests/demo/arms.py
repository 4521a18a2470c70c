"""The arms of the demo, each trained once for all tests and all workers of a test run."""

import fcntl
from dataclasses import replace

import pytest


@pytest.fixture(scope="session")
def trained_arm(shared_folder):
    """Gives the first steps of an arm. A test that needs more steps than are kept trains on from the last one."""

    def steps(arm, count, seed=0):
        import torch

        from tracker_diag.demo.grpo import ARMS, FLAT_STEPS

        # Arms that differ in their ramp alone are one training until it begins.
        flat = {name: replace(known, says="", share=0.15, width=0.05) for name, known in ARMS.items()}
        first = next(name for name in ARMS if flat[name] == flat[arm])
        with (shared_folder / f"demo-{seed}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            begun, kept = (shared_folder / f"demo-{seed}-{name}.pt" for name in (f"{first}-flat", arm))
            _train(begun, None, flat[first], seed, min(count, FLAT_STEPS))
            if count > FLAT_STEPS:
                _train(kept, begun, ARMS[arm], seed, count)
            result = torch.load(kept if count > FLAT_STEPS else begun, weights_only=False)
        torch.set_num_threads(1)
        return result[1][:count]

    return steps


def _train(file, begun, arm, seed, count):
    """Train `arm` to `count` steps, on from what `file` or else `begun` has, and keep them with the training."""
    import torch

    from tracker_diag.demo.grpo import Training

    start = file if file.exists() else begun
    training, steps = torch.load(start, weights_only=False) if start else (Training(arm, seed), [])
    if len(steps) < count or start is begun:
        training.arm = arm
        steps += [training.step(step) for step in range(len(steps), count)]
        torch.save((training, steps), file)
