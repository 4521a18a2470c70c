"""Read by type checkers alone: a tracker, and a logger of one's own, whose variables are declared."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Mapping

from typing_extensions import assert_type

import tracker_diag as td


class Mine:
    diag: td.Monitor

    def log(self, data: Mapping[str, float], step: int) -> bool:
        return bool(data) and step > 0


mine: Mine = td.wrap(Mine(), window=4)
assert_type(mine.diag, td.Monitor)
assert_type(mine.log({"loss": 0.5}, 3), bool)
mine.lgo({"loss": 0.5}, 3)  # type: ignore[attr-defined]  # a slip is reported

diag: td.Monitor = td.wrap(print).diag
diag.log({"loss": 0.5}, 3)
td.wrap(print, windw=4)  # type: ignore[call-arg]  # of an option too
