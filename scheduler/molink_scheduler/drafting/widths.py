"""How many tokens to draft for each user, by what a row costs and what it may bring.

A ring makes so many tokens a second; a draft that makes the cycle longer costs them all. So a row
is drafted while its chance to be reached and right exceeds the tokens that would be made in the
seconds that it adds: of the wire and of the devices, which it takes from prompts too. One rule
widens users who are alone, narrows full rings and turns itself off. A step of the drafter is paid
once for all users, so rows are handed out depth by depth; handed out one by one, none would pay for
the step that all of them need. Two things remain bounded: the gap after a miss, one token after a
longer round, and how much slower it gets for who gains least.

Rejected: a table of widths by users, which knows neither links nor how well a text is guessed.

Pure.
"""

from dataclasses import dataclass, field

from molink_scheduler.batch import DRAFTS_MAX
from molink_scheduler.drafting.acceptance import Acceptance, DraftKind
from molink_scheduler.drafting.proposals import COPY, GRAMMAR, TAIL
from molink_scheduler.timing.round_model import (
    PREFILL_SHARE_FULL,
    HopCost,
    RoundModel,
    StageCost,
)
from molink_scheduler.timing.round_tracker import RoundTracker

GAIN_MIN = 1.1
"""Times its price that a row must promise: prices and chances are measured, and noisy."""

LINK_FULL, LONGER_MAX_FULL = 0.5, 1.03
"""Where a link is full for more than so much of a round, what comes unevenly waits there: a round
with drafts over the one without, at most."""

SLOWER_MAX, LONGER_MAX = 1.10, 1.5
"""Elsewhere: times as slow as without drafts that the user who gains least may get their tokens,
and a round over the one without, at most: the gap after a miss. A round bound by the first figure
alone left no draft where a row costs a seventh of it, as with experts read for each row, though
four made twice the tokens (docs/benchmarks/speculation.md)."""

CYCLE_S_MIN = 1e-6
"""Least cycle: a ring that has measured none of its costs would make endless tokens a second."""

PROBE_ROUNDS, PROBE_ROUNDS_MAX = 32, 256
"""Rounds without a draft after which one is made and compared, or a text that can be guessed again
would never be found out; twice as many after each one that was wrong, up to the second figure: it
is no row of the ring, but takes a step of the head's device, or the tail's."""


@dataclass(frozen=True, slots=True)
class DraftLoad:
    """What a ring is busy with, from which the price of a row follows."""

    costs: RoundModel
    """Costs of its stages, the head first, and links."""
    micro_batch_count: int
    step_s: float = 0.0
    """Seconds of who drafts for one more draft of all users of a micro-batch; 0: drafts are
    copied."""
    prefill_share: float = 0.0
    """Share of the devices' time that prompts take."""
    at_tail: bool = False
    """Whether the tail's device takes these seconds, not the head's."""


class _Cycle:
    """Time of a cycle by rows and depth; counts of rows are those of all micro-batches."""

    def __init__(self, load: DraftLoad, users: int) -> None:
        stages, hops = load.costs.stages, load.costs.hops
        self._count = max(1, min(load.micro_batch_count, users))
        parts: list[StageCost | HopCost] = [*stages, *hops]
        self._fixed_s = sum([part.fixed_s for part in parts])
        self._row_s = sum([part.row_s for part in parts]) / self._count
        self._stages = [(self._count * one.fixed_s, one.row_s) for one in stages]
        self._wire_row_s = max([one.row_s for one in hops], default=0.0)
        self._step_s, self._drafts_at = load.step_s, -1 if load.at_tail else 0
        self._prefill = min(1.0, load.prefill_share / PREFILL_SHARE_FULL)

    def device_s(self, rows: float, depths: int) -> float:
        """Seconds of the device that a cycle takes most of."""
        steps = [fixed_s + rows * row_s for fixed_s, row_s in self._stages] or [0.0]
        steps[self._drafts_at] += self._count * depths * self._step_s
        return max(steps)

    def cycle_s(self, rows: float, depths: int) -> float:
        """Seconds until every user has been round once."""
        trip_s = self._fixed_s + rows * self._row_s + depths * self._step_s
        return max(trip_s, self.device_s(rows, depths), rows * self._wire_row_s)

    def cost_s(self, rows: float, depths: int) -> float:
        """The same, and beside prompts what it takes from them."""
        return self.cycle_s(rows, depths) + self._prefill * self.device_s(rows, depths)

    def may_last_s(self, users: int, rows: float, depths: int, least: float) -> float:
        """Longest cycle of so many rows, of which users without drafts take one each; `least`:
        tokens that each user gets of it at least."""
        is_full = rows * self._wire_row_s > LINK_FULL * self.cycle_s(rows, depths)
        longer = LONGER_MAX_FULL if is_full else min(LONGER_MAX, SLOWER_MAX * least)
        return self.cycle_s(users, 0) * longer


def wanted_widths(chances: dict[int, float], load: DraftLoad, most: int) -> dict[int, int]:
    """Drafts for each user, by the chance of each to be right where those before it were."""
    users = len(chances)
    cycle, widths = _Cycle(load, users), dict.fromkeys(chances, 0)
    reached, tokens = dict(chances), dict.fromkeys(chances, 1.0)
    for depth in range(1, most + 1):
        deeper = _worth(reached, cycle, users + sum(widths.values()), depth, tokens)
        if not deeper:
            break
        for user in deeper:
            tokens[user] += reached[user]
        reached = {user: reached[user] * chances[user] for user in deeper}
        widths |= dict.fromkeys(deeper, depth)
    return widths


def _worth(
    reached: dict[int, float], cycle: _Cycle, rows: int, depth: int, tokens: dict[int, float]
) -> list[int]:
    """Those of the users drafted for so far who are worth one draft more, the likeliest first:
    together they must pay for the drafter's step. `tokens`: of each user's round without."""
    now_s = cycle.cost_s(rows, depth - 1)
    made = sum(tokens.values())
    price_per_s = GAIN_MIN * made / max(cycle.cycle_s(rows, depth - 1), CYCLE_S_MIN)
    likeliest = sorted(reached, key=reached.__getitem__, reverse=True)
    least, least_of_all = min(tokens.values()), _least(tokens, reached)
    gain, most, worth = 0.0, 0.0, 0
    for count, user in enumerate(likeliest, 1):
        gain += reached[user]
        own = least_of_all if count == len(tokens) else least
        longest_s = cycle.may_last_s(len(tokens), rows + count, depth, own)
        net = gain - price_per_s * (cycle.cost_s(rows + count, depth) - now_s)
        if net > most and cycle.cycle_s(rows + count, depth) <= longest_s:
            most, worth = net, count
    return likeliest[:worth]


def _least(tokens: dict[int, float], reached: dict[int, float]) -> float:
    """Tokens of the user who has the fewest, once all who can have a draft more."""
    return min(tokens[user] + reached.get(user, 0.0) for user in tokens)


@dataclass(slots=True)
class _User:
    """One who decodes: how many drafts of one drafter, and rounds since there were some."""

    kind: DraftKind
    width: int = 0
    rounds_without: int = 0
    probe_after: int = PROBE_ROUNDS
    """Rounds without a draft after which the next is tried."""

    def probes(self) -> bool:
        """Whether one is made in this round, as in one of many where none is worth its price."""
        self.rounds_without += 1
        if self.rounds_without < self.probe_after:
            return False
        self.rounds_without = 0
        self.probe_after = min(2 * self.probe_after, PROBE_ROUNDS_MAX)
        return True


@dataclass(slots=True)
class _Served:
    """Users of one drafter."""

    users: dict[int, _User] = field(default_factory=dict)
    may_pay: bool = True
    """Whether a draft that is surely right is worth its price now: else none is tried either."""
    rounds_left: int = 0
    """Rounds of users until widths are chosen anew: once a cycle."""


@dataclass(slots=True)
class DraftWidths:
    """Width of each user's next round, by who will draft. Several drafters may stand by for a user,
    of whom one's drafts are taken; the widths of each are those that would be worth it if it
    drafted for all users that it serves."""

    most: int = DRAFTS_MAX
    acceptance: Acceptance = field(init=False, default_factory=Acceptance)
    _round: tuple[RoundTracker, int, float] | None = field(init=False, default=None)
    """What the last round showed, how many micro-batches circled, and what prompts took."""
    _step_s: float = field(init=False, default=0.0)
    _served: dict[str, _Served] = field(init=False, default_factory=dict)

    def width(self, request_id: int, kind: DraftKind) -> int:
        """Drafts for a request that is about to depart."""
        served = self._served.setdefault(kind.by, _Served())
        user = served.users.setdefault(request_id, _User(kind))
        served.rounds_left -= 1
        if served.rounds_left < 0:
            self._choose(kind.by, served)
        if user.width:
            user.rounds_without = 0
        return min(user.width, self.most)

    def probes(self, request_id: int, kind: DraftKind) -> bool:
        """Whether one draft is to be made where `width` has just been 0, and compared only: now and
        then, where one that is surely right would pay."""
        served = self._served[kind.by]
        return served.may_pay and self.most > 0 and served.users[request_id].probes()

    def judged(self, request_id: int, kind: DraftKind, tried: int, right: int) -> None:
        """Learn that the first `right` of a request's `tried` drafts came true."""
        self.acceptance.judged(request_id, kind, tried, right)
        user = self._served[kind.by].users.get(request_id) if kind.by in self._served else None
        if right and user is not None:
            user.probe_after = PROBE_ROUNDS

    def drafted(self, step_s: float) -> None:
        """One more draft of all takes the head's drafters so long."""
        self._step_s = step_s

    def round_completed(self, tracker: RoundTracker, count: int, prefill_share: float) -> None:
        """One of `count` micro-batches is back; what the next ones will cost, and what prompts take
        of the devices."""
        self._round = tracker, count, prefill_share

    def forget(self, request_id: int) -> None:
        """A request has ended, or sits out; one that is unknown is fine."""
        for served in self._served.values():
            served.users.pop(request_id, None)
        self.acceptance.forget(request_id)

    def _choose(self, by: str, served: _Served) -> None:
        """Choose all widths of a drafter anew. They at most double, as the cost of a row is not
        known before rows have been seen beside others."""
        served.rounds_left = len(served.users) - 1
        if self._round is None:
            return
        tracker, count, prefill_share = self._round
        if (costs := tracker.model()) is None:
            return
        load = DraftLoad(costs, count, self._step_of(by, costs), prefill_share, by == TAIL)
        # Those for whom it does not draft share the ring all the same.
        chances = {one: 0.0 for other in self._served.values() for one in other.users}
        for request_id, user in served.users.items():
            chances[request_id] = self.acceptance.chance(request_id, user.kind)
        wanted = wanted_widths(chances, load, self.most)
        served.may_pay = any(
            wanted_widths(chances | dict.fromkeys(served.users, 1.0), load, 1).values()
        )
        for request_id, user in served.users.items():
            user.width = min(wanted[request_id], 2 * user.width + 1)

    def _step_of(self, by: str, costs: RoundModel) -> float:
        """Seconds of one more draft of all users."""
        if by in (COPY, GRAMMAR):
            return 0.0
        return costs.pass_s if by == TAIL else self._step_s
