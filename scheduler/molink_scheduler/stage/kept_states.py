"""Snapshots of states that one stage has kept, as far as batches have told of them.

A model whose layers keep a state goes on only where a snapshot was made, so a request that begins
with cached blocks begins with the snapshot behind them. A stage of layers that keep none has no
room for any.

Pure: says what is wrong, drops nothing itself.
"""

from dataclasses import dataclass, field

from molink_scheduler.batch import Admission, Batch


@dataclass(slots=True)
class KeptStates:
    """Snapshots of one stage."""

    room: int | None = None
    """Number of snapshots that there is room for; None: layers keep no states."""
    _made: set[int] = field(init=False, default_factory=set)

    def kept(self, batch: Batch) -> None:
        """Note the snapshots that were made behind a batch."""
        if self.room is not None:
            self._made.update(one.snapshot for one in batch.snapshots)

    def begun_objection(self, admission: Admission) -> str | None:
        """Why the states with which a request is to begin are not those of a snapshot that is
        here."""
        if self.room is None:
            return None  # Other stages of the ring may keep some.
        if not admission.cached:
            return f"request {admission.request_id} is to begin with states and no cached blocks"
        if admission.snapshot in self._made:
            return None
        return f"request {admission.request_id} is to begin with states that were not kept here"

    def kept_objection(self, batch: Batch) -> str | None:
        """Why states cannot be kept behind the batch as it says."""
        if self.room is None or not batch.snapshots:
            return None
        ends = {span.request_id: span.known_end for span in batch.spans}
        for kept in batch.snapshots:
            if kept.snapshot >= self.room:
                return f"there is no room for a snapshot {kept.snapshot} of states"
            if ends.pop(kept.request_id, None) != kept.tokens:
                return f"states of request {kept.request_id} are to be kept where no span ends"
        if len({kept.snapshot for kept in batch.snapshots}) < len(batch.snapshots):
            return "two snapshots of states are to be kept as one"
        return None
