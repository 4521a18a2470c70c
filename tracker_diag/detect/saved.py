"""What is saved of an object: the attributes that its class names, as JSON values."""

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar


class Saved:
    """Something that is saved and continued. An attribute that has a `state_dict` of its own is saved by that."""

    kept: ClassVar[tuple[str, ...]] = ()
    """The attributes that are saved, next to those of the classes that it is derived from."""

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {name: _plain(getattr(self, name)) for name in self._kept()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        for name in self._kept():
            before = getattr(self, name)
            if hasattr(before, "load_state_dict"):
                before.load_state_dict(state[name])
            else:
                setattr(self, name, _as(before, state[name]))

    def _kept(self) -> list[str]:
        return [name for cls in type(self).__mro__ for name in vars(cls).get("kept", ())]


def _plain(value: Any) -> Any:
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if isinstance(value, list | tuple | deque):
        return [_plain(part) for part in value]
    if isinstance(value, str):
        return str(value)  # a text of a class of its own is none that a checkpoint is read with
    return dict(value) if isinstance(value, dict) else value


def _as(before: Any, value: Any) -> Any:
    """`value` out of JSON in the type of `before`: a list is a tuple, if that was no list and no queue."""
    if isinstance(value, dict):
        return dict(value)
    if not isinstance(value, list):
        return value
    parts = [tuple(part) if isinstance(part, list) else part for part in value]
    if isinstance(before, deque):
        return deque(parts, before.maxlen)
    return parts if isinstance(before, list) else tuple(parts)
