"""Room for KV on a graphics card, beside weights and what a step takes.

A card commits memory at once, so what a stage takes is measured before it offers anything: the
longest span is run once, and what the allocator has held meanwhile beyond the tensors that stay is
what a step takes. What others hold is counted as the driver reports it, and a part of the card
stays free. A share of what is free when a stage happens to load was rejected: the first of three
stages on a card took what the third one's weights needed.

Stages of one ring on one card divide it evenly, weights included, whatever of it the others hold by
now. Which processes those are the driver tells on Linux; under WSL and in containers it does not,
and what other programs hold then lessens the last stage's part only.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from molink.checkpoint.stage_size import KV_TOKENS_MIN
from molink.engine.device.card import Card, processes_beside
from molink.engine.step.graphs.static_inputs import BUCKETS
from molink.engine.step.runnable import RunnableStage
from molink.engine.step.warm_up import run_span
from molink.errors import NoRoomError
from molink.hardware.card_memory import CONTEXT_BYTES, STEP_BYTES, kept_free_bytes
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.timing.steps import REPLAY_ROWS_MAX
from molink_scheduler.units import gib_text

SPAN_ROWS_MEASURED = REPLAY_ROWS_MAX
"""Rows of the span that is run for its memory: the most that a step has by default. A ring whose
operator sets longer ones cuts them where they do not fit."""

RECORDING_BYTES = 32 * 2**20
"""Bytes that the driver keeps for each recorded step beside tensors: others report 10 to 50 MB."""

KV_KEPT_SHARE = 0.75
"""Share kept of the KV beside which a long context's step had no room: from 128K tokens to none
that is worth it in 14 attempts."""


@dataclass(frozen=True, slots=True)
class CardRoom:
    """Room of one stage on its card, in bytes: what there is, and what of it is taken already."""

    total: int
    free: int
    weights: int
    """Weights of this stage, and whatever else it holds for good."""
    step: int
    """Memory that a step takes beside the weights, as measured."""
    foreign: int
    """Memory held by programs that are no stages of this ring."""
    stages_here: int = 1
    """Stages that divide the card, this one included."""
    lent: int | None = None
    """Memory that the PC's owner lends for weights and KV; None: he has set nothing."""

    @property
    def most(self) -> int:
        """Most that this process's tensors may take."""
        share = (self.total - kept_free_bytes(self.total) - self.foreign) // self.stages_here
        held_to = share - CONTEXT_BYTES
        return held_to if self.lent is None else min(held_to, self.lent + STEP_BYTES)

    @property
    def for_kv(self) -> int:
        """Room left for KV and states; below 0 where not even a step has room."""
        free_now = self.free - kept_free_bytes(self.total)
        return min(free_now, self.most - self.weights) - self.step


def make_room_on(
    card: Card,
    stage: RunnableStage,
    kv_tokens: int | None,
    stages_here: int = 1,
    lent_bytes: int | None = None,
) -> None:
    """Measure what a step takes of the card, and have the stage make room for KV in what is left.
    Raises NoRoomError when too little is.
    """

    def run_longest(end: int) -> None:
        last = min(end, stage.kv.tokens_capacity, stage.description.model_len_max)
        run_span(stage, max(0, last - SPAN_ROWS_MEASURED), last)

    stage.resize_kv(min(SPAN_ROWS_MEASURED, stage.description.model_len_max))
    step_bytes = measured_step_bytes(card, run_longest)
    if stage.recorder is not None:
        step_bytes += _recordings_bytes(card, stage)
    stage.resize_kv(BLOCK_TOKENS)
    card.return_freed()
    room = room_on(card, step_bytes, stages_here, lent_bytes)
    state_bytes = stage.request_bytes + stage.windows.shared_bytes
    fitting = fitting_kv_tokens(card, room, stage.kv_token_bytes, state_bytes, kv_tokens)
    stage.make_room(fitting, room.for_kv)
    card.hold_to(room.most)
    settle_kv(card, stage.kv.tokens_capacity, stage.resize_kv, run_longest)


def _recordings_bytes(card: Card, stage: RunnableStage) -> int:
    """Bytes of recorded steps: the largest one's memory, which no other step may use, what the
    driver keeps, and a block and a state slot for rows that belong to nobody."""
    rows = min(BUCKETS[0], stage.description.model_len_max)
    step_bytes = measured_step_bytes(card, lambda _: run_span(stage, 0, rows))
    padding_bytes = BLOCK_TOKENS * stage.kv_token_bytes + stage.request_bytes
    return step_bytes + len(BUCKETS) * RECORDING_BYTES + padding_bytes


def room_on(
    card: Card,
    step_bytes: int,
    stages_here: int,
    lent_bytes: int | None,
    ours: Collection[int] | None = None,
) -> CardRoom:
    """The room that a stage has which holds its weights on the card and nothing else yet. `ours`:
    processes that divide the card; None: those that our parent has started."""
    total, free = card.total_bytes, card.free_bytes
    return CardRoom(
        total,
        free,
        card.held_bytes,
        step_bytes,
        _foreign_bytes(card, total - free, processes_beside() if ours is None else ours),
        stages_here,
        lent_bytes,
    )


def measured_step_bytes(card: Card, run_longest: Callable[[int], object]) -> int:
    """Bytes that the longest step takes beside what stays; it is run with its rows.

    Raises NoRoomError when there is none for it.
    """
    card.forget_peak()
    held = card.held_bytes
    if not _runs(card, run_longest, SPAN_ROWS_MEASURED):
        raise NoRoomError(
            f"{card.device} is too full for one step beside {gib_text(held)} of weights: "
            "give it fewer layers (more nodes), or close other programs on it"
        )
    return max(0, card.peak_bytes - held)


def fitting_kv_tokens(
    card: Card, room: CardRoom, token_bytes: int, state_bytes: int, wanted: int | None
) -> int | None:
    """Tokens of KV, the `wanted` ones where they fit beside one request's states; None, which wants
    as many as fit, stays None.

    Of what a coordinator has planned by a model's shape it is as much as fits: only the card knows
    what a step takes. Raises NoRoomError where an operator has asked for more than fits, and where
    not one conversation does.
    """
    left_bytes = room.for_kv - state_bytes
    if token_bytes == 0 and left_bytes >= 0:
        return wanted
    fitting = max(0, left_bytes) // max(1, token_bytes) // BLOCK_TOKENS * BLOCK_TOKENS
    least = min(KV_TOKENS_MIN, wanted or KV_TOKENS_MIN)
    if fitting < least:
        raise NoRoomError(_no_room(card, room, f"{fitting:,} tokens of KV, {least:,} are needed"))
    if wanted is None or wanted <= fitting:
        return wanted
    if room.lent is None:
        raise NoRoomError(_no_room(card, room, f"{fitting:,} tokens of KV, {wanted:,} are wanted"))
    return fitting


def settle_kv(
    card: Card, tokens: int, resize: Callable[[int], None], run_at: Callable[[int], object]
) -> None:
    """Run the longest span at the end of `tokens` tokens, which the stage has room for, and make
    that room smaller (`resize`) until it runs: the scores of a layer that caps them grow with the
    context. Raises NoRoomError when too little is left.
    """
    while not _runs(card, run_at, tokens):
        card.return_freed()
        tokens = int(tokens * KV_KEPT_SHARE)
        if tokens < KV_TOKENS_MIN:
            raise NoRoomError(
                f"{card.device} has no room for a step at the end of {KV_TOKENS_MIN:,} tokens: "
                "give it fewer layers (more nodes), or close other programs on it"
            )
        resize(tokens)


def _runs(card: Card, run_at: Callable[[int], object], tokens: int) -> bool:
    try:
        run_at(tokens)
        card.wait()
    except torch.OutOfMemoryError:
        return False
    return True


def _no_room(card: Card, room: CardRoom, kv: str) -> str:
    return (
        f"{card.device} has room for {kv}: its weights take {gib_text(room.weights)}, a step "
        f"{gib_text(room.step)}, other programs {gib_text(room.foreign)} of "
        f"{gib_text(room.total)}, and {gib_text(kept_free_bytes(room.total))} stay free; give it "
        "fewer layers (more nodes), ask for fewer --kv-tokens, or close other programs on it"
    )


def _foreign_bytes(card: Card, used_bytes: int, ours: Collection[int]) -> int:
    """Used bytes that others hold; 0 where the driver does not tell who holds what."""
    held = card.bytes_by_process()
    if held is None or not held.keys() & set(ours):
        return 0
    return max(0, used_bytes - sum(size for pid, size in held.items() if pid in ours))
