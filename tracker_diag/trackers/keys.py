"""Keys: which of a row say when it was logged, how nested ones become flat, and rows of such records."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain, islice

from tracker_diag.errors import SourceError
from tracker_diag.trackers.rows import Rows, number

STEPS = (
    "step", "_step", "global_step", "train/global_step", "trainer/global_step", "training/global_step",
    "training/step", "train/step", "iteration", "training_iteration", "update", "time/total_timesteps",
    "timesteps_total", "time/iterations", "current_steps",
)  # fmt: skip
"""Keys under which trainers log the step, the first that a source has is used."""
CLOCKS = ("_timestamp", "timestamp", "wall_time", "wall time", "_runtime", "time/time_elapsed", "time_total_s")
"""Keys under which they log the time: seconds, or a date."""
NO_METRICS = {"_step", "_timestamp", "_runtime", "timestamp", "wall_time", "wall time"}
"""Of these, the ones that say nothing else."""


DEPTH = 16  # levels that are taken elsewhere; settings have a handful

HEAD = 100
"""Records that are looked at to learn which key is the step."""


def put_records(rows: Rows, records: Iterable[tuple[str, Mapping[str, object]]], file: object) -> dict[str, object]:
    """Put records of a logger into `rows`; returns the settings that they have under `config`.

    The step is under the first of `STEPS` that one of the first records has. Where none has a step, records are
    counted from 0. Nested mappings become keys with `/`, as RLlib names them itself.

    Args:
        records: each with its place, such as "line 3".
        file: for the error of a step that is no whole number; such a record is counted, and left out.
    """
    config: dict[str, object] = {}
    upcoming = iter(records)
    head = [*islice(upcoming, HEAD)]
    step_key = next((key for key in STEPS if any(key in record for _, record in head)), None)
    if step_key is None and head:
        rows.note(f"no row has a step, none of {', '.join(STEPS[:3])}, ...: rows are counted from 0")
    left_out = NO_METRICS if step_key is None else NO_METRICS | {step_key}
    for where, given in chain(head, upcoming):
        record = given
        if isinstance(settings := given.get("config"), Mapping):
            config |= flat(settings, ".")
            record = {key: value for key, value in given.items() if key != "config"}
        step = rows.added if step_key is None else record.get(step_key)
        if step is None:
            rows.count("rows without a step, left out", where)
            continue
        try:
            number_of_step = step_of(step, f"{file}: {where}".replace(": line ", ":"))
        except SourceError as error:
            rows.skip(error)
            continue
        values = dict(flat(record, "/"))
        for key in left_out:
            values.pop(key, None)
        rows.put_row(number_of_step, values, where, clock_of(record))
    return config


def flat(values: Mapping[str, object], separator: str, above: str = "") -> Iterable[tuple[str, object]]:
    """Keys, after `above`, and values of nested mappings, with `separator` between the levels.

    Mappings below `DEPTH` levels stay whole.
    """
    if above or any(issubclass(kind, Mapping) for kind in set(map(type, values.values()))):
        return _nested(values, separator, above, DEPTH)
    return values.items()


def _nested(values: Mapping[str, object], separator: str, above: str, depth: int) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and depth:
            yield from _nested(value, separator, f"{above}{key}{separator}", depth - 1)
        else:
            yield f"{above}{key}", value


def integer(value: object) -> int | None:
    """`value` if it is a whole number of 64 bits, as an int or as a float that has one."""
    if type(value) is int or (isinstance(value, float) and value.is_integer()):
        return int(value) if -(1 << 63) <= value < 1 << 63 else None
    return None


def step_of(value: object, where: str) -> int:
    """`value` as a step.

    Raises:
        SourceError: it is no whole number, or one of more than 64 bits.
    """
    step = integer(value)
    if step is None:
        raise SourceError(f"{where}: step is {str(value)[:40]!r}, expected a whole number")
    return step


def clock_of(row: Mapping[str, object]) -> float | None:
    """The time that a row was logged at, in seconds from some origin; None if it does not say."""
    for key in CLOCKS:
        value = row.get(key)
        if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d", value):
            try:
                return datetime.fromisoformat(re.sub(r"Z$", "+00:00", value)).timestamp()
            except ValueError:
                continue
        seconds = number(value)
        if seconds is not None:
            return seconds
    return None


def plain(text: str) -> object:
    """The number, truth value or None that the `text` of a setting means; else `text`."""
    words = {"True": True, "true": True, "False": False, "false": False, "None": None}
    if text in words:
        return words[text]
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
    except ValueError:
        return text
