"""Assignment of a node: the whole of what it shall do now, as one command in an envelope.

A ring forms when its nodes `Load` and then `Join`. When it has lost a stage, survivors `Hold`, the
lost stage's layers are loaded by another node (`Load`) or by a neighbour beside its own (`Extend`),
and all `GoOn` in the next epoch. A standby that holds a stage's KV `Follow`s the ring. A node that
nobody needs shall `Stop`.

A command that this build cannot read, perhaps of another version, is `Unreadable`; the envelope
around it counts, so its sender is told so. To builds before protocol 9, which look for `work`
beside the envelope, every command is an order to stop.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import CoreSchema, core_schema

from molink.control.messages.base import (
    Embedded,
    Message,
    Number,
    ProtocolNumber,
    Sentence,
    Token,
    Unreadable,
    refuse_unprintable,
    texts_in,
)
from molink.control.messages.payloads import AssignedWork, StageLink
from molink.control.versions import PROTOCOL_IF_UNSTATED
from molink.json_object import JsonObject
from molink.stage_protocol.messages import RESUME, TERMS
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.resume import Resume


class Stop(Message):
    """Command: end the stage, if there is one, and hold nothing."""

    kind: Literal["stop"] = "stop"


class Load(Message):
    """Command: load these layers, and wait for a ring."""

    kind: Literal["load"] = "load"
    work: AssignedWork


class Extend(Message):
    """Command: load what this work has more than the stage holds, in its process, while its ring
    waits."""

    kind: Literal["extend"] = "extend"
    work: AssignedWork


class Hold(Message):
    """Command: keep stage and links as they are, while the ring finds out how to go on."""

    kind: Literal["hold"] = "hold"
    work: AssignedWork


class _Placed(Message):
    """Work of a stage with a place in a ring, and where its links lead."""

    work: AssignedWork
    terms: Annotated[RingTerms, Embedded(TERMS, is_vital=True)]
    next_link: StageLink
    coordinator_link: StageLink | None
    """Link to the coordinator, of the tail; None elsewhere."""

    @property
    def links(self) -> tuple[StageLink, ...]:
        """All links that leave the stage."""
        tail = (self.coordinator_link,) if self.coordinator_link is not None else ()
        return (self.next_link, *tail)


class Join(_Placed):
    """Command: join a ring that begins."""

    kind: Literal["join"] = "join"


class GoOn(_Placed):
    """Command: join the next epoch of a ring that has lost a stage."""

    kind: Literal["go_on"] = "go_on"
    resume: Annotated[Resume, Embedded(RESUME, is_vital=True)]
    """Requests and blocks that the stage keeps."""


class Follow(Message):
    """Command: be the shadow of a stage, in its ring's epoch and without a place there."""

    kind: Literal["follow"] = "follow"
    work: AssignedWork
    terms: Annotated[RingTerms, Embedded(TERMS, is_vital=True)]

    @property
    def links(self) -> tuple[StageLink, ...]:
        """No link leaves a shadow."""
        return ()


InRing = Join | GoOn | Follow
"""Commands with which a stage takes part in a ring's epoch."""

Command = Stop | Load | Extend | Hold | InRing


@dataclass(frozen=True, slots=True)
class _Readable:
    """Mark of a field that is `Unreadable` where it is an object of no known kind, or one that does
    not follow its schema."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """The known kinds first, then any object."""
        unread = core_schema.no_info_plain_validator_function(
            _unreadable, serialization=core_schema.plain_serializer_function_ser_schema(_plain)
        )
        known = handler.generate_schema(Annotated[Command, Field(discriminator="kind")])
        return core_schema.union_schema([known, unread], mode="left_to_right")


def _unreadable(plain: Any) -> Unreadable:
    if isinstance(plain, Unreadable):
        return plain
    if not isinstance(plain, dict):
        raise ValueError("an object was expected")
    refuse_unprintable("".join(texts_in(plain)))
    return Unreadable(plain, f"no command of this version: {plain.get('kind')!r}")


def _plain(value: Unreadable) -> JsonObject:
    return value.plain


class Assignment(Message):
    """Assignment of a node. The latest one wins."""

    revision: Number
    """Number that counts up over all assignments of this coordinator's database."""
    session: Token = ""
    """Session of the coordinator's start that decided it; empty: of an older coordinator."""
    protocol: ProtocolNumber = PROTOCOL_IF_UNSTATED
    """Protocol that the ring speaks."""
    ring: Number = 0
    epoch: Number = 0
    stage: Number = 0
    stages: Number = 0
    command: Annotated[Command | Unreadable, _Readable()] = Unreadable({}, "no command")
    """What to do; builds before protocol 9 tell none."""
    reason: Sentence = ""
    """Why the node shall do this, for its owner."""

    @property
    def work(self) -> AssignedWork | None:
        """Layers that the node is to hold; None: none, or it is unreadable which."""
        return None if isinstance(self.command, Stop | Unreadable) else self.command.work
