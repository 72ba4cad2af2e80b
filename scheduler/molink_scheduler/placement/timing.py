"""How long a typical prompt takes to its first token, alone on the ring.

The prompt goes in spans of `SPAN_TOKENS` rows (fewer if it is shorter), one behind the other: the
first passes all stages and links, and each that follows ends a step of the slowest stage or link
later. Then one token goes home.
"""

from itertools import pairwise
from math import ceil

from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.placement.fit import stage_works
from molink_scheduler.placement.problem import Path, Problem
from molink_scheduler.placement.split import Counts

__all__ = ["ttft_s"]


def ttft_s(problem: Problem, path: Path, counts: Counts) -> float:
    """Seconds from the head's first step to the token's return."""
    order, tokens = path.order, max(1, problem.goal.prompt_tokens)
    spans = ceil(tokens / SPAN_TOKENS)
    rows = tokens / spans
    steps = [
        start_s + rows * problem.prefill_s[i] * work
        for i, start_s, work in zip(order, path.steps_s, stage_works(problem, counts), strict=True)
    ]
    wires = [rows * problem.wire_row_s[a][b] for a, b in pairwise(order)]
    output_s = problem.nodes[order[-1]].head_row_s
    trip_s = sum(steps) + sum(wires) + path.delay_s + output_s
    return trip_s + (spans - 1) * max(steps + wires)
