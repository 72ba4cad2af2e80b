"""The one request by which a node joins, and its answer; `sealing` closes both.

The request proves that its sender has the key by being sealed with it, so it needs no signature.
The answer repeats the request's challenge: an old answer that somebody kept is told apart without
trusting clocks, which on home PCs are off by hours.
"""

import os
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from molink.control.addresses import ServerTrust
from molink.control.identity import KeyPair
from molink.control.messages.base import (
    Key,
    Message,
    ModelSize,
    Name,
    NodeId,
    ProtocolNumber,
    ShortText,
)
from molink.control.messages.invites import Invite
from molink.control.messages.sealing import SEALED_BYTES_MAX, open_sealed, seal
from molink.control.versions import PROTOCOL_IF_UNSTATED, Protocols, own_protocols
from molink.errors import ControlError, UserError

CHALLENGE_BYTES = 16

Challenge = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""Drawn by the agent for each request."""

UnixTime = Annotated[float, Field(ge=0, le=1e11)]
BrokerPassword = Annotated[str, Field(min_length=1, max_length=100, repr=False)]
"""Password at the broker; for an external broker, what its operator chose."""

Secret = Annotated[str, Field(min_length=16, max_length=100, repr=False)]


class Confidential(Message):
    """A message whose values no error may show."""

    model_config = ConfigDict(hide_input_in_errors=True)


class JoinRequest(Confidential):
    """Request to join; its sender is the key that it was sealed with."""

    challenge: Challenge
    invite_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    """None: a node that has joined before asks again."""
    invite_secret: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(
        default=None, repr=False
    )
    """Hexadecimal."""
    name: Name
    """For people: the PC's host name unless its owner chose another."""
    version: ShortText
    protocol: ProtocolNumber = PROTOCOL_IF_UNSTATED
    time_unix_s: UnixTime
    """The agent's clock."""


class Voucher(Confidential):
    """A PC's word for a further device of its own, sealed with the PC's key."""

    request: Annotated[str, Field(max_length=SEALED_BYTES_MAX)]
    """The device's `JoinRequest`, sealed with the device's key."""


class JoinAnswer(Confidential):
    """Welcome: all that the agent needs from now on. It is kept beside the key."""

    challenge: Challenge
    node_id: NodeId
    broker_host: Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9.\-_:\[\]%]*$")] = ""
    """Empty: the host of the coordinator's URL."""
    broker_port: Annotated[int, Field(ge=1, le=65535)]
    broker_tls: ServerTrust | None
    """None: plain MQTT, which only somebody else's broker speaks."""
    agents_tls: ServerTrust
    """Trust in the coordinator's port for agents, where weights are fetched."""
    username: Annotated[Name, Field(max_length=60)]
    password: BrokerPassword
    weights_token: Secret
    """Shown to the coordinator when weights are fetched."""
    time_unix_s: UnixTime
    """The coordinator's clock."""
    coordinator_public_key: Key
    model: ModelSize | None = None
    """What is served when this node joins; None: of an older coordinator."""
    protocol: ProtocolNumber = PROTOCOL_IF_UNSTATED
    protocol_min: ProtocolNumber = PROTOCOL_IF_UNSTATED
    """The coordinator speaks these and all numbers between them."""

    @property
    def protocols(self) -> Protocols:
        """The numbers that the coordinator speaks."""
        return Protocols(self.protocol_min, self.protocol)


@dataclass(frozen=True, slots=True)
class OpenedRequest:
    """Request to join, with whose keys it was sealed."""

    request: JoinRequest
    key: bytes
    """The node's public key."""
    pc_key: bytes | None = None
    """Public key of the PC that vouches for the node; None: nobody does."""


def seal_vouched(
    request: JoinRequest, device: KeyPair, pc: KeyPair, coordinator_public: bytes
) -> bytes:
    """The request of a PC's further device, sealed with the device's key and then with the PC's:
    both prove that they are there, and neither shows anything that another could use."""
    inner = seal(request, device, coordinator_public).decode()
    return seal(Voucher(request=inner), pc, coordinator_public)


def open_request(data: bytes, own: KeyPair) -> OpenedRequest:
    """What was sealed by `seal` or by `seal_vouched`. Raises ControlError as `open_sealed`."""
    message, sender = open_sealed(data, own, JoinRequest, Voucher)
    if not isinstance(message, Voucher):
        assert isinstance(message, JoinRequest), "one of the two kinds was opened"
        return OpenedRequest(message, sender)
    request, key = open_sealed(message.request.encode(), own, JoinRequest)
    return OpenedRequest(request, key, sender)


def request_to_join(invite: Invite | None, name: str, version: str, now: float) -> JoinRequest:
    """A new request with a challenge of its own; without an invite for a node that has joined, or
    whose PC has.

    Raises UserError when a node cannot be called `name`.
    """
    try:
        return JoinRequest(
            challenge=os.urandom(CHALLENGE_BYTES).hex(),
            invite_id=None if invite is None else invite.invite_id,
            invite_secret=None if invite is None else invite.secret.value.hex(),
            name=name,
            version=version,
            protocol=own_protocols().newest,
            time_unix_s=now,
        )
    except ValidationError:
        raise UserError(f"A node cannot be called {name!r:.80}: give 1 to 60 characters.") from None


def check_answer(request: JoinRequest, answer: JoinAnswer, own_node_id: str) -> None:
    """Raises ControlError when the answer is to another request or another node."""
    if answer.challenge != request.challenge or answer.node_id != own_node_id:
        raise ControlError("The coordinator answered another request: try again.")
