"""What guards do to the steps of an optimiser of torch, for integrations: a smaller learning rate, or no step."""

from typing import Any

from tracker_diag.guards.decision import Decision


class Steps:
    """Scales the learning rate within each step of `optimizer`, so that schedulers and logs see their own.

    A step that is left out changes no parameter: its gradients are zeros, and its learning rate is. Moments of the
    optimiser decay. It uses the optimiser's own hooks; `close` takes them off.

    Args:
        optimizer: a `torch.optim.Optimizer`, or accelerate's wrapper around one.
    """

    def __init__(self, optimizer: Any) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)
        self._factor, self._left_out, self._own = 1.0, 0, list[Any]()  # how many steps are left out
        self._hooks = (inner.register_step_pre_hook(self._before), inner.register_step_post_hook(self._after))

    def follow(self, decision: Decision) -> None:
        """Do so from the next step on, until the next decision."""
        self._factor = decision.lr_factor
        if decision.stop == "update":
            self._left_out = -1  # all of them
        elif decision.skip_batch or self._left_out < 0:
            self._left_out = int(decision.skip_batch)

    def close(self) -> None:
        """Leave the optimiser as it was."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, optimizer: Any, *_: Any) -> None:
        factor = 0.0 if self._left_out else self._factor
        self._own = [group["lr"] for group in optimizer.param_groups]
        if factor != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
        if self._left_out:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.zero_()

    def _after(self, optimizer: Any, *_: Any) -> None:
        self._left_out = min(self._left_out, 0)
        for group, own in zip(optimizer.param_groups, self._own, strict=True):
            group["lr"] = own
