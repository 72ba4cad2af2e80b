"""How the part of a report is shown that a capability brings: its metrics and its words.

A part is a field of `StageReport` or of `RingReport`, None or empty where the capability is absent.
Its class, its metrics and its words stand together in one module of this room, and `capabilities`
lists them: metrics and dashboard go over that list and name none of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """Metric that is one field of a report's part; a counter if its name says so."""

    name: str
    field: str
    help: str
    scale: float = 1.0
    """Factor from the field's unit to the metric's."""


class Family(NamedTuple):
    """Metric with one label: a value for each value of the label."""

    name: str
    help: str
    label: str
    values: Mapping[str, float]


def is_counter(name: str) -> bool:
    """Whether a metric only rises, until its ring ends."""
    return name.endswith("_total")


def _no_words(_part: Any) -> str:
    return ""


class StagePart(NamedTuple):
    """Part of a stage's report, and how it is shown."""

    field: str
    """Name of the field of `StageReport`."""
    title: str = ""
    """Title of its line in a node's details; empty: it has none."""
    words: Callable[[Any], str] = _no_words
    """That line, of the part."""
    note: Callable[[Any], str] = _no_words
    """Words behind the stage where a screen is wide; empty: none."""
    figures: tuple[Figure, ...] = ()
    """Metrics, by the stage's node and by `label`."""
    label: str = ""
    label_value: Callable[[Any], str] = _no_words

    def words_of(self, stage: Any) -> str:
        """The line in the details of a stage's node; empty: there is none."""
        part = getattr(stage, self.field)
        return "" if part is None else self.words(part)

    def note_of(self, stage: Any) -> str:
        """Words behind a stage; empty: there are none."""
        part = getattr(stage, self.field)
        return "" if part is None else self.note(part)


class RingPart(NamedTuple):
    """Part of a ring's report, and its metrics over all rings that have it."""

    field: str
    """Name of the field of `RingReport`."""
    families: Callable[[Sequence[Any]], Iterator[Family]]
