"""How long do users of a large model wait for the rows that a replaced stage is sent again?

    python -m tools.experiments.ring.replay_time --out DIR

Simulated: a 70B model (8,192 wide, 80 layers) in eight stages of one RTX 4090 each, activations in
int8, 16 users who all decode when a stage is lost. The core that ships replays the rows; beside it
stands what bytes over rate give. Then the same where a shadow takes the lost stage's place, which
lacks the last tokens of each user; how it came to hold the others is not simulated. Its price is a
row for each token at the pace that users had. Half a minute.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import click

from molink_sim.even_ring import even_ring
from molink_sim.outcome import RequestOutcome
from molink_sim.ring.messages import CODEC_RATIO
from molink_sim.scenario import DETECT_S, LOAD_S, LinkSpec, NodeLoss, RequestArrival, Scenario
from molink_sim.simulate import simulate
from molink_sim.systems import system_named
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["Replay", "main", "replay"]

LOST_AT_S, ANSWER_TOKENS = 30.0, 300
PACE_S = 10.0
"""All prompts are computed by then, and nobody is at the end."""

LACKED_TOKENS = (4, 40)
"""What 16 users of 2 tokens a second come to in the two seconds that a shadow's report may be old
at most, and ten times that."""

CONTEXTS = {"1,000 each": [1000] * 16, "250 to 1,750": [250 + 100 * user for user in range(16)]}


@dataclass(frozen=True, slots=True)
class Replay:
    """Pauses of all users after one loss; seconds."""

    contexts: str
    place: int
    rows: int
    """Positions that users had when the stage was lost."""
    arithmetic_s: float
    """Their bytes over the link's rate."""
    pause_p50_s: float
    pause_p95_s: float
    pause_max_s: float
    lacked_tokens: int | None
    """Of each user, by a shadow; None: there was none."""
    shadow_mbps: float
    """What a shadow is sent at the pace before the loss."""


@experiment
@click.option("--mbps", default=100.0, show_default=True, help="Rate of every link.")
@click.option("--one-way-ms", default=30.0, show_default=True, help="Delay of every link.")
def main(out: Path, mbps: float, one_way_ms: float) -> None:
    """Replace the head, a stage of the middle and the tail, for equal contexts and for others."""
    link = LinkSpec(mbps, one_way_ms / 1e3)
    found = [replay(name, link, place) for name in CONTEXTS for place in (0, 4, 7)]
    found += [
        replay(name, link, place, lacked)
        for lacked in LACKED_TOKENS
        for name in CONTEXTS
        for place in (4, 7)
    ]
    write_report(out, "replay_time", {"replays": [asdict(one) for one in found]})
    head = ["contexts", "lost stage", "a shadow lacks", "rows", "bytes over rate, s"]
    head += ["p50", "p95", "longest", "shadow, Mbps"]
    show(markdown_table(head, [_line(one) for one in found]))


def replay(contexts: str, link: LinkSpec, place: int, lacked: int | None = None) -> Replay:
    """The pauses when one stage is lost and loaded again, or a shadow takes its place, to which
    nothing is loaded."""
    ready_s = DETECT_S + (LOAD_S if lacked is None else 0.0)
    ring = even_ring("llama-2-70b", "rtx4090", 8, link)
    scenario = Scenario(
        rings=(ring,),
        arrivals=[RequestArrival(0.0, tokens, ANSWER_TOKENS) for tokens in CONTEXTS[contexts]],
        system=system_named("molink", codec="int8"),
        duration_s=2 * LOST_AT_S,
        faults=(NodeLoss(0, place, LOST_AT_S, LOST_AT_S + ready_s, lacked),),
    )
    requests = simulate(scenario).requests
    rows = sum(_known_tokens(request) for request in requests)
    if lacked is not None:
        rows = lacked * len(requests)
    rows_per_s = sum(map(_tokens_before, requests)) / PACE_S
    row_bytes = ring.row_bytes * CODEC_RATIO["int8"]
    pauses = sorted(_pause_s(request) for request in requests)
    return Replay(
        contexts,
        place,
        rows,
        rows * row_bytes * 8e-6 / link.mbps,
        statistics.median(pauses),
        statistics.quantiles(pauses, n=20, method="inclusive")[-1],
        pauses[-1],
        lacked,
        rows_per_s * row_bytes * 8e-6,
    )


def _known_tokens(request: RequestOutcome) -> int:
    had = sum(at_s < LOST_AT_S for at_s in request.token_times_s)
    return request.input_tokens + had - 1


def _tokens_before(request: RequestOutcome) -> int:
    return sum(LOST_AT_S - PACE_S <= at_s < LOST_AT_S for at_s in request.token_times_s)


def _pause_s(request: RequestOutcome) -> float:
    """The gap between two tokens that the loss is in."""
    times: Sequence[float] = request.token_times_s
    return max(after - before for before, after in pairwise(times) if after > LOST_AT_S)


def _line(one: Replay) -> list[str]:
    figures = (one.arithmetic_s, one.pause_p50_s, one.pause_p95_s, one.pause_max_s)
    lacked = "-" if one.lacked_tokens is None else f"{one.lacked_tokens} each"
    cells = [one.contexts, str(one.place), lacked, f"{one.rows:,}"]
    return [*cells, *(f"{figure:.1f}" for figure in (*figures, one.shadow_mbps))]


if __name__ == "__main__":
    main()
