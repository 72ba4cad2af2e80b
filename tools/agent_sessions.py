"""Write a file of agents' sessions for `molink bench --sessions` and `molink sim sessions`.

    python -m tools.agent_sessions FILE [--sessions 4] [--turns 33] [--context 80000] [--seed 0]

The lengths are made, with the published medians of Codex on SWE-bench Pro: 33 turns whose context
grows to 80,000 tokens, and 131 tokens in for one out. Then 94 to 95 % of all prompts were seen
before, where 94 % is published. Not published, and assumed: instructions of a tenth of the last
context, the same for all sessions; how uneven turns are (lognormal); pauses of some seconds for
tools.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

import click

from molink.workload.sessions import AgentSession, SessionTurn

TURNS, CONTEXT_TOKENS, IN_FOR_ONE_OUT = 33, 80_000, 131
"""The published medians."""

PREFIX, PREFIX_SHARE = "instructions", 0.1

DEVIATION = 0.8
"""Standard deviation of the logarithm of a turn's length, its answer's and its pause."""

WAIT_S = 2.0
"""Median pause."""


def generate_session(
    random: Random, turns: int, context_tokens: int, wait_s: float
) -> AgentSession:
    """A session whose last prompt and answer come to `context_tokens` tokens."""
    prefix_tokens = round(PREFIX_SHARE * context_tokens)
    grown = _shares(random, turns, context_tokens - prefix_tokens)
    contexts = [prefix_tokens + tokens for tokens in accumulate(grown)]
    answers = _shares(random, turns, round(sum(contexts) / IN_FOR_ONE_OUT))
    answers = [min(answer, tokens - 1) for answer, tokens in zip(answers, grown, strict=True)]
    waits = [round(wait_s * random.lognormvariate(0, DEVIATION), 2) for _ in range(turns)]
    made = zip(grown, answers, waits, strict=True)
    found = [SessionTurn(tokens - answer, answer, pause_s) for tokens, answer, pause_s in made]
    return AgentSession(found, PREFIX, prefix_tokens)


def _shares(random: Random, turns: int, tokens: int) -> list[int]:
    """So many tokens over all turns, two or more for each."""
    weights = [random.lognormvariate(0, DEVIATION) for _ in range(turns)]
    whole, spare = math.fsum(weights), tokens - 2 * turns
    ends = [round(spare * sum(weights[:end]) / whole) for end in range(turns + 1)]
    return [2 + after - before for before, after in pairwise(ends)]


def write_sessions(path: Path, sessions: Sequence[AgentSession]) -> None:
    """Write a file that `read_sessions` reads."""
    path.write_text("".join(json.dumps(asdict(session)) + "\n" for session in sessions))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--sessions", type=click.IntRange(1), default=4, show_default=True)
@click.option("--turns", type=click.IntRange(1, 1000), default=TURNS, show_default=True)
@click.option("--context", type=click.IntRange(10_000), default=CONTEXT_TOKENS, show_default=True)
@click.option("--wait-s", type=click.FloatRange(0, 60), default=WAIT_S, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(file: Path, sessions: int, turns: int, context: int, wait_s: float, seed: int) -> None:
    """Write so many sessions of so many turns into FILE."""
    random = Random(f"sessions {seed}")
    made = [generate_session(random, turns, context, wait_s) for _ in range(sessions)]
    write_sessions(file, made)
    prompts = [tokens for session in made for tokens in session.prompts]
    new = sum(turn.new_tokens for session in made for turn in session.turns)
    out = sum(turn.answer_tokens for session in made for turn in session.turns)
    click.echo(
        f"{sessions} sessions, {len(prompts)} prompts of {min(prompts):,} to {max(prompts):,} "
        f"tokens, {sum(prompts) / out:.0f} in for one out, {1 - new / sum(prompts):.1%} seen before"
    )


if __name__ == "__main__":
    main()
