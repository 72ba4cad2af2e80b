"""Mooncake's Algorithm 1: the soonest prefill node, copies included, and who is refused."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.routing.admission import Targets
from molink_scheduler.routing.conductor import (
    NO_COPIES,
    Prefill,
    PrefillNode,
    choose_prefill,
    conduct,
    decoding_at,
    occupancy_byte_s,
)


@dataclass(frozen=True)
class Prices:
    """A millisecond a token to compute, and less or more to copy it."""

    copy_s: float = 1e-4

    def prefill_s(self, tokens, cached_tokens):
        return 1e-3 * (tokens - cached_tokens)

    def transfer_s(self, tokens):
        return self.copy_s * tokens


NODES = st.lists(
    st.builds(PrefillNode, st.floats(0, 100), st.integers(0, 8_000)), min_size=1, max_size=8
)
PRICES = st.builds(Prices, st.floats(0, 1e-2))
THRESHOLDS = st.floats(0.5, 10) | st.just(NO_COPIES)


def spelled_out(nodes, tokens, prices, threshold):
    """Algorithm 1, line by line."""
    best = max(node.cached_tokens for node in nodes)
    found = math.inf
    for node in nodes:
        own = node.cached_tokens
        ratio = best / own if own else math.inf * (best > 0) if best else 1.0
        if ratio < threshold or threshold == NO_COPIES:
            ttft_s = node.queue_s + prices.prefill_s(tokens, own)
        else:
            ttft_s = prices.transfer_s(best - own) + node.queue_s + prices.prefill_s(tokens, best)
        found = min(found, ttft_s)
    return found


@given(nodes=NODES, prices=PRICES, threshold=THRESHOLDS)
def test_the_choice_is_the_papers(nodes, prices, threshold):
    found = choose_prefill(nodes, 8_001, prices, threshold)
    assert found.ttft_s == pytest.approx(spelled_out(nodes, 8_001, prices, threshold))


@given(nodes=NODES, prices=PRICES, threshold=THRESHOLDS)
def test_what_is_copied_is_the_longest_prefix_and_from_who_has_it(nodes, prices, threshold):
    found = choose_prefill(nodes, 8_001, prices, threshold)
    own = nodes[found.node].cached_tokens
    if found.source is None:
        assert found.cached_tokens == own
    else:
        longest = max(node.cached_tokens for node in nodes)
        assert found.source != found.node and threshold != NO_COPIES
        assert found.cached_tokens == nodes[found.source].cached_tokens == longest > own
        assert longest >= threshold * own


@given(nodes=NODES, more_s=st.floats(0, 100))
def test_a_longer_queue_never_makes_a_node_sooner(nodes, more_s):
    found = choose_prefill(nodes, 8_001, Prices())
    node = nodes[found.node]
    nodes[found.node] = PrefillNode(node.queue_s + more_s, node.cached_tokens)
    assert choose_prefill(nodes, 8_001, Prices()).ttft_s >= found.ttft_s


def test_a_hot_prefix_gets_copied_where_its_node_is_busy_and_the_threshold_is_passed():
    nodes = [PrefillNode(9.0, 4_000), PrefillNode(0.0, 3_000)]
    copied = choose_prefill(nodes, 8_000, Prices(), threshold=1.3)
    assert copied == Prefill(1, pytest.approx(4.1), 4_000, source=0)
    kept = choose_prefill(nodes, 8_000, Prices(), threshold=1.4)
    assert kept == Prefill(1, pytest.approx(5.0), 3_000)


def test_the_least_loaded_decodes_and_is_asked_for_the_moment_of_the_first_token():
    asked = []
    pair = conduct(Prefill(0, 3.0, 0), [2.0, 1.0, 1.0], lambda *place: asked.append(place) or 0.05)
    assert (pair.decode, pair.tbt_s) == (1, 0.05)
    assert asked == [(1, 3.0)]


@pytest.mark.parametrize(
    ("ttft_s", "tbt_s", "is_taken"),
    [(3.0, 0.1, True), (3.1, 0.1, False), (3.0, 0.11, False), (0.1, 0.01, True)],
)
def test_who_would_miss_a_target_is_refused(ttft_s, tbt_s, is_taken):
    targets = Targets(ttft_s=3.0, tpot_s=0.1)
    pair = conduct(Prefill(0, ttft_s, 0), [0.0], lambda *_: tbt_s, targets)
    assert (pair is not None) == is_taken


@given(
    after_s=st.floats(0, 50),
    ages_s=st.lists(st.floats(0, 50)),
    begin_s=st.lists(st.floats(0, 50)),
    answer_s=st.floats(0.1, 50),
)
def test_answers_of_one_length_are_counted(after_s, ages_s, begin_s, answer_s):
    found = decoding_at(after_s, ages_s, begin_s, answer_s)
    starts = [-age_s for age_s in ages_s] + begin_s
    assert found <= sum(start <= after_s for start in starts)
    assert decoding_at(100.1, ages_s, begin_s, answer_s) == 0
    assert decoding_at(0.0, [0.0] * 3, [1.0], answer_s) == 3


@given(prefill_s=st.floats(0.01, 100), send_s=st.floats(0, 10), layers=st.integers(2, 80))
def test_layers_that_leave_at_once_occupy_less(prefill_s, send_s, layers):
    whole = occupancy_byte_s(1e9, prefill_s, send_s, 1)
    assert whole == pytest.approx(1e9 * (prefill_s + send_s))
    assert occupancy_byte_s(1e9, prefill_s, send_s, layers) < whole
    assert occupancy_byte_s(1e9, prefill_s, 0.0, layers) == pytest.approx(1e9 * prefill_s / layers)
