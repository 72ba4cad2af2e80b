"""More users than a ring has KV for: how many tokens a second, and how many of them computed twice?

    python -m tools.experiments.ring.crowded_kv --out DIR

The head that ships, in virtual time, over three stages that are only numbers: a step takes 4 ms and
a part for each row, a link 30 ms. Users ask again as soon as they are answered. Answers either use
up what they ask for, or end by themselves while they may go on for long. Ten seconds.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import click

from molink_scheduler.batch import DECODE, Batch
from molink_scheduler.events import BatchReturned, RequestSubmitted, SampledToken, SendRelease
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

STAGES, HOP_S, STEP_S, DECODE_ROW_S, PROMPT_ROW_S = 3, 0.03, 0.004, 0.0001, 0.0002

KV_TOKENS = 2048
USERS = (24, 32, 48, 64)
SECONDS, WARM_UP_S = 160.0, 40.0

Asked = tuple[int, int, int]
"""Tokens of a prompt, of its answer, and `max_tokens`."""


def _asks(tokens: int) -> Asked:
    return 32, tokens, tokens


def _ends(tokens: float, most: int = 1000, prompt: int = 32) -> Asked:
    """Of an answer that ends by itself."""
    return prompt, min(most, max(1, round(tokens))), most


ANSWERS: dict[str, Callable[[Random], Asked]] = {
    "32 to 96, as asked for": lambda random: _asks(random.randint(32, 96)),
    "16 to 112, as asked for": lambda random: _asks(random.randint(16, 112)),
    "64 each, as asked for": lambda _: _asks(64),
    "32 to 96, end by themselves": lambda random: _ends(random.uniform(32, 96)),
    "exponential of 64, end by themselves": lambda random: _ends(random.expovariate(1 / 64)),
    "log-normal, end by themselves": lambda random: _ends(random.lognormvariate(3.6, 1.0), 1500),
    "10 to 60 of prompts of 150": lambda random: _ends(random.uniform(10, 60), 500, 150),
}


@dataclass(frozen=True, slots=True)
class Crowd:
    """What came of so many users."""

    answers: str
    users: int
    tokens_per_s: float
    computed_twice: float
    """Of tokens that were computed and thrown away, over those that users got."""
    kv_used: float
    """Share of the blocks that were held, on average."""


@dataclass(slots=True)
class CrowdedRing:
    """One head, its users, and stages that are only numbers."""

    users: int
    asked: Callable[[Random], Asked]
    micro_batches: int
    head: HeadScheduler = field(init=False)
    now: float = 0.0
    tokens: int = 0
    thrown_away: int = 0
    _random: Random = field(default_factory=lambda: Random(1))
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _left: dict[int, int] = field(default_factory=dict)
    """Tokens that each user still waits for."""
    _computed: dict[int, int] = field(default_factory=dict)
    _free_at: list[float] = field(default_factory=lambda: [0.0] * STAGES)
    _held: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.head = HeadScheduler(HeadSettings(RingTerms(KV_TOKENS, self.micro_batches)))

    def run(self, answers: str) -> Crowd:
        """Let the time pass."""
        for user in range(self.users):
            self._at(0.02 * user, self._ask)
        while self._events[0][0] < SECONDS:
            self.now, _, act = heapq.heappop(self._events)
            act()
            if self._free_at[0] <= self.now:
                self._compute()
        seconds, held = SECONDS - WARM_UP_S, sum(self._held) / len(self._held)
        twice = self.thrown_away / self.tokens
        return Crowd(answers, self.users, self.tokens / seconds, twice, held)

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), act))

    def _ask(self) -> None:
        prompt, answer, most = self.asked(self._random)
        request_id = next(self._numbers)
        self._left[request_id] = answer
        request = Request(request_id, token_bytes((1,)) * prompt, SamplingParams(max_tokens=most))
        self.head.handle(RequestSubmitted(request), self.now)

    def _compute(self) -> None:
        releases, run = self.head.next_batch(0.0, self.now)
        self._take(releases)
        if run is None:
            wait_until = self.head.wait_until or 0.0
            if wait_until > self.now:
                self._at(wait_until, lambda: None)
            return
        batch, at = run.batch, self.now
        row_s = DECODE_ROW_S if batch.batch_class is DECODE else PROMPT_ROW_S
        step_s = STEP_S + batch.tokens * row_s
        self._computed |= {span.request_id: span.end for span in batch.spans}
        for stage in range(STAGES):
            self._free_at[stage] = max(at, self._free_at[stage]) + step_s
            at = self._free_at[stage] + HOP_S
        self._at(self._free_at[0], lambda: self.head.computed(run, step_s, self.now))
        self._at(at, lambda: self._return(batch))

    def _return(self, batch: Batch) -> None:
        drawn = [self._draw(span.request_id) for span in batch.spans if span.samples]
        back = (batch.batch_class, batch.micro_batch, batch.spans, tuple(drawn))
        self._take(self.head.handle(BatchReturned(*back), self.now))
        if self.now >= WARM_UP_S:
            self.tokens += len(drawn)
            self._held.append(self.head.kv.tokens_used / KV_TOKENS)
        for _ in range(sum(one.finished for one in drawn)):
            self._ask()

    def _draw(self, request_id: int) -> SampledToken:
        self._left[request_id] -= 1
        return SampledToken(request_id, 7, not self._left[request_id])

    def _take(self, decided: Iterable[object]) -> None:
        """Count what a request that goes on had computed."""
        for one in decided:
            assert isinstance(one, SendRelease), one
            lost = self._computed.pop(one.release.request_id, 0)
            if self._left[one.release.request_id] and self.now >= WARM_UP_S:
                self.thrown_away += lost


@experiment
@click.option("--micro-batches", default=1, show_default=True)
def main(out: Path, micro_batches: int) -> None:
    """Let crowds of all sizes ask for answers of all kinds."""
    found = [
        CrowdedRing(users, asked, micro_batches).run(name)
        for name, asked in ANSWERS.items()
        for users in USERS
    ]
    write_report(out, "crowded_kv", {"crowds": [asdict(one) for one in found]})
    head = ("answers", "users", "tokens/s", "computed twice", "KV used")
    show(markdown_table(head, [_cells(one) for one in found]))


def _cells(one: Crowd) -> list[str]:
    speed, twice, used = (
        f"{one.tokens_per_s:.0f}",
        f"{one.computed_twice:.1%}",
        f"{one.kv_used:.0%}",
    )
    return [one.answers, str(one.users), speed, twice, used]


if __name__ == "__main__":
    main()
