"""What does the directory of cached blocks cost the head, in time and memory?

    python -m tools.experiments.ring.prefix_directory --out DIR

Random prompts of 2,000 tokens come to a directory until it holds a million blocks, and then as many
more while each needs room made for it, which is how a ring is that has served for a while. Timed is
what the head does for each: read its message, in which the tokens come packed, look them up, cache
them and pin the chain. Nothing is shared, so every block is new. Times are the processor's. About
half a minute.
"""

import random
import resource
import statistics
import time
from pathlib import Path

import click

from molink.wire.frames import Submit, decode_message, encode_message
from molink.workload.figures import percentile
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiered_tree import TieredTree
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes
from tools.experiments.harness.experiment import (
    Figures,
    experiment,
    markdown_table,
    show,
    write_report,
)

__all__ = ["main"]

PROMPT_TOKENS, VOCABULARY = 2_000, 150_000

STEPS = ("read its message", "look up", "cache", "look up and cache")

SAMPLING = SamplingParams(max_tokens=100)

Times = dict[str, list[int]]
"""Nanoseconds of each step of each prompt."""


@experiment
@click.option("--blocks", default=1_000_000, show_default=True, help="Blocks that it has room for.")
def main(out: Path, blocks: int) -> None:
    """Print median and p99 of the head's work for one prompt in microseconds, and megabytes."""
    prompts, drawn = blocks * BLOCK_TOKENS // PROMPT_TOKENS, random.Random(1)
    tree, before_kb = TieredTree(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    growing = _times(tree, prompts, drawn, 0)
    held_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    full = _times(tree, prompts, drawn, PROMPT_TOKENS // BLOCK_TOKENS)
    figures = {"grows": _figures(growing), "full": _figures(full)}
    write_report(out, "prefix_directory", {"blocks": blocks, "megabytes": held_mb} | figures)
    show(_table(figures))
    click.echo(f"{tree.blocks:,} blocks take {held_mb:.0f} MB.")


def _times(tree: TieredTree, prompts: int, drawn: random.Random, room_blocks: int) -> Times:
    """Time each step for so many prompts, making room of so many blocks for each."""
    times: Times = {step: [] for step in STEPS}
    for number in range(prompts):
        packed = token_bytes(drawn.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS))
        message = encode_message(Submit(Request(number, packed, SAMPLING)), 0)
        began = time.process_time_ns()
        decode_message(message)
        was_read = time.process_time_ns()
        tree.find("", packed)
        was_found = time.process_time_ns()
        tree.drop(room_blocks)
        node, _ = tree.extend("", packed)
        tree.unpin(node)
        ended = time.process_time_ns()
        times["read its message"].append(was_read - began)
        times["look up"].append(was_found - was_read)
        times["cache"].append(ended - was_found)
        times["look up and cache"].append(ended - was_read)
    return times


def _figures(times: Times) -> dict[str, Figures]:
    """Microseconds."""
    return {
        step: {
            "median": statistics.median(timed) / 1000,
            "p99": percentile(sorted(timed), 99) / 1000,
        }
        for step, timed in times.items()
    }


def _table(figures: dict[str, dict[str, Figures]]) -> str:
    columns = [(state, key) for state in figures.values() for key in ("median", "p99")]
    rows = [[step, *(f"{state[step][key]:.1f}" for state, key in columns)] for step in STEPS]
    head = ("us a prompt", "grows: median", "p99", "full: median", "p99")
    return markdown_table(head, rows)


if __name__ == "__main__":
    main()
