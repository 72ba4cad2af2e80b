"""What do a link's bounds cost an honest neighbour? Two versions of the sources, in turns.

    python -m tools.experiments.links.bounds_cost BEFORE [--pairs 9]

BEFORE is a directory with an older version's sources (`git archive COMMIT | tar -x -C BEFORE`).
Each pair runs both versions, one after the other and in changing order, each in a process of its
own; printed are the medians and the median of each pair's ratio. Measured are a decode header (8
rows) and a chunk's header as they are decoded, a decode message over a link on loopback, from
`send_next` until its reader has it, and prompts of 1 MiB in plenty.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

HEADER_CALLS, MESSAGES, PROMPTS = 20_000, 1_500, 150
REPEATS = 5
ROWS, SPAN_ROWS, WIDTH = 8, 128, 4096
WAIT_S = 10.0
ROOT = Path(__file__).parents[3]


def figures() -> dict[str, float]:
    """Of the version that is imported."""
    from molink.wire.chunks import ChunkHeader, decode_link_frame
    from molink.wire.elements import TensorHeader
    from molink.wire.frames import Activations, decode_message, encode_message
    from molink_scheduler.batch import DECODE, PREFILL, Batch, Span

    row, span = TensorHeader("bfloat16", ROWS, WIDTH), TensorHeader("bfloat16", SPAN_ROWS, WIDTH)
    rows = tuple(Span(1000 + number, 500, 501, True) for number in range(ROWS))
    decode = Activations(Batch(7, DECODE, 0, rows), row, bytes(row.raw_bytes))
    spans = (Span(1000, 0, SPAN_ROWS, True),)
    prompt = Activations(Batch(7, PREFILL, -1, spans), span, bytes(span.raw_bytes))
    frames = encode_message(decode, 1)
    chunk = ChunkHeader(100_000, 5_000, 0, 65_640, 104).encode()
    return {
        "decode header, us": _each_us(lambda: decode_message(frames)),
        "chunk header, us": _each_us(lambda: decode_link_frame(chunk)),
        **_link_figures(decode, prompt),
    }


def _link_figures(decode: Any, prompt: Any) -> dict[str, float]:
    """Of a link on loopback that carries these."""
    from molink.stage.links import StageLinks
    from molink.stage_protocol.messages import JoinRing
    from molink_scheduler.batch import PREFILL
    from molink_scheduler.head.settings import RingTerms

    near, far = (StageLinks.bind(name, "127.0.0.1", False, print) for name in ("near", "far"))
    near.connect(JoinRing(1, f"tcp://127.0.0.1:{far.ports[0]}", None, RingTerms(64), None))
    far._links.epoch = 1

    def receive(count: int) -> None:
        while count:
            far.wait(WAIT_S)
            count -= len(list(far.receive()))

    took: list[float] = []
    for _ in range(MESSAGES):
        began = time.perf_counter()
        near.send_next(decode)
        receive(1)
        took.append(time.perf_counter() - began)
    reader = threading.Thread(target=receive, args=(PROMPTS,))
    reader.start()
    began = time.perf_counter()
    for _ in range(PROMPTS):
        near.send_next(prompt, PREFILL)
    reader.join()
    megabytes = PROMPTS * len(prompt.buffer) / 1e6
    rate = megabytes / (time.perf_counter() - began)
    for one in (near, far):
        one._links.close()
    return {"decode message, us": statistics.median(took) * 1e6, "prompts, MB/s": rate}


def _each_us(call: Callable[[], object]) -> float:
    """Of processor time: others may want the core too."""
    timed = timeit.repeat(call, timer=time.thread_time, number=HEADER_CALLS, repeat=REPEATS)
    return min(timed) / HEADER_CALLS * 1e6


def measured(sources: Path) -> dict[str, float]:
    """In a process that imports these sources."""
    paths = [str(sources / folder) for folder in ("", "scheduler", "sim", "agent")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(Path(__file__).resolve()), "--here"]
    done = subprocess.run(command, env=environment, cwd=sources, capture_output=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@click.command()
@click.argument("before", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--pairs", default=9, help="How often each version is measured.")
@click.option("--here", is_flag=True, help="Print the figures of the version that is imported.")
def main(before: Path | None, pairs: int, here: bool) -> None:
    """Compare BEFORE with this version."""
    if here:
        print(json.dumps(figures()))
        return
    if before is None:
        raise click.UsageError("give the directory of an older version's sources")
    runs: list[list[dict[str, float]]] = [[], []]
    for pair in range(pairs):
        for version in (0, 1) if pair % 2 else (1, 0):
            runs[version].append(measured((before.resolve(), ROOT)[version]))
    for name in runs[0][0]:
        old, new = ([run[name] for run in version] for version in runs)
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        print(
            f"{name:20} {statistics.median(old):9.2f} -> {statistics.median(new):9.2f}"
            f"   x {ratio:.3f}"
        )


if __name__ == "__main__":
    main()
