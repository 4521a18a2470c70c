"""TensorBoard: what is given to a `SummaryWriter`, of torch or tensorboardX."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.hooks import Unlocked, all_off, before
from tracker_diag.trackers.tracker import Listener, Off


def listen(writer: Any, listener: Listener) -> Off:
    """Have `add_scalar`, `add_scalars` and `close` of `writer` heard."""

    def scalar(given: Mapping[str, Any]) -> None:
        listener.hear({given["tag"]: given["scalar_value"]}, given.get("global_step"), None)

    def several(given: Mapping[str, Any]) -> None:
        metrics = {f"{given['main_tag']}/{tag}": value for tag, value in given["tag_scalar_dict"].items()}
        listener.hear(metrics, given.get("global_step"), None)

    own = Unlocked(listener.record)
    return all_off(
        before(writer, "add_scalar", ("tag", "scalar_value", "global_step"), scalar, own),
        before(writer, "add_scalars", ("main_tag", "tag_scalar_dict", "global_step"), several, own),
        before(writer, "close", (), lambda _: listener.end(), own),
    )
