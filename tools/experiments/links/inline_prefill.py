"""What does a decode step take along with a piece of a prompt, and what as two steps?

    python -m tools.experiments.links.inline_prefill MODEL --out DIR

All layers of MODEL as one stage. A step of B decode rows and one of P rows of a prompt, one after
the other as they are computed today, against one step of all B + P rows: linear layers over all of
them together, attention apart, which is what the engine makes of a batch with spans of both kinds.
No head plans such a batch. The three steps take turns; medians of the rounds, and the tokens that
both ways draw are compared. Then by arithmetic what decode rows would wait for on a hop, in two
ways: sent with the piece in one message, or ahead of it.
"""

import statistics
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.engine.loading import load_stage
from molink.engine.step.stage import StageExecutor
from molink.stage_protocol.messages import StageWork
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, BatchClass, Span
from molink_scheduler.request import SamplingParams
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main", "per_hop_ms", "saved_share"]

DECODE_ROWS = (1, 4, 8, 16)
PIECES = (8, 32, 128)
CONTEXT_TOKENS = 128
"""Tokens that a decode row attends to, and that a piece of a prompt follows."""

PROMPT = 1000
"""Id of the request whose prompt it is."""

LINKS_MBPS = (20.0, 100.0, 1000.0)

Figures = dict[str, float]


@experiment
@click.argument("model")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")
@click.option("--threads", default=1, show_default=True, help="Compute threads of the stage.")
@click.option("--rounds", default=5, show_default=True, help="Of which medians are taken.")
@click.option("--pieces", default=",".join(map(str, PIECES)), show_default=True, help="Rows.")
def main(out: Path, model: str, dtype: str, threads: int, rounds: int, pieces: str) -> None:
    """Measure steps of decode rows, of a piece of a prompt, and of both together."""
    torch.set_num_threads(threads)
    layers = describe(open_checkpoint(model)).layers
    stage = load_stage(model, _work(layers, dtype, threads), self_test=False)
    _fill(stage)
    sizes = [int(one) for one in pieces.split(",")]
    rows: list[dict[str, Any]] = []
    for decode_rows, piece in product(DECODE_ROWS, sizes):
        steps = _measured(stage, decode_rows, piece, rounds)
        hops = {f"{mbps:g} Mbps": _hop(stage, steps, piece, mbps) for mbps in LINKS_MBPS}
        rows.append({"decode_rows": decode_rows, "piece": piece, **steps, "hops": hops})
        click.echo(" ".join(_cells(rows[-1])[:6]), err=True)
    row_bytes = stage.hidden_size * stage.dtype.itemsize
    report = {"model": Path(model).name, "dtype": dtype, "threads": threads, "rounds": rounds}
    write_report(out, "inline_prefill", report | {"row_bytes": row_bytes, "rows": rows})
    show(_table(rows))


def saved_share(decode_ms: float, prompt_ms: float, joint_ms: float) -> float:
    """Share of two steps' time that one step for both saves."""
    return 1 - joint_ms / (decode_ms + prompt_ms)


def per_hop_ms(
    decode_ms: float, joint_ms: float, piece_bytes: int, mbps: float
) -> tuple[float, float]:
    """Milliseconds by which a decode step is later at the next stage: where the piece is in its
    message, and where its rows are sent ahead of the piece."""
    waits_ms = joint_ms - decode_ms
    return waits_ms + piece_bytes * 8 / (mbps * 1e3), waits_ms


# -- steps ----------------------------------------------------------------------------------------


def _work(layers: int, dtype: str, threads: int) -> StageWork:
    tokens = (max(DECODE_ROWS) + 2) * (CONTEXT_TOKENS + max(PIECES))
    return StageWork((0, layers), "cpu", dtype, threads=threads, kv_tokens=tokens)


def _fill(stage: StageExecutor) -> None:
    """Let all requests hold their context: memory that was never written is read faster."""
    for number in (*range(max(DECODE_ROWS)), PROMPT):
        tokens = CONTEXT_TOKENS + max(PIECES)
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        stage.admit(Admission(number, tokens, tokens, sampling))
        _step(stage, PREFILL, (Span(number, 0, CONTEXT_TOKENS, False),))


def _measured(stage: StageExecutor, decode_rows: int, piece: int, rounds: int) -> Figures:
    """Median milliseconds of the three steps, which take turns."""
    decode = tuple(
        Span(number, CONTEXT_TOKENS - 1, CONTEXT_TOKENS, True) for number in range(decode_rows)
    )
    prompt = (Span(PROMPT, CONTEXT_TOKENS, CONTEXT_TOKENS + piece, True),)
    steps = {
        "decode_ms": (DECODE, decode),
        "prompt_ms": (PREFILL, prompt),
        "joint_ms": (PREFILL, decode + prompt),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    drawn: dict[str, list[Any]] = {}
    for number in range(rounds + 1):
        for name, (batch_class, spans) in steps.items():
            began_s = time.perf_counter()
            drawn[name] = _step(stage, batch_class, spans)
            if number:  # The first warms up.
                times[name].append((time.perf_counter() - began_s) * 1e3)
    same = sum(map(_equal, drawn["joint_ms"], drawn["decode_ms"] + drawn["prompt_ms"]))
    middle = {name: statistics.median(values) for name, values in times.items()}
    return {**middle, "saved": saved_share(**middle), "same_tokens": same / len(drawn["joint_ms"])}


def _equal(one: Any, other: Any) -> bool:
    return bool(one.token_id == other.token_id)


def _step(stage: StageExecutor, batch_class: BatchClass, spans: tuple[Span, ...]) -> list[Any]:
    ids = list(_ids(spans, stage.description.vocabulary_size))
    return list(stage.step(Batch(0, batch_class, 0, spans), ids).drawn)


def _ids(spans: tuple[Span, ...], words: int) -> Iterator[int]:
    """Token ids that differ by request and place."""
    for span in spans:
        for place in range(span.start, span.end):
            yield (7 + 31 * span.request_id + 17 * place) % words


def _hop(stage: StageExecutor, steps: Figures, piece: int, mbps: float) -> Figures:
    piece_bytes = piece * stage.hidden_size * stage.dtype.itemsize
    together, ahead = per_hop_ms(steps["decode_ms"], steps["joint_ms"], piece_bytes, mbps)
    return {"one_message_ms": together, "decode_ahead_ms": ahead}


def _table(rows: list[dict[str, Any]]) -> str:
    head = ["decode rows, piece", "decode", "piece", "both", "saved", "same tokens"]
    head += [f"later at {mbps:g} Mbps" for mbps in LINKS_MBPS] + ["later, decode ahead"]
    return markdown_table(head, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    hops = list(row["hops"].values())
    steps = [f"{row[name]:.1f}" for name in ("decode_ms", "prompt_ms", "joint_ms")]
    shares = [f"{row['saved']:.0%}", f"{row['same_tokens']:.0%}"]
    later = [f"{one['one_message_ms']:.1f}" for one in hops]
    last = f"{hops[0]['decode_ahead_ms']:.1f}"
    return [f"{row['decode_rows']}, {row['piece']}", *steps, *shares, *later, last]


if __name__ == "__main__":
    main()
