"""Resumption of a ring that has lost a stage: what survivors keep, who is fed again.

A ring that lost a stage goes on in its next epoch with another stage in its place, a *fresh* one.
Survivors keep the KV of the requests that are listed here, up to a position that all of them
hold, and the first new rows of each follow from there. A fresh stage is sent what it lacks first:
the rows that its neighbour once sent to the one in its place (`stage.replay_log`), as replay
batches. It computes them and passes them on only to a neighbour that is fresh as well. A fresh
head computes them from the tokens. One that was a shadow of the lost stage holds some of them
already (`held`), and is sent what comes after. Whoever cannot go on with a request says so
(`missing`), and that one is computed anew.

Survivors may keep cached blocks as well (`chains_stay`). Each says which numbers it has, the one
before a fresh stage only those of which it has rows too, and what all have stays (`common_runs`).

Pure: values, and what follows from them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.kv.changes import cached_runs
from molink_scheduler.kv.tiers import CACHE_RUNS_MAX

Positions = tuple[tuple[int, int], ...]
"""Pairs (request, its first tokens of which KV is held) of some requests."""

RESUMED_MAX = 1024
"""Requests that go on in a new epoch, 20 KB to say; of more the longest are computed anew."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Requests and cached blocks that one stage keeps on its way into the ring's next epoch."""

    requests: Positions = ()
    """Pairs (request, its first tokens of which all survivors hold KV), each at least 1."""
    held: Positions | None = None
    """Pairs (request, its first tokens of which this stage holds KV), where it is fresh; None: it
    is a survivor, and holds all that is listed."""
    next_held: Positions | None = None
    """The same of the stage behind this one, which is fed by it."""
    chains_stay: bool = False
    """Whether survivors keep cached blocks too, until the head says which of them stay
    (`CacheChange.retain`). A fresh stage is sent the rows of those that a request begins with."""

    def __post_init__(self) -> None:
        if len(self.requests) > RESUMED_MAX:
            raise ValueError(f"at most {RESUMED_MAX} requests go on in a new epoch")
        if any(tokens < 1 for _, tokens in self.requests):
            raise ValueError("a request goes on from its first token at least")
        if len({request_id for request_id, _ in self.requests}) < len(self.requests):
            raise ValueError("a request goes on from one position")
        listed = dict(self.requests)
        for held in (self.held or (), self.next_held or ()):
            if len(held) > len(self.requests) or any(
                not 1 <= tokens <= listed.get(request_id, 0) for request_id, tokens in held
            ):
                raise ValueError("a fresh stage holds no more than the others do")

    @property
    def fresh(self) -> bool:
        """Whether this stage is fed again."""
        return self.held is not None

    @property
    def next_fresh(self) -> bool:
        """Whether the stage behind this one is fed again."""
        return self.next_held is not None

    @property
    def replays(self) -> bool:
        """Whether this stage sends the rows that it once sent before a request's first new one."""
        return self.next_fresh and not self.fresh

    def offered(self, cached: frozenset[int], has_rows: frozenset[int]) -> Positions:
        """The cached blocks of a stage that can stay in the next epoch: the stage before a fresh
        one needs their rows, too."""
        return cached_runs(cached & has_rows if self.replays else cached)

    def feeds_next(self, kept_tokens: int, *, begins: bool) -> bool:
        """Whether the stage behind this one is sent rows again of a request that was kept, or
        `begins` with cached blocks."""
        return self.replays and (kept_tokens > 0 or (self.chains_stay and begins))

    def missing(
        self, computed: Mapping[int, int], has_rows: Callable[[int, int], bool]
    ) -> tuple[int, ...]:
        """Requests that this stage cannot go on with: `computed` is of how many tokens of each it
        holds KV, `has_rows(request, tokens)` whether it still has the rows that it sent."""
        keeps, next_keeps = dict(self.keeps), dict(self.next_keeps)
        return tuple(
            request_id
            for request_id, tokens in self.requests
            if computed.get(request_id, 0) < keeps.get(request_id, 0)
            or (
                not self.fresh
                and next_keeps.get(request_id, 0) < tokens
                and not has_rows(request_id, tokens)
            )
        )

    @property
    def keeps(self) -> Positions:
        """Pairs (request, its first tokens of which this stage keeps KV)."""
        return self.requests if self.held is None else self.held

    @property
    def next_keeps(self) -> Positions:
        """Pairs (request, its first tokens of which the stage behind this one keeps KV)."""
        return self.requests if self.next_held is None else self.next_held

    def without(self, missing: Collection[int]) -> "Resume":
        """Copy of this without some requests."""
        kept, held, next_held = (
            positions and tuple(one for one in positions if one[0] not in missing)
            for positions in (self.requests, self.held, self.next_held)
        )
        return Resume(kept or (), held, next_held, self.chains_stay)


def requests_to_resume(
    held: Mapping[int, int], kv_tokens_capacity: int, state_slots: int | None = None
) -> Positions:
    """The requests that go on in a new epoch, shortest first: `held` is of how many tokens of each
    all stages held KV; of some none. Not more than the ring has room for: the head may have
    preempted some since, of which nobody else has heard, and a fresh head takes all that it is told
    for kept."""
    blocks_left, found = blocks_for(kv_tokens_capacity), list[tuple[int, int]]()
    known = sorted((tokens, request_id) for request_id, tokens in held.items() if tokens > 0)
    for tokens, request_id in known[: min(RESUMED_MAX, state_slots or RESUMED_MAX)]:
        blocks_left -= blocks_for(tokens)
        if blocks_left < 0:
            break
        found.append((request_id, tokens))
    return tuple(found)


def held_behind(
    listed: Mapping[int, int], shadowed: Mapping[int, Mapping[int, int]], fresh: Collection[int]
) -> dict[int, Positions]:
    """Tokens that each fresh stage holds of the requests that go on, by the stage's place;
    `shadowed`: of how many tokens, where it was a shadow. A fresh stage behind another one is fed
    by it, so both go on from one position."""
    found: dict[int, Positions] = {}
    for place in sorted(fresh):
        run = [place, *_fresh_around(place, fresh)]
        found[place] = tuple(
            (request_id, least)
            for request_id, tokens in listed.items()
            if (least := min([tokens, *(_held(shadowed, one, request_id) for one in run)])) > 0
        )
    return found


def _fresh_around(place: int, fresh: Collection[int]) -> list[int]:
    """The fresh places next to this one without a gap."""
    found = list[int]()
    for step in (-1, 1):
        following = place + step
        while following in fresh:
            found.append(following)
            following += step
    return found


def _held(shadowed: Mapping[int, Mapping[int, int]], place: int, request_id: int) -> int:
    return shadowed.get(place, {}).get(request_id, 0)


def common_runs(reports: Iterable[Positions]) -> Positions:
    """Runs that all reports, of one at least, have in common, as `cached_runs` names them."""
    common: list[tuple[int, int]] | None = None
    for report in reports:
        common = _rising(report) if common is None else _common(common, _rising(report))
    return tuple(common or ())[:CACHE_RUNS_MAX]


def _rising(report: Positions) -> list[tuple[int, int]]:
    """Runs in rising order, whatever a peer has reported."""
    found, end = list[tuple[int, int]](), 0
    for first, blocks in sorted(report):
        start = max(first, end)
        if start < first + blocks:
            end = first + blocks
            found.append((start, end - start))
    return found


def _common(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs that two lists of runs, each in rising order, have in common."""
    found, one, two = list[tuple[int, int]](), 0, 0
    while one < len(some) and two < len(others):
        start = max(some[one][0], others[two][0])
        stop = min(sum(some[one]), sum(others[two]))
        if start < stop:
            found.append((start, stop - start))
        if sum(some[one]) < sum(others[two]):
            one += 1
        else:
            two += 1
    return found
