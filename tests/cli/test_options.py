"""Options that more than one command takes, refused before anything starts."""

import click
import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.cli.options import settings_options
from molink.config.groups import CacheSettings


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


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("-1", "--cache-ram-gb must be 0 to 65536, got -1."),
        ("65536.5", "--cache-ram-gb must be 0 to 65536, got 65536.5."),
        ("nan", "--cache-ram-gb takes a size in GB, got nan."),
        ("inf", "--cache-ram-gb takes a size in GB, got inf."),
        ("much", "--cache-ram-gb takes auto or a size in GB, got 'much'."),
    ],
)
def test_a_size_that_cannot_be_is_refused_as_it_was_typed(size, says):
    result = CliRunner().invoke(cli, ["serve", "no such model", "--cache-ram-gb", size])
    assert str(result.exception) == says


def test_sizes_are_typed_in_gb_and_are_bytes_from_there_on():
    @click.command()
    @settings_options(CacheSettings)
    def command(**sizes):
        click.echo(CacheSettings(**sizes))

    typed = ["--cache-ram-gb", "0.5", "--cache-disk-gb", "20"]
    shown = CliRunner().invoke(command, typed).output
    assert "cache_ram_bytes=500000000, cache_disk_bytes=20000000000" in shown
    for unsaid in ([], ["--cache-ram-gb", "auto"]):
        shown = CliRunner().invoke(command, unsaid).output
        assert "cache_ram_bytes=None, cache_disk_bytes=0" in shown


@pytest.mark.parametrize(
    "group", [(), ("agent",), ("agent", "service"), ("invite",), ("key",), ("node",), ("sim",)]
)
def test_help_shows_whole_sentences(group):
    shown = CliRunner().invoke(cli, [*group, "--help"]).output
    commands = shown.partition("Commands:")[2]
    assert commands and "..." not in commands
