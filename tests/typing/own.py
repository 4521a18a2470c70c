"""Read by type checkers alone: loggers of one's own."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Mapping

from typing_extensions import assert_type

import tracker_diag as td


class Mine:
    def log(self, data: Mapping[str, float], step: int) -> bool:
        return bool(data) and step > 0


class Declared(Mine):
    diag: td.Monitor


mine = td.wrap(Mine(), window=4)
assert_type(mine.diag, td.Monitor)
mine.log({"loss": 0.5}, 3)

declared = td.wrap(Declared())
assert_type(declared, Declared)
assert_type(declared.diag, td.Monitor)
assert_type(declared.log({"loss": 0.5}, 3), bool)
assert_type(td.wrap(declared), Declared)
declared.lgo({"loss": 0.5}, 3)  # type: ignore[attr-defined]  # a slip is told

assert_type(td.wrap(print).diag, td.Monitor)
assert_type(td.wrap(td.wrap(print)).diag, td.Monitor)
td.wrap(print, windw=4)  # type: ignore[call-overload]  # of an option too
