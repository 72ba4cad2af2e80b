"""Figures of a card, each beside what was predicted before anybody had measured it.

Predictions are of one card, an H200, in a machine with a fast host. On any other card they are
printed all the same: what differs is what one wants to see.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch

from molink.engine.device.card import Card
from tools.experiments.harness.experiment import markdown_table, show, write_report

__all__ = ["Figure", "card_name", "card_options", "figure_rows", "figures_in", "keep"]


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that was measured, or found."""

    what: str
    value: float | str
    unit: str = ""
    low: float | None = None
    """The least that was predicted; None: nothing was."""
    high: float | None = None
    """The most; None: anything from `low` on."""

    @property
    def predicted(self) -> str:
        """The prediction as text; empty: there is none."""
        if self.low is None:
            return ""
        return f"{self.low:g} or more" if self.high is None else f"{self.low:g} to {self.high:g}"

    @property
    def is_missed(self) -> bool:
        """Whether it lies outside of what was predicted; on either side one has not understood."""
        if self.low is None or isinstance(self.value, str):
            return False
        return not (self.low <= self.value <= (float("inf") if self.high is None else self.high))

    @property
    def shown(self) -> str:
        """The value as text."""
        value = self.value if isinstance(self.value, str) else f"{self.value:.3g}"
        return f"{value} {self.unit}".strip()


def card_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option --device; on a CPU an experiment is small: it proves the script alone."""
    option = click.option(
        "--device",
        default="cuda:0",
        show_default=True,
        help="cpu: all in small, to try the script where no card is.",
    )
    return option(function)


def keep(out: Path, name: str, device: torch.device, figures: Iterable[Figure]) -> None:
    """Write OUT/NAME.json anew with each figure, as far as it comes, and print them all."""
    kept = list[Figure]()
    if device.type == "cuda":
        Card(device).select()
    for figure in figures:
        kept.append(figure if device.type == "cuda" else replace(figure, low=None, high=None))
        click.echo(f"{figure.what}: {figure.shown}", err=True)
        report = {"device": str(device), "card": card_name(device)}
        write_report(out, name, report | {"figures": [asdict(one) for one in kept]})
    show(markdown_table(["", "measured", "predicted", ""], figure_rows(kept)))


def figure_rows(figures: Sequence[Figure]) -> list[list[str]]:
    """Cells of a table."""
    return [
        [one.what, one.shown, one.predicted, "missed" if one.is_missed else ""] for one in figures
    ]


def card_name(device: torch.device) -> str:
    """As its maker calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, in small"


def figures_in(report: dict[str, Any]) -> list[Figure]:
    """The figures that `keep` has written."""
    return [Figure(**one) for one in report["figures"]]
