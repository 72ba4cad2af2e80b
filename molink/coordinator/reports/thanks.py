"""Thanks to volunteers: for how many people each PC has computed tonight, and a ranking.

A person is an API key. Its id stays here, in memory alone, and is forgotten at noon: a volunteer is
told how many people there were and nothing of any of them. Names of PCs are told only to owners who
have agreed, and only names of such owners: a PC agrees with each question, and who has not asked
for a day is left out.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from molink.report.thanks import RankReport, ThanksReport
from molink.serving.timeline import RequestTimeline

NOON = timedelta(hours=12)

PEOPLE_MAX = 10_000
"""Different keys that are told apart in one night."""

AGREED_S = 86_400.0
"""For how long a PC is named after its last question; agents that run ask every ten minutes."""

RANKED_MAX = 10
"""PCs in a ranking, beside the one that asks."""


@dataclass(slots=True)
class Helped:
    """Somebody's count of one night."""

    people: set[str] = field(default_factory=set)
    answers: int = 0

    def add(self, person: str) -> None:
        """Count one more answer, and whom it was for."""
        self.answers += 1
        if len(self.people) < PEOPLE_MAX:
            self.people.add(person)


@dataclass(slots=True)
class PeopleHelped:
    """Counter of people helped, by PC, from noon to noon."""

    pcs_by_name: Callable[[], Mapping[str, str]]
    """Ids of PCs by the names of their nodes."""
    given: Callable[[], Mapping[str, int]]
    """Tokens times layers that nodes have given since they joined, by their names."""
    clock: Callable[[], float] = time.time
    _cluster: Helped = field(default_factory=Helped)
    _by_pc: dict[str, Helped] = field(default_factory=dict)
    _agreed: dict[str, float] = field(default_factory=dict)
    """When each PC whose owner agrees to be named has asked last."""
    _night: date | None = None
    _since: float = 0.0

    def __post_init__(self) -> None:
        self._turn()
        self._since = self.clock()

    def ended(self, timeline: RequestTimeline) -> None:
        """Count a request that has ended, if any of its answer was computed."""
        self._turn()
        names = {one.node for part in timeline.attempts if part.tokens for one in part.stages}
        if not names:
            return
        pcs, person = self.pcs_by_name(), timeline.key_id or ""
        self._cluster.add(person)
        for pc in {pcs[name] for name in names if name in pcs}:
            self._by_pc.setdefault(pc, Helped()).add(person)

    def report(self, pc: str, *, agrees: bool) -> ThanksReport:
        """What this PC is told; `agrees`: whether its owner does to be named to others."""
        self._turn()
        if agrees:
            self._agreed[pc] = self.clock()
        else:
            self._agreed.pop(pc, None)
        mine = self._by_pc.get(pc, Helped())
        return ThanksReport(
            self._since,
            len(mine.people),
            mine.answers,
            len(self._cluster.people),
            self._cluster.answers,
            tuple(self._ranking(pc)) if agrees else (),
        )

    def _ranking(self, asking: str) -> Sequence[RankReport]:
        """The first of those who agree, and the one that asks wherever it stands."""
        oldest, given = self.clock() - AGREED_S, self.given()
        self._agreed = {pc: at for pc, at in self._agreed.items() if at >= oldest}
        names, sums = dict[str, str](), Counter[str]()
        for name, pc in self.pcs_by_name().items():
            names.setdefault(pc, name)
            sums[pc] += given.get(name, 0)
        agreed = (pc for pc in self._agreed if pc in names)
        ranks = [RankReport(names[pc], sums[pc], pc == asking) for pc in agreed]
        ranks.sort(key=lambda rank: (-rank.token_layers, rank.name))
        return ranks[:RANKED_MAX] + [rank for rank in ranks[RANKED_MAX:] if rank.is_you]

    def _turn(self) -> None:
        """Begin another night at noon of this machine's clock."""
        now = datetime.fromtimestamp(self.clock())
        night = (now - NOON).date()
        if night == self._night:
            return
        self._night = night
        self._since = datetime(night.year, night.month, night.day, 12).timestamp()
        self._cluster = Helped()
        self._by_pc.clear()
