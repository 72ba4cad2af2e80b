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


Family = tuple[str, str, str, Mapping[str, float]]
"""Metric with one label: name, help, label, and a value for each value of the label."""


class StageCapability(NamedTuple):
    """Part of a stage's report, and how it is shown."""

    field: str
    """Name of the field of `StageReport`."""
    title: str = ""
    """Title of its line in a node's details."""
    words: Callable[[Any], str] = lambda part: ""
    """Words of that line; empty: there is none."""
    note: Callable[[Any], str] = lambda part: ""
    """Words behind the stage where a screen is wide; empty: none."""
    figures: tuple[Figure, ...] = ()
    """Metrics, by the stage's node and by `label`."""
    label: str = ""
    label_value: Callable[[Any], str] = lambda part: ""


class RingCapability(NamedTuple):
    """Part of a ring's report, and its metrics over all rings that have it."""

    field: str
    """Name of the field of `RingReport`."""
    families: Callable[[Sequence[Any]], Iterator[Family]]


def is_counter(name: str) -> bool:
    """Whether a metric only rises, until its ring ends."""
    return name.endswith("_total")
