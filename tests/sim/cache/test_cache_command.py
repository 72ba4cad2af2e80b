import json

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.errors import UserError


def invoke(trace, *options):
    command = ["sim", "cache", "--quiet", "--trace", str(trace), *options]
    return CliRunner().invoke(cli, command, catch_exceptions=False)


ONE = ["--shape", "paper", "--rings", "1"]


@pytest.mark.parametrize(
    "options, first",
    [
        (["--routing", "load,molink"], {"routing": "load"}),
        (["--show", "hit-rate"], {"blocks": 1000}),
        (["--show", "held-rate", "--routing", "molink", *ONE], {"routing": "molink"}),
        (["--show", "overload", "--rate", "2", *ONE], {"admission": "accept"}),
        (["--shape", "paper", "--stages", "4", "--routing", "molink"], {"routing": "molink"}),
    ],
)
def test_numbers_are_shown_and_written(short_trace, tmp_path, options, first):
    result = invoke(short_trace, *options, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0
    found = json.loads((tmp_path / "out" / "cache.json").read_text())
    assert found["trace"] == "short.jsonl" and first.items() <= found["rows"][0].items()
    assert all(
        str(value).split("-")[0] in result.output for value in first.values() if value != 1000
    )


@pytest.mark.parametrize(
    "options, words",
    [
        (["--routing", "luck"], "--routing takes"),
        (["--rings", "0"], "--rings takes"),
        (["--rate", "0"], "--rate takes"),
        (["--capacity-tokens", "9"], "512 or more"),
        (["--capacity-tokens", "600"], "more capacity"),
        (["--bandwidth-mbps", "0"], "--bandwidth-mbps takes 0.1 to"),
        (["--bandwidth-mbps", "1e-300"], "--bandwidth-mbps takes"),
        (["--bandwidth-mbps", "inf"], "--bandwidth-mbps takes"),
        (["--latency-ms", "inf"], "--latency-ms takes 0 to"),
        (["--latency-ms", "1e300"], "--latency-ms takes"),
        (["--latency-ms", "nan"], "--latency-ms takes"),
        (["--rate", "1e-300"], "raise --rate"),
        (["--show", "overload", "--rate", "1e-300"], "raise --rate"),
        (["--stages", "99"], "--stages 32 or fewer"),
        (["--tpot-times", "inf"], "above 0"),
        (["--rate", "nan"], "--rate takes"),
        (["--stages", "0"], "stage"),
        (["--shape", "paper", "--stages", "3"], "1, 2, 4 or 8"),
        (["--ttft-times", "0"], "above 0"),
        (["--tbt-times", "0"], "--tbt-times takes"),
        (["--tbt-times", "nan"], "--tbt-times takes"),
        (["--tbt-percentile", "100"], "--tbt-percentile takes 50 to 99.9"),
        (["--gpu", "rtx1"], "rtx"),
        (["--model", "llama-2-70b"], "do not fit"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(trace, options, words):
    with pytest.raises(UserError, match=words) as refusal:
        invoke(trace, *options)
    assert "\n" not in str(refusal.value)
