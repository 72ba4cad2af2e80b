"""What does it cost to attend to keys that a process of the same PC holds?

    python -m tools.experiments.room.lender_cost --out DIR

Shapes of Llama-3-8B in bf16: 32 query heads on 8 kv heads of 128. Three questions:

- half of the keys of decode rows away, in pairs with all of them at home;
- the frames of one call, echoed by another process, in pairs with the same bytes over a pair of
  ZeroMQ sockets; and the whole of a call that has one block to attend to;
- a span's queries sent to its keys against its keys brought to them, and which of the two the rule
  takes (`lent_attention.is_sooner_pushed`).
"""

import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq

from molink.engine.layers import lent_attention
from molink.engine.layers.held_blocks import HeldBlocks
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.lent_attention import LentStep, is_sooner_pushed
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink.engine_protocol.lender import LentKv, LentLayer
from molink.lender.client import BULK_S, TIMEOUT_S
from molink.lender.protocol import Frame, Kind, Receiver, send
from molink.lender.starting import start_lender
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from tools.experiments.harness.experiment import experiment

__all__ = ["main"]

HEADS, KV_HEADS, SIZE, KEYS_MAX = 32, 8, 128, 8192
BLOCKS = KEYS_MAX // BLOCK_TOKENS
VARIANT = AttentionVariant(SIZE**-0.5)
PAIRS = 40
DECODES = ((1, 1024), (1, 8192), (8, 1024), (8, 8192))
"""Rows, and keys that each of them sees."""

SPANS = ((8, 2048), (64, 2048), (128, 512), (128, 2048), (256, 512), (512, 512), (512, 4096))
"""Rows of one span, and its lent keys."""


class Apparatus:
    """One layer of a stage, with a copy of its blocks at a lender."""

    def __init__(self) -> None:
        self.pool, kv = KvPool(2 * KEYS_MAX), LentKv(_layers(), "bfloat16", "auto")
        rows = torch.randn(2, self.pool.slots, KV_HEADS, SIZE).bfloat16()
        self.layer = self.pool.write(0, torch.arange(self.pool.slots), *rows)
        self.lender, self.held = start_lender(), HeldBlocks.of(kv, BLOCKS, is_shared=True)
        self.lender.timeout_s = (10.0, 10.0)
        self.lender.hold(kv, BLOCKS)
        packed = torch.cat([rows[BLOCKS:] for rows in self.pool.block_rows()], dim=1)
        self.lender.put(range(BLOCKS), packed.numpy())

    def calls(self, spans: list[RaggedSpan]) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Attention of spans with all keys at home, and with those at the lender there."""
        q_THA = torch.randn(sum(span.rows for span in spans), HEADS, SIZE).bfloat16()
        batch = RaggedBatch.of(spans, q_THA.device)
        whole = LayerRows(batch, self.pool, self.layer, q_THA, None, VARIANT)
        step = LentStep.of(spans, BLOCKS, self.lender, self.held)
        assert step is not None
        return whole.attend, lambda: step.attend(0, whole)


@experiment
def main(out: Path) -> None:
    """Print microseconds of a layer."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        apparatus = Apparatus()
        lines = [*_halves(apparatus), *_one_call(apparatus), *_pushed_and_pulled(apparatus)]
    out.mkdir(parents=True, exist_ok=True)
    (out / "lender_cost.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    apparatus.lender.link.close()


def _halves(apparatus: Apparatus) -> Iterator[str]:
    for rows, keys in DECODES:
        blocks = keys // BLOCK_TOKENS
        # The row's own key is at home, so one more block than the half.
        table = [*range(BLOCKS, BLOCKS + blocks // 2), *range(blocks // 2)]
        spans = [RaggedSpan(row, 1, keys - 1, keys, table) for row in range(rows)]
        home_us, parts_us = _pairs(*apparatus.calls(spans))
        yield (
            f"{rows} rows x {keys:,} keys, half away: {home_us:,.0f} us at home, {parts_us:,.0f} "
            f"in parts, {parts_us / home_us - 1:+.1%}, {parts_us - home_us:+,.0f} us"
        )


def _one_call(apparatus: Apparatus) -> Iterator[str]:
    spans = [RaggedSpan(0, 1, 2 * BLOCK_TOKENS - 1, 2 * BLOCK_TOKENS, [BLOCKS, 0])]
    step = LentStep.of(spans, BLOCKS, apparatus.lender, apparatus.held)
    assert step is not None
    plan, q_1HA = tuple(step.lent.values()), np.zeros((1, HEADS, SIZE), np.uint16)

    def asked() -> None:
        apparatus.lender.plan(plan)
        apparatus.lender.ask(0, q_1HA, VARIANT.scale, None, None)
        apparatus.lender.answer()

    content = q_1HA.tobytes()
    with _zmq_echo() as echoed, _raw_echo() as raw:
        raw_us, zmq_us = _pairs(lambda: raw(content), lambda: echoed(content), 400)
    whole_us, _ = _pairs(asked, asked, 200)
    yield (
        f"a call of one row: {raw_us:.0f} us for its frames, {zmq_us:.0f} by ZeroMQ, "
        f"{raw_us / zmq_us:.2f} of it; {whole_us:.0f} with attention to one block"
    )


def _pushed_and_pulled(apparatus: Apparatus) -> Iterator[str]:
    for rows, keys in SPANS:
        away = range(BLOCKS, BLOCKS + keys // BLOCK_TOKENS)
        here = range(rows // BLOCK_TOKENS + 1)
        spans = [RaggedSpan(0, rows, keys, keys + rows, [*away, *here])]
        is_pushed = is_sooner_pushed(torch.device("cpu"), rows, HEADS // KV_HEADS, keys)
        pushed, pulled = (_attending(apparatus, spans, pushed=way) for way in (True, False))
        push_us, pull_us = _pairs(pushed, pulled, 10)
        taken_us = push_us if is_pushed else pull_us
        yield (
            f"{rows} rows over {keys:,} lent keys: {push_us:,.0f} us pushed, {pull_us:,.0f} "
            f"pulled, the rule {'pushes' if is_pushed else 'pulls'}, "
            f"{taken_us / min(push_us, pull_us) - 1:+.0%}"
        )


def _attending(apparatus: Apparatus, spans: list[RaggedSpan], *, pushed: bool) -> Callable[[], Any]:
    _, in_parts = apparatus.calls(spans)

    def attended() -> None:
        rule, lent_attention.is_sooner_pushed = is_sooner_pushed, lambda *_: pushed
        try:
            in_parts()
        finally:
            lent_attention.is_sooner_pushed = rule

    return attended


def _pairs(
    one: Callable[[], Any], other: Callable[[], Any], count: int = PAIRS
) -> tuple[float, float]:
    """Medians in microseconds, each call in turn with the other."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(count + 2):
        for call, taken in zip((one, other), seconds, strict=True):
            started = time.perf_counter()
            call()
            if number > 1:  # The first ones warm up.
                taken.append(time.perf_counter() - started)
    return statistics.median(seconds[0]) * 1e6, statistics.median(seconds[1]) * 1e6


@contextmanager
def _raw_echo() -> Iterator[Callable[[bytes], object]]:
    """The same over frames of our own, with waits as a stage's end of the link sets them."""
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("spawn").Process(target=_echo_frames, args=(theirs,))
    process.start()
    theirs.close()
    receiver = Receiver(ours)

    def echoed(content: bytes) -> object:
        ours.settimeout(BULK_S)
        send(ours, Frame(Kind.ASK), [content])
        ours.settimeout(TIMEOUT_S[1])
        return receiver.receive()

    try:
        yield echoed
    finally:
        ours.close()
        process.join()


def _echo_frames(link: socket.socket) -> None:
    receiver = Receiver(link)
    with suppress(ConnectionError):
        while True:
            _, content = receiver.receive()
            send(link, Frame(Kind.ANSWER), [content, bytes(4 * HEADS)])


@contextmanager
def _zmq_echo() -> Iterator[Callable[[bytes], bytes]]:
    """A call that another process answers with as many bytes as attention's part has."""
    address = f"ipc:///tmp/molink-echo-{time.time_ns()}"
    process = multiprocessing.get_context("spawn").Process(target=_echo, args=(address,))
    process.start()
    context = zmq.Context()
    link = context.socket(zmq.PAIR)
    link.connect(address)

    def echoed(content: bytes) -> bytes:
        link.send(content)
        return link.recv()

    try:
        yield echoed
    finally:
        link.send(b"")
        process.join()
        context.destroy(linger=0)


def _echo(address: str) -> None:
    link = zmq.Context().socket(zmq.PAIR)
    link.bind(address)
    while content := link.recv():
        link.send(content + bytes(4 * HEADS))


def _layers() -> tuple[LentLayer, ...]:
    return (LentLayer(0, KV_HEADS, SIZE, SIZE),)


if __name__ == "__main__":
    main()
