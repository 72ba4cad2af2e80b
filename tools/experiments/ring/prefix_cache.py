"""What does the prefix cache save: in a chat, for a crowd with one system prompt, and where nothing
is shared?

    python -m tools.experiments.ring.prefix_cache MODEL --out DIR

One ring after the other with the cache and without it, in turn. A chat of eight turns sends its
whole history each time. A crowd of 16 users comes within two seconds, with one system prompt of
1,500 tokens and 20 of their own. Then eight users at a time ask for what nobody has asked, to see
what the cache costs, and once more: with `--serve-options "--kv-tokens 8192"` all KV has been in
use by then, and room is made for every prompt. Prompts are random tokens from the round's seed.
About two minutes for each condition and round.
"""

import asyncio
import time
from typing import Any

import click

from molink.bench.served_ring import ServedRing
from tools.experiments.harness.asking import Answered, ask, random_prompt
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Setup,
    markdown_table,
    ring_experiment,
    show,
)
from tools.experiments.harness.serving import link_of, rings_in_turn

__all__ = ["main"]

CONDITIONS = (Condition("cache"), Condition("no cache", ("--no-prefix-cache",)))

TURNS, TURN_TOKENS, ANSWER_TOKENS = 8, 300, 100

CROWD, SYSTEM_TOKENS, OWN_TOKENS, ARRIVING_S = 16, 1500, 20, 2.0

APART_USERS, APART_REQUESTS, APART_TOKENS, APART_ANSWER_TOKENS = 8, 24, 300, 64


@ring_experiment()
@click.option("--apart", is_flag=True, help="Only users who share nothing.")
def main(setup: Setup, apart: bool) -> None:
    """Measure time to first token and bytes with the prefix cache and without it."""

    async def figures(ring: ServedRing, _: int) -> Figures:
        shared = {} if apart else await _chat(ring) | await _crowd(ring)
        first = await _apart(ring)
        again = {f"again_{name}": value for name, value in (await _apart(ring)).items()}
        return shared | first | again

    middle = rings_in_turn("prefix_cache", setup, CONDITIONS, figures)
    show(_table(middle))


async def _chat(ring: ServedRing) -> Figures:
    """Times to the first token of a chat's first and last turn."""
    history: list[int] = []
    ttft_s: list[float] = []
    for _ in range(TURNS):
        history += random_prompt(ring, TURN_TOKENS)
        answered = await ask(ring, history, ANSWER_TOKENS)
        history += answered.tokens
        ttft_s.append(answered.ttft_s)
    return {"first_turn_s": ttft_s[0], "last_turn_s": ttft_s[-1]}


async def _crowd(ring: ServedRing) -> Figures:
    """Mean time to first token of a crowd, and rows' bytes on the first hop by what it would take
    to send each distinct token once, headers and decode apart."""
    system = random_prompt(ring, SYSTEM_TOKENS)
    prompts = [[*system, *random_prompt(ring, OWN_TOKENS)] for _ in range(CROWD)]
    waits_s = sorted(ring.random.uniform(0.0, ARRIVING_S) for _ in prompts)

    async def come(prompt: list[int], wait_s: float) -> Answered:
        await asyncio.sleep(wait_s)
        return await ask(ring, prompt, 1)

    before = link_of(await ring.settled_cluster(), "stage 0", "stage 1")["bytes_sent"]
    answers = await asyncio.gather(*map(come, prompts, waits_s))
    after = link_of(await ring.settled_cluster(), "stage 0", "stage 1")["bytes_sent"]
    mean_s = sum(one.ttft_s for one in answers) / len(answers)
    return {"crowd_ttft_s": mean_s, "crowd_bytes": float(after - before)}


async def _apart(ring: ServedRing) -> Figures:
    """Users who share nothing."""
    waiting = [random_prompt(ring, APART_TOKENS) for _ in range(APART_REQUESTS)]
    began = time.perf_counter()
    answers: list[Answered] = []

    async def user() -> None:
        while waiting:
            answers.append(await ask(ring, waiting.pop(), APART_ANSWER_TOKENS))

    await asyncio.gather(*(user() for _ in range(APART_USERS)))
    tokens = sum(len(one.tokens) for one in answers)
    ended = max(one.ended_at for one in answers)
    ttft_s = sum(one.ttft_s for one in answers) / len(answers)
    return {"apart_tokens_per_s": tokens / (ended - began), "apart_ttft_s": ttft_s}


def _table(middle: dict[str, Figures]) -> str:
    rows: list[tuple[str, str, Any]] = [
        ("TTFT of a chat's first turn, s", "first_turn_s", ".2f"),
        ("TTFT of its eighth, s", "last_turn_s", ".2f"),
        ("mean TTFT of the crowd, s", "crowd_ttft_s", ".2f"),
        ("bytes on the first hop for it", "crowd_bytes", ",.0f"),
        ("nothing shared: tokens/s", "apart_tokens_per_s", ".1f"),
        ("nothing shared: mean TTFT, s", "apart_ttft_s", ".3f"),
        ("once more: tokens/s", "again_apart_tokens_per_s", ".1f"),
        ("once more: mean TTFT, s", "again_apart_ttft_s", ".3f"),
    ]
    known = next(iter(middle.values())).keys()
    cells = [
        [name, *(f"{one[key]:{form}}" for one in middle.values())]
        for name, key, form in rows
        if key in known
    ]
    return markdown_table(("", *middle), cells)


if __name__ == "__main__":
    main()
