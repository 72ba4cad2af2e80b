"""Layers of an extended stage that still lack a request's KV, and the rows they are fed from.

A ring that has lost a stage which no other node can hold goes on with one place less: a neighbour
loads the lost layers beside its own. What it held stays. Where the lost layers are *behind* its
own, the rows that they take are those that it once sent: its replay log feeds them, one request at
a time, right before that request goes on. Where they are *before* its own, they are fed like a
fresh stage, by the stage before or, on the head, from the tokens (`resume`); rows of a replay are
for them alone, and the kept layers do not compute them again.

To feed all requests before the ring goes on was rejected: the user with the shortest context would
wait for the longest.

Pure: says who lacks what, computes nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from molink_scheduler.batch import Admission, Batch
from molink_scheduler.resume import Resume
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.stage.sent_rows import SentRows

HasRows = Callable[[int, int], bool]
"""Whether the rows of a request's first tokens, that a stage has sent, are still there."""


@dataclass(slots=True)
class Extension:
    """Bookkeeping of layers that a stage has taken beside those that it keeps."""

    log: ReplayLog | None
    """Rows that the kept layers have sent, where the new ones are behind; None: they are before."""
    held: dict[int, int]
    """Tokens of each request of which the kept layers hold KV, where the new layers are before."""
    _is_fed: bool = field(init=False, default=False)
    """Whether rows are replayed for the new layers before, and for them alone."""
    _whole: set[int] = field(init=False, default_factory=set)
    """Requests of which the new layers behind hold what the kept ones hold."""
    _lacking: dict[int, Admission | None] = field(init=False, default_factory=dict)
    """Requests of which the new layers behind hold nothing, with what was said of each."""

    @property
    def is_before(self) -> bool:
        """Whether the new layers are before the kept ones."""
        return self.log is None

    def begin_epoch(
        self, resume: Resume, computed: Mapping[int, int], has_rows: HasRows
    ) -> tuple[int, ...]:
        """Enter the ring's next epoch; the requests that the stage cannot go on with. `computed`
        and `has_rows` are of the stage as a whole, as for `Resume.missing`."""
        if self.log is None:
            return self._go_on_before(resume, computed, has_rows)
        return self._go_on_behind(self.log, resume, computed, has_rows)

    def _go_on_before(
        self, resume: Resume, computed: Mapping[int, int], has_rows: HasRows
    ) -> tuple[int, ...]:
        """Enter the epoch. If the stage behind is fresh too, all layers compute the replay."""
        self._is_fed = resume.fresh and not resume.next_fresh
        if not self._is_fed:
            return resume.missing(computed, has_rows)
        missing = Resume(resume.requests).missing(self.held, has_rows)
        self.held = dict(resume.without(missing).requests)
        return missing

    def _go_on_behind(
        self, log: ReplayLog, resume: Resume, computed: Mapping[int, int], has_rows: HasRows
    ) -> tuple[int, ...]:
        lacking = {one for one, _ in resume.requests} - self._whole
        missing = resume.missing(
            computed, lambda one, tokens: (log.has if one in lacking else has_rows)(one, tokens)
        )
        unfed = [
            one for one, tokens in resume.requests if one in lacking and not log.has(one, tokens)
        ]
        missing = tuple(dict.fromkeys((*missing, *unfed)))
        kept = resume.without(missing).requests
        self._whole &= dict(kept).keys()
        self._lacking = dict.fromkeys(one for one, _ in kept if one in lacking)
        fed = tuple(one for one in kept if one[0] in lacking)
        log.begin_epoch(Resume(fed, next_held=()))
        return missing

    def begins(self, batch: Batch) -> bool:
        """Take note of a batch that the stage computes next; whether it is for the new layers
        alone."""
        if self._is_fed and batch.replay:
            return True
        for admission in batch.admissions:
            self._admit(admission)
        return False

    def _admit(self, admission: Admission) -> None:
        request_id = admission.request_id
        if not admission.kept_tokens:
            self.released(request_id)
            self._whole.add(request_id)
        elif request_id in self._lacking:
            self._lacking[request_id] = admission

    def fed(self, batch: Batch, rows_max: int) -> Iterator[tuple[Batch, SentRows]]:
        """Rows that the new layers behind lack of the requests of a batch that they are to compute
        next, in pieces of at most `rows_max` rows. The need is kept until all pieces of a request
        are computed."""
        for request_id in [span.request_id for span in batch.spans]:
            admission = self._lacking.get(request_id)
            if admission is None or self.log is None:
                continue
            yield from self.log.batches(batch, admission, rows_max)
            del self._lacking[request_id]
            self._whole.add(request_id)
            self.log.forget(request_id)

    def released(self, request_id: int) -> None:
        """A request was forgotten; one that is unknown is fine."""
        self.held.pop(request_id, None)
        self._whole.discard(request_id)
        self._lacking.pop(request_id, None)
        if self.log is not None:
            self.log.forget(request_id)
