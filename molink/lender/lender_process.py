"""Entry point of a lender's process: `python -m molink.lender.lender_process FD`.

A stage starts it and holds the other end of its socket; when that closes the process ends, so no
lender outlives its stage. It takes frames in order and answers those that ask for something. Who
attends here waits in the middle of a layer, so nothing else is done beside.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Before torch is imported: a spinning OpenMP thread costs 8 ms per region on a shared core.

import argparse
import json
import secrets
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from molink.engine.device.elements import elements_of
from molink.engine.layers.held_blocks import CPU, HeldBlocks
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine_protocol.lender import LentKv, LentLayer, LentSpan
from molink.errors import FrameError
from molink.json_object import JsonObject
from molink.lender.protocol import Buffer, Frame, Kind, LenderLink, Receiver, send


@dataclass(slots=True)
class LenderLoop:
    """One stage's blocks, and the link by which it asks for them."""

    link: LenderLink
    incarnation: int
    device: torch.device = CPU
    """Where the blocks lie: in main memory, or on a card that holds no stage."""
    _held: HeldBlocks = field(init=False)

    def run(self) -> None:
        """Serve until the stage closes the link."""
        receiver = Receiver(self.link)
        with torch.inference_mode(), suppress(ConnectionError):
            while True:
                self.take(*receiver.receive())

    def take(self, frame: Frame, content: memoryview) -> None:
        """Do what a frame says. Raises FrameError for one that no stage sends, OSError where the
        link has ended."""
        match frame.kind:
            case Kind.HELLO:
                self._begin(bytes(content))
            case Kind.PUT:
                places, packed = _split(content, frame.number)
                self._held.put(places, np.frombuffer(packed, np.uint8).reshape(len(places), -1))
            case Kind.DROP:
                self._held.drop(_numbers(content).tolist())
            case Kind.KEEP:
                moved = _numbers(content).tolist()
                self._held.keep(frame.number, [*zip(moved[::2], moved[1::2], strict=True)])
            case Kind.PLAN:
                self._held.plan(_spans(frame.number, content))
            case Kind.ASK:
                self._attend(frame, content)
            case Kind.TAKE:
                rows_BX = self._held.take(frame.layer, _numbers(content).tolist())
                self._answer(frame, Kind.ROWS, [rows_BX.data])
            case _:
                raise FrameError(f"a stage sends no {frame.kind.name}")

    def _begin(self, content: bytes) -> None:
        hello: JsonObject = json.loads(content)
        places = hello.pop("places")
        layers = tuple(LentLayer(*one) for one in hello.pop("layers"))
        self._held = HeldBlocks.of(LentKv(layers, **hello), places, self.device)
        self._held.warm_up()
        self._answer(Frame(Kind.HELLO), Kind.HELLO, [content])

    def _attend(self, frame: Frame, content: memoryview) -> None:
        shape = self._held.pool.layers[frame.layer].keys
        rows = torch.frombuffer(content, dtype=self._held.dtype)
        q_RHA = rows.view(self._held.rows_planned, -1, shape.size)
        variant = AttentionVariant(frame.scale, frame.softcap or None)
        part = self._held.attend(frame.layer, q_RHA, frame.window or None, variant)
        out, sums = elements_of(part.out_THV), part.log_sums_TH.numpy()
        self._answer(frame, Kind.ANSWER, [out.data, sums.data])

    def _answer(self, asked: Frame, kind: Kind, parts: list[Buffer]) -> None:
        send(self.link, Frame(kind, asked.layer, asked.number, self.incarnation), parts)


def _numbers(content: Buffer) -> "np.ndarray[Any, np.dtype[np.int32]]":
    return np.frombuffer(content, np.int32)


def _split(content: memoryview, count: int) -> tuple[list[int], memoryview]:
    """The first so many numbers, and the bytes behind them."""
    return _numbers(content[: 4 * count]).tolist(), content[4 * count :]


def _spans(count: int, content: memoryview) -> list[LentSpan]:
    heads, rest = content[: 12 * count], _numbers(content[12 * count :])
    spans, first = [], 0
    for rows, start, blocks in _numbers(heads).reshape(count, 3).tolist():
        spans.append(LentSpan(rows, start, rest[first : first + blocks].tolist()))
        first += blocks
    return spans


def lend_over(link: int, threads: int) -> None:
    """Serve the stage at the other end of an inherited socket with so many threads, until it closes
    that."""
    torch.set_num_threads(threads)
    with socket.socket(fileno=link) as stage:
        LenderLoop(stage, secrets.randbits(63) or 1).run()


def main() -> None:
    """Serve the stage that has started this process."""
    parser = argparse.ArgumentParser(prog="molink.lender.lender_process")
    parser.add_argument("link", type=int, help="Descriptor of the socket.")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lend_over(arguments.link, arguments.threads)


if __name__ == "__main__":
    main()
