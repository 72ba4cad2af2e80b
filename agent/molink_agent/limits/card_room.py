"""Room for KV that the owner lends on a card which holds no stage.

What is lent is memory of a card that nobody else of ours computes on: a stage's card is full of its
weights and its own KV. So a PC needs a card beyond those that serve, or none that serves. What the
owner has set comes first, then what the card has free: a game that is drawn there takes it back.

Pure.
"""

from molink.errors import UserError
from molink.hardware.card_memory import kept_free_bytes
from molink.hardware.gpu import gpu as known_gpu
from molink_agent.limits.lend_room import LendRoom
from molink_agent.limits.lent import BESIDE_STAGE_BYTES, lending_card
from molink_agent.limits.limits import OwnerLimits
from molink_agent.probe.gpus import DriverGpu, GpuReport
from molink_scheduler.units import GB, gb_text

CARD_NOT_SET = "No card lends KV: lend_gpu_gb is not set."

UNKNOWN_CARD_BYTES_PER_S = 100 * GB
"""KV that a card attends to of which no figure is known: less than any that is listed."""


def card_mistake(limits: OwnerLimits, gpus: GpuReport) -> str:
    """Sentence on what no card here can lend; empty: one can, or none is to."""
    if not limits.lend_gpu_bytes:
        return ""
    wanted = f"lend_gpu_gb is {gb_text(limits.lend_gpu_bytes, 2)}"
    if not gpus.gpus:
        return f"{wanted}, and this PC has no card ({gpus.reason}): set 0."
    card = lending_card(limits, gpus)
    if card is None:
        there = ", ".join(f"cuda:{gpu.index}" for gpu in gpus.gpus)
        return (
            f"{wanted}, for which a card has to hold no stage, and device = {limits.device!r} uses "
            f"all that there are ({there}): set device to fewer, or lend_gpu_gb to 0."
        )
    if limits.lend_gpu_bytes > card.memory_bytes:
        there = gb_text(card.memory_bytes, 2)
        return f"{wanted}, and cuda:{card.index} has {there}: set less."
    return ""


def card_room(
    limits: OwnerLimits, gpus: GpuReport, held_bytes: int = 0, withheld: str = ""
) -> LendRoom:
    """The room now, none where `card_mistake` has a sentence. `held_bytes`: of KV that lies on the
    card, and is not free; `withheld`: why it is not to be used now, empty if it is."""
    card = lending_card(limits, gpus)
    if not limits.lend_gpu_bytes:
        return LendRoom(why_less=CARD_NOT_SET)
    if trouble := withheld or card_mistake(limits, gpus):
        return LendRoom(why_less=trouble)
    assert card is not None, "it would be a mistake"
    wanted, idle = limits.lend_gpu_bytes, card.free_bytes - kept_free_bytes(card.memory_bytes)
    free = max(0, idle + held_bytes - BESIDE_STAGE_BYTES)
    why = f"{gb_text(free, 2)} of cuda:{card.index} are free beside what always stays so."
    return LendRoom(min(free, wanted), 0, why if free < wanted else "", wanted, idle)


def card_bytes_per_s(card: DriverGpu) -> float:
    """KV that a card attends to: its memory's rate, as far as attention reaches it."""
    try:
        return known_gpu(card.name).kv_bytes_per_s
    except UserError:
        return UNKNOWN_CARD_BYTES_PER_S
