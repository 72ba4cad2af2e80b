"""Options that more than one command takes, refused before anything starts."""

import click
import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.cli.options import ring_options


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--micro-batches", "0"), "--micro-batches must be 1 to 64, got 0."),
        (("--micro-batches", "65"), "--micro-batches must be 1 to 64, got 65."),
        (("--span-tokens", "0"), "--span-tokens must be 1 to 4096, got 0."),
        (("--span-tokens", "4097"), "--span-tokens must be 1 to 4096, got 4097."),
        (("--span-tokens", "many"), "--span-tokens takes auto or a whole number, got 'many'."),
        (("--wire", "zip"), "'--wire': 'zip' is not one of"),
    ],
)
def test_what_cannot_be_is_refused_by_name(command, options, says):
    result = CliRunner().invoke(cli, [command, "no such model", *options])
    assert says in f"{result.output}{result.exception}"


@pytest.mark.parametrize(("given", "fifo"), [((), False), (("--ttft-target-s", "3"), True)])
def test_prompts_are_computed_as_they_come_where_a_time_is_promised(given, fifo):
    @click.command()
    @click.option("--ttft-target-s", type=float)
    @ring_options
    def command(ring, **_):
        click.echo(ring.fifo_prompts)

    assert CliRunner().invoke(command, given).output == f"{fifo}\n"


@pytest.mark.parametrize(
    "group", [(), ("agent",), ("agent", "service"), ("invite",), ("key",), ("node",), ("sim",)]
)
def test_help_shows_whole_sentences(group):
    shown = CliRunner().invoke(cli, [*group, "--help"]).output
    commands = shown.partition("Commands:")[2]
    assert commands and "..." not in commands
