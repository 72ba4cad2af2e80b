"""Whom a ring's failure is blamed on, for how long plans leave it out, and when it is forgiven.

A node that says that its own disk is full, or whose stage stands still, fails by itself and rests.
A link has two ends, and who complains may be the one who is at fault: a failure between two nodes
makes both suspect, and the rest falls on whoever has failed with more others. Where that does not
tell them apart, it is the turn of the one that has not rested for it yet; then of the one that has
not worked since; then of the one that the other complains about, for a listener that does not
answer is at least as suspect as a sender that asks. Resting both was rejected: it takes an honest
PC from the users each time, and of two PCs both.

A failure that its ring has got over, and a PC that is gone without a word, cost a node nothing the
first time: owners switch their PCs off. But they count, so that whoever is lost again and again is
left out for ever longer. Whoever says that it ends, for an update perhaps, is not blamed at all,
unless it does so every few minutes.

Who is only suspected rests for the sake of those who serve meanwhile. Where nobody else can, it is
pardoned: then the pauses between two attempts are those of a ring for which nobody is to blame.

So one bad node among three or more has others rest for some seconds, `INNOCENT_RESTS_MAX` times
together, until it has failed with two of them. Each further failure doubles a rest. An hour of
service forgives one failure, and so does a day without any: nobody is punished for good.

Pure: times are arguments, in seconds on a clock that never jumps.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from molink.coordinator.ring.stage_watch import StageFailure

REST_FIRST_S, REST_MAX_S = 60.0, 3600.0
"""First and longest rest of a node whose stage has failed; each failure doubles it. Only the node
can know that its disk is full, so it is tried again."""

SUSPECT_SHARE = 0.25
"""Share of such a rest for a node that is only suspected: at first half of those are innocent, and
where two PCs serve alone, nobody serves meanwhile."""

INNOCENT_RESTS_MAX = 2
"""Rests of others that one bad node among three or more can bring about, until it is forgiven."""

HOUR_S = 3600.0
"""Service without a failure after which one failure is forgiven."""

EXCUSED_MAX = 12
"""Ends within an hour that a node may announce: each costs users some seconds all the same."""

STOPS_S = 180.0
"""Between the ends that PCs announce while they are updated one after another. A better ring would
be loading when the next of them is stopped, and the ring before it gone."""

CALM_S = 24 * 3600.0
"""After so long without a failure, served or not, all are forgotten."""


@dataclass(slots=True)
class _Record:
    """What is held against one node."""

    failures: int = 0
    """Failures that the node rested for."""
    suspicions: int = 0
    """Failures that rest on a neighbour's complaint, or on the node's own."""
    rest_s: float = 0.0
    until: float = 0.0
    """How long its rest is, and when it ends."""
    is_suspected: bool = False
    """Whether it rests on suspicion."""
    latest: StageFailure | None = None
    """Latest failure of the node's own stage."""
    reason: str = ""
    served_s: float = 0.0
    """Since its last failure, or the last hour that was forgiven."""
    failed_at: float = 0.0


@dataclass(slots=True)
class Blame:
    """Judge of failures: which nodes rest, and until when."""

    first_s: float = REST_FIRST_S
    max_s: float = REST_MAX_S
    _records: dict[str, _Record] = field(default_factory=dict)
    _partners: dict[str, set[str]] = field(default_factory=dict)
    """Nodes with which each has failed."""
    _ends: dict[str, deque[float]] = field(default_factory=dict)
    """The latest ends that each has announced."""

    def failed(self, failure: StageFailure, now: float) -> str:
        """Take in a failure; the id of the node that rests for it."""
        node_id, about = failure.node_id, failure.about
        if not about or about == node_id:
            record = self._record(node_id)
            if record.latest is not failure:  # Else it is told once more, when its ring ends.
                record.latest = failure
                self._rest(node_id, failure.reason, 1.0, now)
            return node_id
        self._suspect(node_id, about, now)
        culprit = max((node_id, about), key=lambda one: self._suspicion(one, is_about=one == about))
        for one in (node_id, about):
            self._record(one).served_s = 0.0
        self._record(culprit).suspicions += 1
        self._rest(culprit, failure.reason, SUSPECT_SHARE, now)
        self._release_partners(culprit, now)
        return culprit

    def complained(self, failure: StageFailure, now: float) -> bool:
        """Note what one of a pair has against the other, for which nobody rests yet; whether either
        has had such trouble with others too."""
        self._suspect(failure.node_id, failure.about, now)
        return any(len(self._partners[one]) > 1 for one in (failure.node_id, failure.about))

    def mended(self, node_id: str, now: float) -> None:
        """A stage of this node failed, and its ring went on: a rest that follows is longer."""
        record = self._record(node_id)
        record.failures += 1
        record.failed_at, record.served_s = now, 0.0

    def left(self, node_id: str, name: str, now: float, *, announced: bool = False) -> None:
        """This node is gone from a ring that served, without a word unless `announced`."""
        if announced and self._is_excused(node_id, now):
            return
        if self.failed_lately(node_id, now):
            reason = f"{name} was lost from a ring, and not for the first time within an hour."
            self._rest(node_id, reason, SUSPECT_SHARE, now)
        else:
            self.mended(node_id, now)

    def _is_excused(self, node_id: str, now: float) -> bool:
        ends = self._ends.setdefault(node_id, deque(maxlen=EXCUSED_MAX))
        is_excused = len(ends) < EXCUSED_MAX or now - ends[0] > HOUR_S
        ends.append(now)
        return is_excused

    def are_stopped(self, now: float) -> bool:
        """Whether members of rings are being stopped in order, one after another."""
        return any(now - ends[-1] < STOPS_S for ends in self._ends.values())

    def pardon(self, now: float) -> bool:
        """End the rests on suspicion, as nobody else can serve; whether there were any."""
        resting = [one for one in self._records.values() if one.is_suspected and one.until > now]
        for record in resting:
            record.until = now
        return bool(resting)

    def cleared(self, node_id: str, now: float) -> None:
        """The latest failure that is held against this node was not its doing."""
        record = self._records.get(node_id)
        if record is None:
            return
        record.failures, record.until = record.failures - 1, min(record.until, now)
        if record.failures <= 0:
            self._forget(node_id)

    def is_resting(self, node_id: str, now: float) -> bool:
        """Whether plans leave it out."""
        record = self._records.get(node_id)
        return record is not None and record.until > now

    def failed_lately(self, node_id: str, now: float) -> bool:
        """Whether it has rested for a failure within the last hour that is not forgiven."""
        record = self._records.get(node_id)
        return record is not None and record.failures > 0 and now - record.failed_at < HOUR_S

    def reasons(self, now: float) -> dict[str, str]:
        """Why each node that rests does, and for how long in all, in sentences: one that counted
        down would be news every second."""
        return {
            node_id: f"It rests for {record.rest_s:.0f} s: {record.reason}"
            for node_id, record in self._records.items()
            if record.until > now
        }

    def served(self, node_ids: Iterable[str], elapsed_s: float, now: float) -> None:
        """These nodes have served for so long since the last call; forgive what is due."""
        if not self._records:
            return
        for node_id in node_ids:
            record = self._records.get(node_id)
            if record is not None:
                self._forgive(node_id, record, elapsed_s)
        calm = [one for one, record in self._records.items() if now - record.failed_at > CALM_S]
        for node_id in calm:
            self._forget(node_id)

    def _forgive(self, node_id: str, record: _Record, elapsed_s: float) -> None:
        record.served_s += elapsed_s
        if record.served_s < HOUR_S:
            return
        record.served_s -= HOUR_S
        record.failures -= 1
        if record.failures <= 0:
            self._forget(node_id)

    def _forget(self, node_id: str) -> None:
        """What its neighbours have failed with it is held against them for as long as theirs is."""
        del self._records[node_id]
        self._partners.pop(node_id, None)

    def _record(self, node_id: str) -> _Record:
        return self._records.setdefault(node_id, _Record())

    def _suspect(self, one: str, other: str, now: float) -> None:
        for node_id, partner in (one, other), (other, one):
            self._partners.setdefault(node_id, set()).add(partner)
            self._record(node_id).failed_at = now

    def _suspicion(self, node_id: str, *, is_about: bool) -> tuple[int, bool, bool, int, bool]:
        """Compared with that of the other one of a pair: the greater one rests."""
        record = self._record(node_id)
        return (
            len(self._partners[node_id]),
            record.suspicions == 0,
            record.served_s == 0,
            -record.suspicions,
            is_about,
        )

    def _rest(self, node_id: str, reason: str, share: float, now: float) -> None:
        record = self._record(node_id)
        longest_s = min(self.max_s, self.first_s * 2.0 ** min(record.failures, 30))
        record.failures += 1
        record.rest_s, record.reason = share * longest_s, reason
        record.is_suspected = share < 1
        record.until = now + record.rest_s
        record.failed_at, record.served_s = now, 0.0

    def _release_partners(self, culprit: str, now: float) -> None:
        """Nodes that were suspected only because of one that has now failed with others too."""
        partners = self._partners[culprit]
        if len(partners) < 2:
            return
        for partner in partners:
            record = self._records.get(partner)
            if record and record.suspicions and self._partners.get(partner) == {culprit}:
                record.failures = max(0, record.failures - record.suspicions)
                record.suspicions, record.until = 0, min(record.until, now)
