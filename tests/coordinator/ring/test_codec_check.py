"""What the stages report of lossless packing becomes one trial, of the slowest hop."""

import pytest

from molink.coordinator.ring.codec_check import trial_of
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink_scheduler.link.facts import LinkReport

NOTHING = PackingHealth("raw", 0, 0, 0.0)


def link(rate_mbps: float) -> LinkReport:
    return LinkReport("next", 1, 2, 0, 0, 0, 0, 4096, rate_mbps, 60.0, 0.0, 0, False, 0)


def health(packed=NOTHING, unpacked=NOTHING, rate_mbps=20.0) -> StageHealth:
    return StageHealth(
        kv_tokens_used=0,
        busy_s=0.0,
        busy_share=0.0,
        steps=1,
        requests_running=None,
        requests_waiting=None,
        frames_refused=0,
        packed=packed,
        unpacked=unpacked,
        bytes_saved=0,
        decode_round_s=None,
        micro_batch_count=None,
        decode_step_s=0.0,
        prefill_row_s=0.0,
        links=(link(rate_mbps),),
    )


def lossless(raw_bytes: int, packed_bytes: int, seconds: float) -> PackingHealth:
    return PackingHealth("lossless", raw_bytes, packed_bytes, seconds)


HEAD = health(lossless(1000, 700, 0.001), rate_mbps=100)
MIDDLE = health(lossless(1000, 800, 0.002), lossless(1000, 700, 0.004), rate_mbps=20)
TAIL = health(unpacked=lossless(500, 400, 0.004), rate_mbps=1)
"""Its own link carries tokens to the head, no activations."""


def test_the_slowest_link_between_stages_decides():
    trial = trial_of([HEAD, MIDDLE, TAIL], None)
    assert trial.size_ratio == 0.8
    assert trial.encode_bytes_per_s == pytest.approx(500_000)
    assert trial.decode_bytes_per_s == pytest.approx(125_000)
    assert trial.link_bytes_per_s == 2.5e6


def test_a_cap_on_uploads_is_a_slow_link():
    assert trial_of([HEAD, TAIL], 8.0).link_bytes_per_s == 1e6


@pytest.mark.parametrize(
    "healths",
    [
        [HEAD],
        [health(), TAIL],
        [HEAD, health()],
        [HEAD, MIDDLE, health()],
        [health(PackingHealth("int8", 1000, 500, 0.1)), TAIL],
        [health(lossless(1000, 700, 0.001), rate_mbps=0.0), TAIL],
    ],
)
def test_without_all_figures_there_is_no_trial(healths):
    assert trial_of(healths, None) is None
