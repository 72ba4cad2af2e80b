"""Hybrid models over stages answer what the library's own `generate` does."""

import pytest

from molink.engine.loading import load_stage
from molink.stage_protocol.messages import StageWork
from tests.engine.recurrent.hybrids import HYBRIDS, KINDS, WITH_EXPERTS, small_model
from tests.engine.recurrent.mixed_answers import PROMPT_TOKENS, mixed_answers
from tests.engine.ring_driver import load_stages
from tests.sweeps import swept


@pytest.mark.parametrize("name", swept(HYBRIDS, *KINDS))
def test_eight_mixed_requests_equal_generate(name, tmp_path):
    compared = mixed_answers(name, tmp_path)
    assert compared.equal == len(PROMPT_TOKENS) or name in WITH_EXPERTS
    assert compared.equal + compared.near_ties == len(PROMPT_TOKENS)


def test_states_stay_within_the_memory_that_is_lent(tmp_path):
    small_model("Qwen3.5 27B").save_pretrained(tmp_path)
    (stage,) = load_stages(tmp_path, (0, 4))
    assert stage.state_slots == stage.states.slots > 5
    kv_bytes, state_bytes = 1024 * stage.kv_token_bytes, stage.states.request_bytes
    work = StageWork((0, 4), "cpu", "float32", 1024)
    lent_bytes = stage.weights_bytes + kv_bytes + 5 * state_bytes
    stage = load_stage(str(tmp_path), work, memory_bytes=lent_bytes, self_test=False)
    assert stage.state_slots == stage.states.slots == 4
    assert stage.states.snapshots == 1


def test_a_stage_of_states_only_has_no_kv(tmp_path):
    small_model("Qwen3.5 27B").save_pretrained(tmp_path)
    states_only, mixed = load_stages(tmp_path, (0, 2, 4))
    assert (states_only.kv_token_bytes, states_only.states.request_bytes > 0) == (0, True)
    assert mixed.kv_token_bytes > 0
