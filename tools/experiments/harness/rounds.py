"""Measure conditions in turn, several times over, and take medians.

The machine's mood drifts over minutes (other tenants, clock rates), so conditions that are compared
stand next to each other in time: A B C, B C A, C A B rather than A A A, B B B, C C C.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from tools.experiments.harness.experiment import Condition

__all__ = ["Figures", "Measured", "Runs", "in_turn", "medians", "turns"]

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of one condition came to."""

    figures: Figures
    samples: Mapping[str, Any] = field(default_factory=dict)
    """What the picture is drawn from."""


Runs = dict[str, list[Measured]]
"""Of each condition, in the order of rounds."""


def turns(conditions: Sequence[Condition], rounds: int) -> Iterator[Condition]:
    """Every condition once in each round, each round beginning with another."""
    for number in range(rounds):
        first = number % len(conditions)
        yield from (*conditions[first:], *conditions[:first])


def in_turn(
    conditions: Sequence[Condition],
    rounds: int,
    measure: Callable[[Condition, int], Awaitable[Measured]],
) -> Runs:
    """Measure everything; `measure` is given the condition and the number of its round."""
    runs: Runs = {condition.name: [] for condition in conditions}
    for condition in turns(conditions, rounds):
        number = len(runs[condition.name])
        measured = asyncio.run(_awaited(measure(condition, number)))
        runs[condition.name].append(measured)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in measured.figures.items())
        click.echo(f"round {number + 1}, {condition.name}: {shown}", err=True)
    return runs


async def _awaited(measured: Awaitable[Measured]) -> Measured:
    """A task group's first failure stands for all."""
    try:
        return await measured
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def medians(runs: Runs) -> dict[str, Figures]:
    """Of each condition's figures over its rounds."""
    return {
        name: {
            figure: statistics.median(one.figures[figure] for one in measured)
            for figure in measured[0].figures
        }
        for name, measured in runs.items()
    }
