"""The options of every experiment, and how it begins and ends."""

import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from molink.errors import UserError

__all__ = ["Condition", "Setup", "experiment", "policy_conditions"]

POLICIES_COMPARED = ("molink", "fifo", "fair")


@dataclass(frozen=True, slots=True)
class Condition:
    """One way of serving that is compared with others."""

    name: str
    options: tuple[str, ...]
    """Of `molink serve`."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What every experiment is told."""

    model: str
    out: Path
    """Where its JSON and its picture go."""
    rounds: int
    link: str
    serve_options: tuple[str, ...]
    """Further options of every server."""

    @property
    def link_mbps(self) -> float:
        """The rate of `link`."""
        return float(self.link.partition(":")[0])

    @property
    def one_way_s(self) -> float:
        """The delay of `link`."""
        return float(self.link.partition(":")[2]) / 1000


def policy_conditions(*options: str) -> list[Condition]:
    """MoLink's policy and the two baselines, alike in everything else."""
    return [Condition(name, ("--policy", name, *options)) for name in POLICIES_COMPARED]


def experiment(link: str = "20:30") -> Callable[[Callable[..., None]], click.Command]:
    """Make a function of a Setup, and of options of its own, a command."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def command(
            model: str, out: Path, rounds: int, link: str, serve_options: str, **own: Any
        ) -> None:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # Servers are ended as well.
            out.mkdir(parents=True, exist_ok=True)
            setup = Setup(model, out, rounds, link, tuple(serve_options.split()))
            try:
                function(setup, **own)
            except UserError as error:
                raise click.ClickException(str(error)) from error

        return click.command()(_with_options(command, link))

    return decorate


def _with_options(command: Callable[..., None], link: str) -> Callable[..., None]:
    options = (
        click.argument("model"),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            required=True,
            help="Where the JSON file and the picture go.",
        ),
        click.option(
            "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Of all."
        ),
        click.option(
            "--link", metavar="MBPS:MS", default=link, show_default=True, help="Emulated."
        ),
        click.option("--serve-options", default="", help="Further options of `molink serve`."),
    )
    for option in reversed(options):
        command = option(command)
    return command
