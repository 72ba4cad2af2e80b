"""Which requests a load consists of, and when each may start. Pure: the random numbers are an
argument.

A plan has two levers. `slots` bounds how many requests are in flight at once; `start_s` keeps a
request back until then. A closed loop (so many users, each sending the next request when the last
one is answered) is slots and zero start times; a trace would be start times and as many slots as
requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from molink.workload.trace import TraceRequest

__all__ = ["PlannedRequest", "RequestPlan", "closed_loop", "open_loop", "random_request", "warm_up"]

WARM_UP_INPUT_TOKENS_MAX = 32
WARM_UP_OUTPUT_TOKENS_MAX = 4
"""Warm-up requests touch every stage and open the connections; longer ones would only take time."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send."""

    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    seed: int
    start_s: float = 0.0
    """Not sent before this time after the run's start."""


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Requests in the order in which they are sent."""

    requests: Sequence[PlannedRequest]
    slots: int
    """Requests in flight at most."""

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError("a plan needs at least one slot")
        starts = [one.start_s for one in self.requests]
        if starts != sorted(starts):
            raise ValueError("a plan's requests are in the order of their start times")


def closed_loop(
    random: Random,
    vocabulary_size: int,
    *,
    slots: int,
    requests: int,
    input_tokens: int,
    output_tokens: int,
) -> RequestPlan:
    """Random prompts of one length, `slots` of them in flight until all are answered."""
    every = TraceRequest(0.0, input_tokens, output_tokens)
    planned = [random_request(random, vocabulary_size, every) for _ in range(requests)]
    return RequestPlan(planned, slots)


def open_loop(
    random: Random, vocabulary_size: int, requests: Sequence[TraceRequest]
) -> RequestPlan:
    """Random prompts of a trace's lengths, each sent when the trace says."""
    planned = [random_request(random, vocabulary_size, one) for one in requests]
    return RequestPlan(planned, slots=max(1, len(planned)))


def random_request(random: Random, vocabulary_size: int, lengths: TraceRequest) -> PlannedRequest:
    """A random prompt of these lengths."""
    return PlannedRequest(
        prompt_token_ids=tuple(random.choices(range(vocabulary_size), k=lengths.input_tokens)),
        output_tokens=lengths.output_tokens,
        seed=random.getrandbits(63),
        start_s=lengths.start_s,
    )


def warm_up(
    random: Random,
    vocabulary_size: int,
    *,
    slots: int,
    rounds: int,
    input_tokens: int,
    output_tokens: int,
) -> RequestPlan:
    """`rounds` short requests for each slot."""
    return closed_loop(
        random,
        vocabulary_size,
        slots=slots,
        requests=rounds * slots,
        input_tokens=min(input_tokens, WARM_UP_INPUT_TOKENS_MAX),
        output_tokens=min(output_tokens, WARM_UP_OUTPUT_TOKENS_MAX),
    )
