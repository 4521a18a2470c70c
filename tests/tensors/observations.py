"""Batches of random log-probabilities, how two sums of weights are held against each other, and what may not wait."""

import pytest
import torch


def tensors(rng, size=4, width=12, scale=0.1):
    new = rng.normal(-1, 0.5, (size, width))
    model = rng.random((size, width)) < 0.7
    model[:, 0] = True
    return {"logprobs": new, "old_logprobs": new - scale * rng.normal(size=new.shape), "model_mask": model}


def same(actual, expected):
    assert actual.n == expected.n
    assert actual.ess == pytest.approx(expected.ess, rel=1e-9)
    assert actual.kl_k3 == pytest.approx(expected.kl_k3, rel=1e-9)


class NoWaiting(torch.overrides.TorchFunctionMode):
    """Refuses what would make the host wait for a device: reading a value back, or a shape that hangs on one."""

    WAITS = (
        "item",
        "tolist",
        "nonzero",
        "masked_select",
        "unique",
        "bincount",
        "__bool__",
        "__float__",
        "__int__",
        "cpu",
        "numpy",
    )

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        assert name not in self.WAITS, f"{name} waits for the device"
        if name == "__getitem__":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in index), (
                "a shape hangs on data"
            )
        return func(*args, **(kwargs or {}))
