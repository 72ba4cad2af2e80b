from pathlib import Path

import pytest

from molink.errors import UserError
from molink.workload.loads import requests_of
from molink.workload.scenario_file import read_scenario

SHIPPED = sorted((Path(__file__).parents[2] / "docs/benchmarks/scenarios").glob("*.toml"))

LINK = "[link]\nmbps = 20\none_way_ms = 30\n"
STREAMS = '[[load]]\nkind = "streams"\ncount = 2\noutput_tokens = 5\n'


@pytest.fixture
def read(tmp_path):
    def read(text: str):
        path = tmp_path / "some.toml"
        path.write_text(text)
        return read_scenario(path)

    return read


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_are_read(path):
    scenario = read_scenario(path)
    assert scenario.about
    assert requests_of(scenario.loads)


def test_there_are_enough_of_them():
    assert len(SHIPPED) >= 6


def test_what_is_left_out_is_as_served_by_default(read):
    scenario = read(LINK + STREAMS)
    assert scenario.name == "some"
    options = " ".join(scenario.serve_options)
    assert "--nodes 3 --link 20:30 --wire raw" in options
    assert "--micro-batches auto --span-tokens auto --kv-tokens 32768" in options


def test_every_field_reaches_the_server(read):
    scenario = read(
        'model = "here"\nstages = 2\nkv_tokens = 512\n'
        + LINK
        + '[serve]\nwire = "int8"\nmicro_batches = 4\nspan_tokens = 64\n'
        + STREAMS
    )
    assert scenario.model == "here"
    assert " ".join(scenario.serve_options) == (
        "--nodes 2 --link 20:30 --wire int8 --micro-batches 4 --span-tokens 64 --kv-tokens 512"
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ("stages = ", "TOML"),
        (LINK, "asks for nothing"),
        (STREAMS, "has no mbps"),
        (LINK.replace("20", "0") + STREAMS, "above 0 Mbps"),
        (LINK.replace("30", "-1") + STREAMS, "delay must be 0"),
        (LINK.replace("20", '"fast"') + STREAMS, "mbps = 'fast'"),
        (LINK + "jitter_ms = 3\n" + STREAMS, "jitter_ms, which means nothing"),
        ("nodes = 3\n" + LINK + STREAMS, "nodes, which means nothing"),
        ("stages = 0\n" + LINK + STREAMS, "from 1 to"),
        ("stages = 2.5\n" + LINK + STREAMS, "whole number"),
        ("stages = true\n" + LINK + STREAMS, "from 1 to"),
        ("kv_tokens = 1\n" + LINK + STREAMS, "from 16"),
        ("model = 7\n" + LINK + STREAMS, "give a text"),
        ("serve = 1\n" + LINK + STREAMS, r"write \[serve\]"),
        ("load = 1\n" + LINK, r"write \[\[load\]\]"),
        (LINK + '[serve]\npolicy = "fifo"\n' + STREAMS, "policy, which means nothing"),
        (LINK + '[serve]\nwire = "auto"\n' + STREAMS, "raw, lossless"),
        (LINK + "[serve]\nmicro_batches = 0\n" + STREAMS, "from 1 to"),
        (LINK + '[serve]\nspan_tokens = "long"\n' + STREAMS, "from 1 to"),
    ],
)
def test_what_is_wrong_is_one_sentence(read, text, words):
    with pytest.raises(UserError, match=words) as refusal:
        read(text)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="give a TOML file"):
        read_scenario(tmp_path / "none.toml")
