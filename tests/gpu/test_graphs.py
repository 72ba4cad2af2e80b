"""Decode steps of every bucket are recorded on a card, proven, and right while they serve."""

import pytest

from molink.engine.step.graphs.recording import recorder_on
from molink.engine.step.graphs.static_inputs import BUCKETS
from tests.engine.step.graphs.decode_runs import worst_difference
from tests.engine.step.graphs.static_stages import static_stage
from tests.engine.step.graphs.tape import TapeRecorder
from tests.gpu.device import HAS_CARD

NAMES = ("llama", "gemma2", "gpt_oss", "qwen3_moe", "deepseek_v3", "Qwen3.5 27B", "LFM2 1.2B")

DIFFERENCE_MAX = 1e-4


@pytest.mark.parametrize("name", NAMES if HAS_CARD else ("gpt_oss",))
def test_every_bucket_is_fed_again(name, device):
    recorder = recorder_on(device) or TapeRecorder()
    buckets = BUCKETS if HAS_CARD else (4, 1)
    kv_tokens = 4096 if HAS_CARD else 512
    stage = static_stage(name, range(4), 4, recorder, buckets, kv_tokens, device=device)
    assert stage.fallbacks.decode is None
    assert sorted(stage._graphs.steps, reverse=True) == list(buckets)
    assert worst_difference(stage) <= DIFFERENCE_MAX
