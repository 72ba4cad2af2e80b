"""Which seat has which device? Pure.

A *seat* is a place of this PC in the cluster: a node of its own that lends one device. Seats are
numbered, the first is the PC itself; their keys follow from the number, so a seat must not change
its device without need: its stage would move with it.
"""

from collections.abc import Sequence

__all__ = ["NO_DEVICE", "seated"]

NO_DEVICE = ""
"""Of a seat that lends nothing now: its device was taken back, or is broken."""


def seated(now: Sequence[str], lent: Sequence[str]) -> tuple[str, ...]:
    """The device of each seat, by its number, when these devices are lent.

    `now`: as it has been. Who has a lent device keeps it; who has none takes the next that nobody
    has; devices that are left get seats of their own, behind the others. There is always one seat.
    """
    kept = [device if device in lent else NO_DEVICE for device in now or (NO_DEVICE,)]
    free = [device for device in lent if device not in kept]
    seats = [device or (free.pop(0) if free else NO_DEVICE) for device in kept]
    return (*seats, *free)
