"""What does it cost that an address before several coordinators sees their rings some time ago?

    python -m tools.experiments.control.several_coordinators --out DIR

Simulated: sessions whose turns repeat what was said before, on rings that are divided among
coordinators. Each coordinator knows its own rings as they are and chooses among them with the
shipped `choose_ring`. Before that, a front at the address chooses the coordinator: any (`random`),
always the session's first (`sticky`), the one with the least forecast (`forecast`), or, by
the same rule with which a coordinator keeps a session on its ring, the session's last one unless
another is forecast to be twice as soon (`home`). The last two know what coordinators published at
the last multiple of the age, and what the same front has sent since. `one` is a single coordinator
that knows everything.

A ring computes one prompt after the other and then decodes it beside the others, at the pace that
the shipped `RingPace` gives for as many as decode when each begins; it keeps what sessions said
last, as far as it has room. Medians of the seeds; some minutes.
"""

import heapq
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import count, product
from pathlib import Path
from random import Random
from typing import Any, assert_never

import click

from molink.workload.figures import percentile
from molink_scheduler.routing.ring_choice import Routing, choose_ring
from molink_scheduler.routing.ring_forecast import RingPace, RingState
from molink_scheduler.routing.session_homes import SessionHomes
from tools.experiments.harness.experiment import (
    Figures,
    experiment,
    markdown_table,
    median_figures,
    show,
    write_report,
)

__all__ = ["AGES_S", "Address", "Setup", "World", "main"]

LOADS = (0.3, 0.5)
AGES_S = (0.0, 1.0, 5.0, 20.0, 60.0)

PREFILL_TOKENS_PER_S = (200.0, 800.0)
TPOT_ALONE_S = (0.1, 0.3)
"""Ranges from which rings are drawn: the paces of rings of home PCs."""
TPOT_EACH_S = 0.004

TURNS_MEAN, THINKING_S = 5.0, 20.0
FIRST_TOKENS_MEAN, NEXT_TOKENS_MEAN, ANSWER_TOKENS_MEAN = 1_200, 150, 200
CACHE_TOKENS = 60_000
"""Room of a ring for what sessions said last."""


class Address(StrEnum):
    """Rule by which a front at the users' address chooses a coordinator."""

    ONE = "one"
    RANDOM = "random"
    STICKY = "sticky"
    FORECAST = "forecast"
    HOME = "home"


@dataclass(frozen=True, slots=True)
class Setup:
    """Setting of one simulated run."""

    address: Address
    load: float
    """New tokens of prompts that come, over what idle rings would compute."""
    age_s: float = 0.0
    coordinators: int = 8
    rings_each: int = 4
    fronts: int = 8
    duration_s: float = 600.0


@dataclass(slots=True)
class Request:
    """Turn of a session."""

    session: int
    prompt_tokens: int
    answer_tokens: int
    turns_left: int
    came_s: float
    uncached: int = 0


@dataclass(slots=True)
class Ring:
    """Ring as it is."""

    pace: RingPace
    waiting: deque[Request] = field(default_factory=deque)
    """Prompts that are not computed; the first one is under way."""
    decoding: int = 0
    cached: dict[int, int] = field(default_factory=dict)
    """Tokens of each session, the one that spoke longest ago first."""
    busy_s: float = 0.0

    def keep(self, session: int, tokens: int) -> None:
        """Cache what a session has said, and forget others for it."""
        self.cached.pop(session, None)
        self.cached[session] = tokens
        while sum(self.cached.values()) > CACHE_TOKENS and len(self.cached) > 1:
            del self.cached[next(iter(self.cached))]

    def state(self) -> RingState:
        """The ring as it may be published: without what is cached of anybody."""
        left = sum(one.uncached for one in self.waiting)
        return RingState(
            self.pace,
            left,
            len(self.waiting),
            self.decoding,
            answer_tokens=ANSWER_TOKENS_MEAN,
            outstanding_tokens=left + self.decoding * ANSWER_TOKENS_MEAN,
        )


@dataclass(slots=True)
class Front:
    """One of the processes behind the address, with what it knows of its own doing."""

    sent: dict[int, list[int]] = field(default_factory=dict)
    """Prompts that it has sent since the last publication, by the ring that it thought of."""

    def seen(self, ring: int, told: RingState) -> RingState:
        """A ring as published, with what was sent there since."""
        own = self.sent.get(ring)
        if not own:
            return told
        return replace(
            told,
            waiting_tokens=told.waiting_tokens + sum(own),
            waiting_requests=told.waiting_requests + len(own),
        )


class World:
    """Rings, coordinators and fronts in virtual time, all chances from one seed."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup, self.seed, self.now_s = setup, seed, 0.0
        drawn = Random(seed)
        self.rings = [_ring(drawn) for _ in range(setup.coordinators * setup.rings_each)]
        self.fronts = [Front() for _ in range(setup.fronts)]
        self.told = [ring.state() for ring in self.rings]
        self.homes = SessionHomes()
        """Ring that took each session last: what its coordinator knows."""
        self.last_tokens: dict[int, int] = {}
        self.ttfts_s: list[float] = []
        self.cached_tokens = self.again_tokens = 0
        """Tokens of earlier turns that were found cached, and that were computed again."""
        self._chances = Random(seed + 1)
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._numbers = count()

    def run(self) -> Figures:
        """Run to the end of the duration; figures of the requests that had a first token."""
        for number, at_s in enumerate(self._arrivals()):
            self._at(at_s, self._begin_session, number)
        if self.setup.age_s:
            self._at(self.setup.age_s, self._publish, None)
        while self._events and self._events[0][0] < self.setup.duration_s:
            self.now_s, _, act, about = heapq.heappop(self._events)
            act(about)
        self.ttfts_s.sort()
        of_old = self.cached_tokens + self.again_tokens
        return {
            "requests": len(self.ttfts_s),
            "mean_s": statistics.fmean(self.ttfts_s),
            "p50_s": percentile(self.ttfts_s, 50),
            "p99_s": percentile(self.ttfts_s, 99),
            "cached": self.cached_tokens / max(1, of_old),
            "busy": statistics.fmean(one.busy_s for one in self.rings) / self.setup.duration_s,
        }

    def _at(self, at_s: float, act: Callable[..., None], about: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), act, about))

    # -- sessions --------------------------------------------------------------------------------

    def _arrivals(self) -> Iterator[float]:
        """Times at which sessions begin, as often as the load says."""
        tokens_per_s = sum(one.pace.prefill_tokens_per_s for one in self.rings)
        each = FIRST_TOKENS_MEAN + (TURNS_MEAN - 1) * NEXT_TOKENS_MEAN
        at_s = 0.0
        while True:
            at_s += self._chances.expovariate(self.setup.load * tokens_per_s / each)
            if at_s > self.setup.duration_s:
                return
            yield at_s

    def _begin_session(self, number: int) -> None:
        chances = Random(f"{self.seed}:{number}")
        turns = 1 + int(math.log(1 - chances.random()) / math.log(1 - 1 / TURNS_MEAN))
        tokens = _some(chances, FIRST_TOKENS_MEAN)
        self._take(Request(number, tokens, _some(chances, ANSWER_TOKENS_MEAN), turns, self.now_s))

    def _next_turn(self, before: Request) -> None:
        chances = Random(f"{self.seed}:{before.session}:{before.turns_left}")
        said = before.prompt_tokens + before.answer_tokens
        self.last_tokens[before.session] = said
        prompt = said + _some(chances, NEXT_TOKENS_MEAN)
        answer = _some(chances, ANSWER_TOKENS_MEAN)
        left = before.turns_left - 1
        self._take(Request(before.session, prompt, answer, left, self.now_s))

    def _take(self, request: Request) -> None:
        coordinator = self._coordinator(request)
        ring = self._ring_of(coordinator, request)
        self.homes.went(f"{request.session}", ring)
        self._send(self.rings[ring], request)

    # -- choices ---------------------------------------------------------------------------------

    def _coordinator(self, request: Request) -> int | None:
        """The coordinator that a front gives a request to; None: there is one that has all."""
        match self.setup.address:
            case Address.ONE:
                return None
            case Address.RANDOM:
                return self._chances.randrange(self.setup.coordinators)
            case Address.STICKY:
                return request.session % self.setup.coordinators
            case Address.FORECAST:
                return self._soonest(request, None)
            case Address.HOME:
                last = self.homes.of(f"{request.session}")
                return self._soonest(request, None if last is None else self._owner(last))
        assert_never(self.setup.address)

    def _owner(self, ring: int) -> int:
        return ring // self.setup.rings_each

    def _soonest(self, request: Request, home: int | None) -> int:
        """The coordinator whose best ring is the soonest, by what one of the fronts knows."""
        front = self._chances.choice(self.fronts)
        told = self.told if self.setup.age_s else [ring.state() for ring in self.rings]
        best: list[int] = []
        states: list[RingState] = []
        for coordinator in range(self.setup.coordinators):
            rings = self._rings_of(coordinator)
            seen = [front.seen(one, told[one]) for one in rings]
            index = _choose(seen, request)
            best.append(rings[index])
            states.append(seen[index])
        if home is not None:
            cached = min(self.last_tokens[request.session], request.prompt_tokens - 1)
            states[home] = replace(states[home], is_home=True, cached_tokens=cached)
        chosen = _choose(states, request)
        if self.setup.age_s:
            front.sent.setdefault(best[chosen], []).append(request.prompt_tokens)
        return chosen

    def _rings_of(self, coordinator: int | None) -> range:
        if coordinator is None:
            return range(len(self.rings))
        first = coordinator * self.setup.rings_each
        return range(first, first + self.setup.rings_each)

    def _ring_of(self, coordinator: int | None, request: Request) -> int:
        """The ring that a coordinator chooses among its own, which it knows as they are."""
        rings, home = self._rings_of(coordinator), self.homes.of(f"{request.session}")
        states = [
            replace(
                self.rings[one].state(),
                cached_tokens=self.rings[one].cached.get(request.session, 0),
                is_home=one == home,
            )
            for one in rings
        ]
        return rings[_choose(states, request)]

    def _publish(self, _: None) -> None:
        self.told = [ring.state() for ring in self.rings]
        for front in self.fronts:
            front.sent.clear()
        self._at(self.now_s + self.setup.age_s, self._publish, None)

    # -- rings -----------------------------------------------------------------------------------

    def _send(self, ring: Ring, request: Request) -> None:
        cached = ring.cached.get(request.session, 0)
        request.uncached = max(1, request.prompt_tokens - cached)
        self.cached_tokens += cached
        self.again_tokens += self.last_tokens.get(request.session, 0) - cached
        ring.waiting.append(request)
        if len(ring.waiting) == 1:
            self._begin_prompt(ring)

    def _begin_prompt(self, ring: Ring) -> None:
        takes_s = ring.pace.prefill_s(ring.waiting[0].uncached, ring.decoding)
        ring.busy_s += takes_s
        self._at(self.now_s + takes_s, self._prompt_done, ring)

    def _prompt_done(self, ring: Ring) -> None:
        request = ring.waiting.popleft()
        self.ttfts_s.append(self.now_s + ring.pace.first_token_s - request.came_s)
        ring.keep(request.session, request.prompt_tokens)
        lasts_s = request.answer_tokens * ring.pace.tpot_s(ring.decoding)
        ring.decoding += 1
        self._at(self.now_s + lasts_s, self._answered, (ring, request))
        if ring.waiting:
            self._begin_prompt(ring)

    def _answered(self, about: tuple[Ring, Request]) -> None:
        ring, request = about
        ring.decoding -= 1
        ring.keep(request.session, request.prompt_tokens + request.answer_tokens)
        if request.turns_left > 1:
            chances = Random(f"{self.seed}:{request.session}:{request.turns_left} thinks")
            thinks_s = chances.expovariate(1 / THINKING_S)
            self._at(self.now_s + thinks_s, self._next_turn, request)


def _ring(drawn: Random) -> Ring:
    alone_s = drawn.uniform(*TPOT_ALONE_S)
    return Ring(RingPace(drawn.uniform(*PREFILL_TOKENS_PER_S), alone_s, alone_s, TPOT_EACH_S))


def _some(chances: Random, mean: float) -> int:
    """A length with a long tail, as prompts and answers have."""
    return 1 + int(chances.lognormvariate(math.log(mean) - 0.5, 1.0))


def _choose(states: Sequence[RingState], request: Request) -> int:
    return choose_ring(Routing.MOLINK, states, request.prompt_tokens, request.answer_tokens)


# -- the experiment -------------------------------------------------------------------------------


@experiment
@click.option("--seeds", default=3, show_default=True, help="Of which medians are taken.")
@click.option("--load", "loads", multiple=True, default=LOADS, show_default=True, type=float)
@click.option("--coordinators", default=8, show_default=True)
@click.option("--rings-each", default=4, show_default=True, help="Rings of a coordinator.")
@click.option("--duration-s", default=600.0, show_default=True)
def main(
    out: Path,
    seeds: int,
    loads: tuple[float, ...],
    coordinators: int,
    rings_each: int,
    duration_s: float,
) -> None:
    """Print times to the first token by how a coordinator is chosen, and by how old figures are."""
    base = Setup(Address.ONE, 0.0, 0.0, coordinators, rings_each, coordinators, duration_s)
    rows = []
    for load in loads:
        for setup in _setups(replace(base, load=load)):
            figures = median_figures([World(setup, seed).run() for seed in range(seeds)])
            rows.append({**asdict(setup), **figures})
            click.echo(rows[-1], err=True)
    write_report(out, "several_coordinators", {"seeds": seeds, "rows": rows})
    head = ["address", "load", "age, s", "first token mean, s", "p50", "p99", "cached", "busy"]
    show(markdown_table(head, [_cells(row) for row in rows]))


def _setups(base: Setup) -> Iterator[Setup]:
    for address in (Address.ONE, Address.RANDOM, Address.STICKY):
        yield replace(base, address=address)
    for address, age_s in product((Address.FORECAST, Address.HOME), AGES_S):
        yield replace(base, address=address, age_s=age_s)


def _cells(row: dict[str, Any]) -> list[str]:
    has_age = row["address"] in (Address.FORECAST, Address.HOME)
    names = [str(row["address"]), f"{row['load']:g}", f"{row['age_s']:g}" if has_age else ""]
    times = [f"{row[name]:.2f}" for name in ("mean_s", "p50_s", "p99_s")]
    return [*names, *times, f"{row['cached']:.2f}", f"{row['busy']:.2f}"]


if __name__ == "__main__":
    main()
