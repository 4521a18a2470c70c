"""What was odd about a source: counted by kind, each kind reported once with its first case."""


class Odd:
    """Counts oddities; nothing that a reader leaves out is left out silently."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, str]] = {}

    def count(self, what: str, first: str, n: int = 1) -> None:
        """Count `n` more of `what`, a plural; `first` describes only the first one."""
        before, earlier = self._counts.get(what, (0, first))
        self._counts[what] = (before + n, earlier)

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each kind."""
        return tuple(f"{what}: {n}, first {first}" for what, (n, first) in self._counts.items())
