"""What an assignment asks of a node, in the terms of its stage."""

from dataclasses import replace

from molink.control.messages.payloads import AssignedWork, Assignment
from molink.errors import StageError
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.resume import Resume


def added_work(held: AssignedWork, wanted: AssignedWork) -> AssignedWork:
    """The part of `wanted` that is not `held`, where what is held stays as it is. Raises StageError
    where it would not."""
    (start, stop), (first, end) = held.layers, wanted.layers
    same = replace(wanted, layers=held.layers, kv_tokens=held.kv_tokens) == held
    if same and start == first and stop < end:
        return replace(wanted, layers=(stop, end))
    if same and stop == end and first < start:
        return replace(wanted, layers=(first, start))
    raise StageError(f"It holds layers {start} to {stop - 1}, beside which it cannot take others.")


def resume_of(assignment: Assignment) -> Resume | None:
    """What the stage keeps, where its ring goes on. Raises StageError when it cannot be read."""
    if assignment.resume is not None and not isinstance(assignment.resume, Resume):
        raise StageError("The coordinator speaks another version: update MoLink.")
    return assignment.resume


def ring_terms(assignment: Assignment) -> RingTerms:
    """What the coordinator decides of the ring. Raises StageError when it cannot be read."""
    if not isinstance(assignment.join, RingTerms):
        raise StageError("The coordinator speaks another version: update MoLink.")
    return assignment.join
