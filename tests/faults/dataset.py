"""The data set: one JSON object a line, a run each, compressed with xz."""

import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

RUNS = Path(__file__).with_name("runs.jsonl.xz")

Value = float | Literal["nan", "inf", "-inf"] | None


class Run(BaseModel):
    """A training run: what it is, what went wrong in it, and what its trainer logged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trainer: str
    task: str
    seed: int
    half: Annotated[
        Literal["tuned", "development", "untouched"],
        Field(
            description="rules were tuned on the first two; development: trainers of the untouched half, other tasks"
        ),
    ]
    fault: Annotated[str | None, Field(description="what was planted; null in a healthy run")]
    onset: Annotated[int | None, Field(description="the first step with the fault")]
    right: Annotated[list[str], Field(description="names that are right for it, as rules of this project")]
    collapsed: Annotated[bool, Field(description="whether the reward ends lower than it was, by labels.collapsed")]
    steps: Annotated[list[int], Field(description="the step of each row")]
    columns: Annotated[dict[str, list[Value]], Field(description="by the trainer's own key; null where not logged")]

    @property
    def name(self) -> str:
        return f"{self.trainer}, {self.task}, {self.fault or 'healthy'}, {self.seed}"

    def rows(self, most: int | None = None) -> list[dict[str, float]]:
        """Rows with their steps; evenly thinned to at most so many, the last one always among them.

        A row that is left has of each metric the last value since the row before it: a trainer that logs every second
        step loses no metric that comes with every second step.
        """
        every = -(-len(self.steps) // most) if most else 1
        kept = range((len(self.steps) - 1) % every, len(self.steps), every)
        return [
            {"step": self.steps[at]}
            | {
                key: float(messages[-1])
                for key, column in self.columns.items()
                if (messages := [value for value in column[max(at - every + 1, 0) : at + 1] if value is not None])
            }
            for at in kept
        ]


def read_runs(file: Path = RUNS) -> Iterator[Run]:
    """Every run of the data set."""
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield Run.model_validate_json(line)


def write(runs: Iterable[Run], file: Path = RUNS) -> None:
    """Replace the data set."""
    with lzma.open(file, "wt", encoding="utf-8", preset=9) as out:
        for run in runs:
            out.write(run.model_dump_json() + "\n")


def schema() -> str:
    """The JSON Schema of a line."""
    return json.dumps(Run.model_json_schema(), indent=1) + "\n"
