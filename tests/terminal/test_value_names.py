"""Names of options' values: units and things, never click's names of types."""

import re

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from tests.architecture.test_contracts import commands_of

OF_A_TYPE = re.compile(r"--[a-z-]+ (INTEGER|FLOAT|PATH$|INTEGER RANGE|FLOAT RANGE)\b")


@pytest.mark.parametrize("words", sorted(commands_of(cli)))
def test_no_value_has_the_name_of_its_type(words):
    result = CliRunner().invoke(cli, [*words.split(), "--help"], catch_exceptions=False)
    assert not OF_A_TYPE.findall(result.stdout)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("serve", "--queue-s SECONDS"),
        ("serve", "--upload-mbps MBPS"),
        ("up", "--weights-mbps MBPS"),
        ("up", "--tpot-ms MS"),
        ("agent join", "--upload-mbps MBPS"),
        ("agent join", "--memory-gb GB"),
        ("bench", "--concurrency N"),
        ("bench", "--json [FILE]"),
        ("sim run", "--json [FILE]"),
        ("key create", "--url URL"),
    ],
)
def test_values_are_named_by_their_unit(words, shown):
    assert shown in CliRunner().invoke(cli, [*words.split(), "--help"]).stdout
