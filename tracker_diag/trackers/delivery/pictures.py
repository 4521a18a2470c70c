"""Pictures: histograms and tables that wait in memory for their step, as they are too large for a journal."""

from collections import OrderedDict
from collections.abc import Sequence

from tracker_diag.records import Record

STEPS = 200
"""Steps whose pictures may wait; the histograms of a step take about 7 kB."""


class Pictures:
    """By the number of their entry, the oldest first. Its owner has the lock."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, list[Record]] = OrderedDict()

    @property
    def crowded(self) -> bool:
        """Whether some would soon have to go."""
        return len(self._waiting) > STEPS // 2

    def add(self, number: int, pictures: Sequence[Record]) -> int:
        """Keep `pictures`; how many of the oldest went for them."""
        self._waiting[number] = list(pictures)
        dropped = 0
        while len(self._waiting) > STEPS:
            dropped += len(self._waiting.popitem(last=False)[1])
        return dropped

    def take(self, number: int) -> list[Record]:
        """Those of an entry, which wait no more."""
        return self._waiting.pop(number, [])

    def put_back(self, number: int, pictures: list[Record]) -> None:
        """What could not be delivered comes first again."""
        self._waiting[number] = pictures
        self._waiting.move_to_end(number, last=False)
