"""A request that outgrows its card: lent blocks against a migration (DistKV-LLM, Lin et al., arXiv
2401.02669, fig. 9).

A prompt of 105,000 tokens on an A100-80 with Llama-2-7B leaves room for a few thousand more. Either
what is too much lies on another card, whose attention each step asks for; or, once the card is
full, all KV is taken to an instance with room, and the answer stands still meanwhile. Step times
are a roofline's, and the same on both instances. At which rate the paper moved KV we do not know.
"""

from collections.abc import Iterator, Mapping
from functools import cache

from molink.checkpoint.model_config import model_shape
from molink.hardware.gpu import gpu
from molink.hardware.roofline import RooflineCost, stage_cost
from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.cell.events import DeviceFacts
from molink_scheduler.cell.quotas import link_s
from molink_scheduler.units import GB
from molink_sim.cell.long_requests import LINK
from molink_sim.cell.tables import kv_bytes

MODEL, GPU = "llama-2-7b", "a100-80gb"
PROMPT_TOKENS = 105_000
PUBLISHED: Mapping[int, float] = {5_000: 3.5, 10_000: 2.2, 20_000: 1.6, 30_000: 1.4}
"""Tokens of an answer, and how many times as long it takes where KV is migrated."""

RATES_GB_PER_S: Mapping[str, float] = {
    "45.7 GB/s, a card's link": 45.7,
    "25 GB/s, PCIe 4 x16": 25.0,
    "1.25 GB/s, 10 GbE": 1.25,
    "0.125 GB/s, 1 GbE": 0.125,
}
"""Rates at which KV may be taken elsewhere."""

AGAIN = "computed there again"


def slower(answer_tokens: int, standstill_s: float) -> float:
    """Time of an answer with such a stand-still over that with lent blocks."""
    whole_s, lent_s = answer_times_s(answer_tokens)
    return (whole_s + standstill_s) / lent_s


@cache
def answer_times_s(answer_tokens: int) -> tuple[float, float]:
    """Seconds of an answer whose KV lies together, and of one whose surplus is lent."""
    cost, home, way_s = _cost(), home_tokens(), _way_s()
    whole_s = lent_s = 0.0
    for tokens in range(PROMPT_TOKENS, PROMPT_TOKENS + answer_tokens):
        whole_s += cost.step_s(DECODE, 1, tokens, 1)
        lent_s += cost.step_s(DECODE, 1, min(tokens, home), 1) + (way_s if tokens > home else 0.0)
    return whole_s, lent_s


def standstills_s() -> Iterator[tuple[str, float]]:
    """How long an answer stands still while a full card's KV is taken elsewhere."""
    shape, home = model_shape(MODEL), home_tokens()
    for name, rate in RATES_GB_PER_S.items():
        yield name, home * shape.layers * shape.kv_token_bytes / (rate * GB)
    yield AGAIN, _cost().step_s(PREFILL, home, home, 1)


def published_standstill_s() -> float:
    """The stand-still by which the paper's ratios come out best (least squares)."""
    pairs = [(answer_times_s(tokens), ratio) for tokens, ratio in PUBLISHED.items()]
    weighed = sum((ratio - whole_s / lent_s) / lent_s for (whole_s, lent_s), ratio in pairs)
    return weighed / sum(1 / lent_s**2 for (_, lent_s), _ in pairs)


def home_tokens() -> int:
    """Tokens of KV that one card has room for."""
    shape = model_shape(MODEL)
    return int(kv_bytes(MODEL, cards=1) / (shape.layers * shape.kv_token_bytes))


def _cost() -> RooflineCost:
    shape = model_shape(MODEL)
    return stage_cost(shape, gpu(GPU), shape.layers, is_head=True, is_tail=True)


def _way_s() -> float:
    """What a step takes longer for calls to the card that lends: it reads its keys meanwhile."""
    shape = model_shape(MODEL)
    return link_s(DeviceFacts(0, layers=shape.layers, row_bytes=2 * shape.row_bytes), LINK)
