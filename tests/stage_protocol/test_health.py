"""What is taken for a report of a stage, wherever it comes from."""

import json
from dataclasses import asdict

import pytest

from molink.errors import FrameError
from molink.stage_protocol.health import FIGURE_MAX, CacheTiersHealth, PackingHealth, StageHealth
from molink.stage_protocol.messages import HEALTH
from molink_scheduler.link.facts import LinkReport

LINK = LinkReport("next", 1, 2, 0, 1, 0, 9, 4096, 20.5, 60.0, 1.5, 3, False, 0)
PACKED = PackingHealth("int8", 200, 104, 0.01)
TIERS = asdict(CacheTiersHealth(32, 64, 16, 0))
REPORT = StageHealth(0, 1.5, 0.5, 3, 1, 2, 0, PACKED, PACKED, -5, None, 1, 0.1, 0, (LINK,))


def fields(**changes):
    return json.loads(json.dumps(asdict(REPORT))) | changes


def test_a_report_comes_back_as_it_was():
    assert HEALTH.read(fields()) == REPORT
    assert HEALTH.read(fields(said_by_a_newer_agent=1)) == REPORT


@pytest.mark.parametrize(
    "changes",
    [
        {"requests_waiting": "x"},
        {"requests_running": "7"},
        {"requests_running": True},
        {"requests_running": FIGURE_MAX + 1},
        {"steps": 1.5},
        {"steps": -1},
        {"busy_s": "x"},
        {"busy_s": None},
        {"decode_step_s": 10**400},
        {"decode_step_s": float("nan")},
        {"prefill_row_s": float("inf")},
        {"bytes_saved": -(10**400)},
        {"packed": None},
        {"packed": asdict(PACKED) | {"seconds": -0.1}},
        {"packed": asdict(PACKED) | {"codec": "x" * 41}},
        {"cache_tiers": TIERS | {"host_tokens": -1}},
        {"cache_tiers": TIERS | {"lost_tokens": None}},
        {"links": None},
        {"links": [asdict(LINK) | {"foreign_upload": "no"}]},
        {"links": [asdict(LINK) | {"rate_mbps": float("nan")}]},
        {"links": [asdict(LINK) | {"messages_sent": True}]},
        {"links": [asdict(LINK) | {"bytes_sent": -1}]},
        {"links": [asdict(LINK) | {"rtt_ms": 10**400}]},
        {"links": [asdict(LINK) | {"name": "x" * 41}]},
        {"links": [{"name": "next"}]},
        {"links": ["next"]},
        {"links": [asdict(LINK)] * 5},
    ],
)
def test_anything_that_cannot_be_computed_with_is_refused_by_name(changes):
    (name,) = changes
    with pytest.raises(FrameError, match=name):
        HEALTH.read(fields(**changes))


def test_a_report_that_lacks_something_is_refused():
    with pytest.raises(FrameError, match="kv_tokens_used"):
        HEALTH.read({})
