"""Messages of a cell: what a PC lends to stages on other PCs of its LAN, and what it is told.

A heartbeat tells all of it, an order is all that the coordinator wants. So either one may be lost,
or come twice. A lease that is in no order stays: a coordinator that was started anew learns by the
first heartbeats which ones there are, and names those that are to end.
"""

from typing import Annotated

from pydantic import Field

from molink.control.messages.base import Bytes, Message, Milliseconds, Number, Sentence
from molink.stage_protocol.pairing import Pairing

LEASES_MAX = 64
"""Leases of one PC: more than stages of a cell, and echoes."""

ECHOES_MAX = 32
"""Most echoes of one measurement, twenty of which are asked for."""

Host = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9.\-:\[\]]+$")]
OptionalHost = Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9.\-:\[\]]*$")]
CardName = Annotated[str, Field(pattern=r"^cuda:\d{1,2}$")]
LenderId = Annotated[str, Field(pattern=r"^[a-z2-7]{16}(/cuda:\d{1,2})?$")]
"""A PC that lends main memory, by its node's id; behind it, a card of it."""

LeaseKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
"""Key of a lease, 32 bytes in hex; it is never printed."""


class LeaseHeld(Message):
    """Lease that a PC has allowed."""

    lease: Number
    size_bytes: Bytes
    """Bytes that it may have."""
    held_bytes: Bytes = 0
    """Bytes of it that are taken."""


class EchoesTold(Message):
    """Echoes of a PC that lends, as one that may borrow has measured them."""

    lender: LenderId
    round: Number
    """Round of the order."""
    milliseconds: Annotated[tuple[Milliseconds, ...], Field(max_length=ECHOES_MAX)] = ()
    """Each echo's time; empty: it was not to be reached."""


class LenderFacts(Message):
    """Facts of one device of a PC that lends."""

    started: Number
    """Number that rises each time that the agent, or what lends beside it, starts."""
    memory_bytes: Bytes = 0
    """Memory that is lent now, what is lent already counted."""
    why_less: Sentence = ""
    """Why it is less than the owner has set; empty: it is not."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port where it lends; 0: it does not run."""
    incarnation: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Number of the process that lends, drawn as it starts."""
    leases: Annotated[tuple[LeaseHeld, ...], Field(max_length=LEASES_MAX)] = ()
    ended: Annotated[tuple[Number, ...], Field(max_length=LEASES_MAX)] = ()
    """Leases of the last order that it refuses, or has ended."""


class CardFacts(LenderFacts):
    """Facts of a card that holds no stage, and lends."""

    device: CardName
    bytes_per_s: Annotated[float, Field(ge=0, le=1e15)]
    """KV that it attends to."""


class CellFacts(LenderFacts):
    """Facts of a PC that others of its cell count with, and its own stages with its card; part of
    its first node's heartbeat. What lends by itself is its main memory."""

    cores: Annotated[int, Field(ge=0, le=1024)] = 0
    own_room_bytes: Bytes = 0
    """Main memory that the PC's own stages may have KV of requests in."""
    echoes: Annotated[tuple[EchoesTold, ...], Field(max_length=LEASES_MAX)] = ()
    host: OptionalHost = ""
    """Where the PC's own stages reach what lends here; empty: by no address."""
    card: CardFacts | None = None
    """Its card that lends; None: none does."""


class LeaseOrder(Message):
    """Lease that a PC is to allow: who has the key may hold so many bytes."""

    lease: Number
    key: LeaseKey
    size_bytes: Bytes
    """0: it is good for echoes."""


class EchoOrder(Message):
    """Order to measure echoes of a PC that lends."""

    lender: LenderId
    round: Number
    host: Host
    port: Annotated[int, Field(ge=1, le=65_535)]
    lease: Number
    key: LeaseKey


class LenderOrder(Message):
    """Order to one device that lends, which replaces the one before."""

    serves: bool = False
    """Whether what lends is to run: somebody may borrow of it."""
    allow: Annotated[tuple[LeaseOrder, ...], Field(max_length=LEASES_MAX)] = ()
    end: Annotated[tuple[Number, ...], Field(max_length=LEASES_MAX)] = ()
    """Leases that are to end; one that is in neither list stays."""


class CellOrder(LenderOrder):
    """Order to a PC of a cell, to its main memory first; it replaces the one before."""

    echoes: Annotated[tuple[EchoOrder, ...], Field(max_length=LEASES_MAX)] = ()
    card: LenderOrder | None = None
    """Order to its card; None: that has nothing to do."""


class PairOrder(Message):
    """Order to a stage of a ring, while that serves: its end of the hand-over of KV to a stage of
    another ring, or from it."""

    ring: Number
    """Ring of the stage; one of any other is paired with nobody."""
    pairing: Pairing | None = None
    """None: it has no end any more."""
