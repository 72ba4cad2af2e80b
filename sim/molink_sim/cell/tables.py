"""What arithmetic says of cells: a model's room for KV, and what a lender may hold."""

from collections.abc import Iterator, Mapping

from molink.checkpoint.model_config import model_shape
from molink_scheduler.cell.events import CellLink, DeviceFacts
from molink_scheduler.cell.quotas import bearable_bytes
from molink_scheduler.units import GB

A100_BYTES, ROOM_SHARE = 80 * GB, 0.9
"""Memory of the paper's cards, and the share of it for weights and KV."""

CAPACITIES: Mapping[str, tuple[str, int, int, int]] = {
    "7B, one card": ("llama-2-7b", 1, 1, 108_000),
    "13B, two instances of two cards": ("llama-2-13b", 2, 2, 280_000),
    "13B, four instances of two cards": ("llama-2-13b", 4, 2, 480_000),
}
"""Rows of DistKV-LLM (arXiv 2401.02669, figures 7 and 9): model, instances, cards of each, tokens
that the paper shows."""

SLOWER, TPOT_S, STAGES = 1.6, 0.116, 3
"""Multiple of a token's time that is borne, that time in a ring of home PCs over 100 Mbps and 30 ms
with Llama-3-8B, and its stages, which share what is borne."""

STAGE = DeviceFacts(0, layers=11, row_bytes=16_500)
"""A third of Llama-3-8B; queries of a row there, 8.2 KB, and answers back, 8.3 KB."""

SAME_PC, NO_CALL = CellLink(13e-6, 7.5e9), CellLink(0.0, float("inf"))
CARD = 900 * GB
"""Bytes a second at which a neighbour's card attends."""

LENDERS: Mapping[str, tuple[float, CellLink, int]] = {
    "host memory read over PCIe 4 x16": (25 * GB, NO_CALL, 1),
    "host memory read over PCIe 4 x8, PCIe 3": (12 * GB, NO_CALL, 1),
    "CPU, DDR4": (40 * GB, SAME_PC, 1),
    "CPU, DDR5": (70 * GB, SAME_PC, 1),
    "CPU, four cores": (4 * 7.3 * GB, SAME_PC, 1),
    "card over 10 GbE": (CARD, CellLink(80e-6, 1.25 * GB), 1),
    "card over 1 GbE": (CARD, CellLink(200e-6, 0.125 * GB), 1),
    "card over 1 GbE, 8 rows": (CARD, CellLink(200e-6, 0.125 * GB), 8),
    "card over a home link": (CARD, CellLink(60e-3, 12.5e6), 1),
}
"""Bytes a second that each attends to, its link, and rows of a step."""


def kv_bytes(model: str, cards: int) -> float:
    """Room for KV of an instance of a model on so many cards."""
    return ROOM_SHARE * cards * A100_BYTES - 2 * model_shape(model).parameters


def capacities() -> Iterator[tuple[str, float, int]]:
    """Name of a row, tokens of KV by arithmetic, tokens that the paper shows."""
    for name, (model, instances, cards, published) in CAPACITIES.items():
        shape = model_shape(model)
        tokens = instances * kv_bytes(model, cards) / (shape.layers * shape.kv_token_bytes)
        yield name, tokens, published


def lendable() -> Iterator[tuple[str, float]]:
    """Name of a lender, and GB of one stage that it may hold: the rule of the ledger."""
    slower_s = (SLOWER - 1) * TPOT_S / STAGES
    for name, (rate, link, rows) in LENDERS.items():
        yield name, bearable_bytes(STAGE, link, rate, slower_s, rows) / GB
