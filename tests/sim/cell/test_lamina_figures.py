"""Batches in turns, and what else is worked out of attention devices, where it can be told by
hand."""

import pytest

from molink_sim.cell import attention_figures
from molink_sim.cell.attention_figures import (
    breakdown,
    fetching,
    flops_share,
    mean_slowest_device,
    rows_for_flops_share,
    saved_by_queries_first,
)
from molink_sim.cell.turns import WAY_S, LayerTimes, best_offer, layer_times, offer, play

LAYERS = 40


def of_s(slice_s, attend_s, kv_s=0.0, kv_sent_s=0.0):
    return LayerTimes(slice_s, kv_s, attend_s, 0.0, kv_sent_s, 0.0)


def test_one_batch_takes_the_sum_of_its_parts():
    times = of_s(3e-4, 2e-4)
    assert play(times, LAYERS, 1).token_s == pytest.approx(LAYERS * (5e-4 + 2 * WAY_S))
    assert play(times, LAYERS, 1).token_s == pytest.approx(LAYERS * times.sum_s)


@pytest.mark.parametrize(("slice_s", "attend_s"), [(4e-4, 1e-4), (1e-4, 4e-4)])
def test_two_batches_take_turns_at_what_is_slower(slice_s, attend_s):
    played = play(of_s(slice_s, attend_s), LAYERS, 2)
    assert played.token_s == pytest.approx(2 * LAYERS * 4e-4, rel=0.01)
    assert max(played.copies_busy, played.attention_busy) == pytest.approx(1, rel=0.01)


def test_three_batches_on_two_copies_hide_attention_that_takes_half_as_long():
    """t_a = t_m / (n - 1): all is busy, and a copy computes three slices in the time of two."""
    played = play(of_s(4e-4 - 2 * WAY_S, 2e-4), LAYERS, 3)
    assert played.token_s == pytest.approx(3 * LAYERS * 2e-4, rel=0.05)
    assert played.copies_busy > 0.85


def test_queries_that_leave_first_hide_the_making_and_sending_of_keys():
    times = of_s(3e-4, 2e-4, kv_s=5e-5, kv_sent_s=3e-5)
    late, early = (play(times, LAYERS, 1, queries_first=one).token_s for one in (False, True))
    assert late - early == pytest.approx(LAYERS * 8e-5)
    short = of_s(3e-4, 2e-5, kv_s=5e-5, kv_sent_s=3e-5)
    late, early = (play(short, LAYERS, 1, queries_first=one).token_s for one in (False, True))
    assert late - early == pytest.approx(LAYERS * 2e-5), "keys are waited for"


def test_the_papers_savings_come_out_for_one_batch():
    """Up to 13.2 % (65B) and 3.5 % (70B), whose keys and values are an eighth as wide."""
    most = {
        model: max(saved_by_queries_first(model, rows, 1_024, 1) for rows in (32, 128, 512))
        for model in ("llama-65b", "llama-3-70b")
    }
    assert most["llama-65b"] == pytest.approx(0.132, abs=0.015)
    assert most["llama-3-70b"] == pytest.approx(0.035, abs=0.005)


def test_a_layer_of_a_batch_by_hand():
    """64 rows of 8,192 numbers of two bytes to two links, and 64 x 4,096 keys of 80 layers."""
    times = layer_times("llama-65b", 64, 4_096, 2, 4)
    assert times.queries_s == pytest.approx(64 * 16_384 / (2 * 45.7e9))
    assert times.kv_sent_s == pytest.approx(2 * times.queries_s)
    assert times.attend_s == pytest.approx(64 * 4_096 * 32_768 / (4 * 0.78 * 4e12))
    assert times.kv_s / times.slice_s == pytest.approx(2 / (4 + 3 * 22_016 / 8_192), rel=1e-3)


def test_more_copies_want_more_attention_devices(monkeypatch):
    one, three = (best_offer("llama-3-70b", "Azure-Conv", 2, batches) for batches in (2, 4))
    assert three.attention > one.attention
    assert three.dollars_per_hour > one.dollars_per_hour
    fixed = offer("llama-3-70b", "Azure-Conv", 2, 4, three.attention)
    assert fixed.tokens_per_s == pytest.approx(three.tokens_per_s)


def test_the_share_of_a_cards_arithmetic_rises_to_what_a_step_reaches():
    shares = [flops_share("llama-65b", rows) for rows in (1, 50, 100, 800)]
    assert shares == sorted(shares)
    assert shares[0] < 0.005 and shares[-1] < 0.66
    assert flops_share("llama-65b", rows_for_flops_share("llama-65b", 0.2)) >= 0.2


def test_whole_requests_lie_less_evenly_the_fewer_there_are(monkeypatch):
    monkeypatch.setattr(attention_figures, "SEEDS", 20)
    few, many = mean_slowest_device(4, 8), mean_slowest_device(4, 512)
    assert few > 1.3 and 1.0 <= many < 1.05
    assert mean_slowest_device(1, 8) == pytest.approx(1.0)


def test_short_answers_want_more_of_new_prompts_than_links_carry():
    found = {trace: fetching("llama-65b", trace, 2, 4) for trace in ("Azure-Code", "Kimi-Conv")}
    code, chat = found["Azure-Code"], found["Kimi-Conv"]
    assert code.wanted_gb_per_s > code.idle_gb_per_s
    assert chat.wanted_gb_per_s < 0.2 * chat.idle_gb_per_s
    assert 0 < chat.busy_share < 0.1


def test_a_token_takes_less_than_its_parts():
    for one in breakdown("llama-65b", 4_096, 2, 4, (8, 64)):
        assert max(one.model_ms, one.attention_ms) < one.token_ms < one.sum_ms
