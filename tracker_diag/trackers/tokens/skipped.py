"""What cannot be read of a token log: it ends the replay, or is left out and counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tracker_diag.errors import SourceError


@dataclass
class Skipped:
    """What was left out since it could not be read; without `allowed` the first such thing is raised."""

    allowed: bool = False
    count: int = 0
    first: str = ""
    """The error of the first of them."""

    def __call__(self, error: SourceError) -> None:
        """Leave out what `error` is about."""
        if not self.allowed:
            raise error
        self.include(Skipped(count=1, first=str(error)))

    @contextmanager
    def instead(self) -> Iterator[None]:
        """What the block reads is left out, should it raise SourceError."""
        try:
            yield
        except SourceError as error:
            self(error)

    def include(self, other: "Skipped") -> None:
        """Count what another process has left out."""
        self.count += other.count
        self.first = self.first or other.first
