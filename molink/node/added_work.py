"""What a stage takes beside the layers that it holds."""

from dataclasses import replace

from molink.control.messages.payloads import AssignedWork
from molink.errors import StageError


def added_work(held: AssignedWork, wanted: AssignedWork) -> AssignedWork:
    """The part of `wanted` that is not `held`, where what is held stays as it is. Raises StageError
    where it would not."""
    (start, stop), (first, end) = held.layers, wanted.layers
    layers, drafter = held.layers, held.drafter
    same = replace(wanted, layers=layers, kv_tokens=held.kv_tokens, drafter=drafter) == held
    if same and start == first and stop < end:
        return replace(wanted, layers=(stop, end))
    if same and stop == end and first < start:
        return replace(wanted, layers=(first, start))
    raise StageError(f"It holds layers {start} to {stop - 1}, beside which it cannot take others.")
