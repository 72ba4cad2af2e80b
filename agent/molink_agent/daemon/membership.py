"""Joining: the one request by which a node becomes a member, and what is kept of the answer.

The PC's first node has joined with the invite before the agent runs. A further node asks by itself,
and the PC's key vouches for it: so a card that is put in later is lent without a new invite.

The request is sealed to the coordinator's key, which the invite carries, and so is the answer, in
which stands what its certificate is accepted by from then on. So a join needs no certificate to be
checked, and a coordinator that has a new one is asked again and tells it. What comes unsealed, such
as a refusal, a member believes only behind the certificate that it knows.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Annotated
from urllib.parse import urlsplit

import aiohttp
from pydantic import Field, ValidationError

from molink.control.addresses import BrokerAddress, ServerTrust
from molink.control.backoff import Backoff
from molink.control.identity import KeyPair, key_from_z85
from molink.control.messages.base import Message
from molink.control.messages.invites import Invite
from molink.control.messages.joining import (
    JoinAnswer,
    JoinRequest,
    check_answer,
    request_to_join,
    seal_vouched,
)
from molink.control.messages.sealing import SEALED_BYTES_MAX, open_answer, seal
from molink.control.private_file import read_private, write_private
from molink.errors import ControlError, JoinRefusedError, MolinkError, NotNowError, UserError
from molink.version import version
from molink_agent.data_files import MEMBERSHIP_FILE, THANKS_FILE
from molink_agent.probe.clock import ClockReading
from molink_agent.weights import CoordinatorSource

DEVICES_DIR = "devices"
"""Folder in the data directory with a directory for each further device, by its number."""

EARLIER_DEVICES_DIR = "seats"
"""Earlier name of that folder, which an agent that finds it renames."""

JOIN_PATH = "/agents/join"
JOIN_TIMEOUT_S = 30.0
"""A coordinator behind a slow line answers in a second."""

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 60.0
"""Backoff between two attempts to reach a coordinator that was there before."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """The coordinator that a join asks."""

    url: str
    key: bytes
    tls: ServerTrust | None
    """Trust by which its certificate is accepted; None: it is told only in the answer."""


class Membership(Message):
    """Membership of one node, as it is kept for the next start."""

    url: Annotated[str, Field(pattern=r"^https://")]
    """URL of the coordinator's port for agents."""
    name: str
    answer: JoinAnswer
    clock_offset_s: float

    @property
    def broker(self) -> BrokerAddress:
        """Address of the broker to connect to."""
        answer = self.answer
        host = answer.broker_host or urlsplit(self.url).hostname or ""
        return BrokerAddress(host, answer.broker_port, answer.broker_tls)

    @property
    def weights(self) -> CoordinatorSource:
        """Source of this node's weights: the coordinator that it has joined."""
        answer = self.answer
        return CoordinatorSource(f"{self.url}/weights", answer.weights_token, answer.agents_tls)

    @property
    def coordinator(self) -> _Coordinator:
        """The coordinator that this node asks again."""
        key = key_from_z85(self.answer.coordinator_public_key)
        return _Coordinator(self.url, key, self.answer.agents_tls)

    @property
    def hosts(self) -> tuple[str, str]:
        """Hosts to which the owner has sent this PC: the coordinator's, and its broker's."""
        return urlsplit(self.url).hostname or "", self.broker.host

    def belongs_to(self, pc: "Membership", name: str) -> bool:
        """Whether this is of a node that is now called `name`, in the cluster of its PC."""
        keys = (self.answer.coordinator_public_key, pc.answer.coordinator_public_key)
        return self.url == pc.url and self.name == name and keys[0] == keys[1]


@dataclass(slots=True)
class MemberAdmission:
    """Admission of one node to the cluster, and again when the broker has refused it."""

    pair: KeyPair
    """Key pair of the node."""
    name: str
    directory: Path
    """Directory of the node's membership."""
    first: "MemberAdmission | None" = None
    """Admission of the PC's first node, which vouches for this one; None: this is the first."""
    kept: Membership | None = None
    """None: not asked for yet."""

    @property
    def membership(self) -> Membership:
        """The node's own; it must have entered."""
        assert self.kept is not None, "only a member has a membership"
        return self.kept

    @property
    def of_pc(self) -> Membership:
        """The PC's own membership, as it is now."""
        return self.membership if self.first is None else self.first.membership

    async def enter(self) -> Membership:
        """The membership that was kept, or a new membership, however long that takes. Raises
        JoinRefusedError.
        """
        if self.kept is None:
            try:
                kept = await asyncio.to_thread(load_membership, self.directory)
            except UserError as error:  # Of an older MoLink, perhaps: a device can ask by itself.
                log.info("%s It is asked for anew.", error)
                kept = None
            self.kept = kept if kept and kept.belongs_to(self.of_pc, self.name) else None
        if self.kept is None:
            first = self.first
            assert first is not None, "a PC's first node has joined before"
            self.kept = await _until_answered(
                lambda: join_device(
                    first.membership, first.pair, self.pair, self.name, self.directory
                )
            )
        return self.kept

    async def again(self) -> Membership:
        """A new membership: the broker has perhaps another password now. Raises JoinRefusedError
        when this node was removed."""
        before = self.membership
        self.kept = await _until_answered(lambda: rejoin(before, self.pair, self.directory))
        return self.kept


async def _until_answered(ask: Callable[[], Awaitable[Membership]]) -> Membership:
    backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, SystemRandom())
    while True:
        try:
            return await ask()
        except JoinRefusedError:
            raise
        except MolinkError as error:
            log.info("%s", error)
        await asyncio.sleep(backoff.next_s())


async def join_cluster(invite: Invite, pair: KeyPair, name: str, data_dir: Path) -> Membership:
    """Join with an invite and keep what was answered, once the coordinator can take a PC in.

    Raises JoinRefusedError with the coordinator's reason, UserError when it cannot be reached.
    """
    backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, SystemRandom())
    while True:
        try:
            return await _join_cluster(invite, pair, name, data_dir)
        except NotNowError as error:
            log.warning("%s", error)
        await asyncio.sleep(backoff.next_s())


async def _join_cluster(invite: Invite, pair: KeyPair, name: str, data_dir: Path) -> Membership:
    request = request_to_join(invite, name, version(), time.time())
    coordinator = _Coordinator(invite.url, invite.coordinator_key, None)
    sealed = seal(request, pair, coordinator.key)
    return await _ask(coordinator, request, sealed, pair, data_dir)


async def join_device(
    pc: Membership, pc_pair: KeyPair, pair: KeyPair, name: str, directory: Path
) -> Membership:
    """Join with a further device of a PC that is in, and keep what was answered in `directory`.
    Raises as above."""
    request = request_to_join(None, name, version(), time.time())
    sealed = seal_vouched(request, pair, pc_pair, pc.coordinator.key)
    return await _ask(pc.coordinator, request, sealed, pair, directory)


async def rejoin(membership: Membership, pair: KeyPair, data_dir: Path) -> Membership:
    """Ask again without an invite: the broker may have another port, password or certificate by
    now. Raises as above."""
    request = request_to_join(None, membership.name, version(), time.time())
    sealed = seal(request, pair, membership.coordinator.key)
    return await _ask(membership.coordinator, request, sealed, pair, data_dir)


def load_membership(data_dir: Path) -> Membership | None:
    """Membership that was kept; None before the first join. Raises UserError when it is damaged."""
    text = read_private(data_dir / MEMBERSHIP_FILE)
    if text is None:
        return None
    try:
        return Membership.model_validate_json(text)
    except ValidationError:
        raise UserError(
            f"{data_dir / MEMBERSHIP_FILE} is damaged, or of an older MoLink: join again with an "
            "invite."
        ) from None


def device_dir(data_dir: Path, number: int) -> Path:
    """Directory with the membership of a further device. What an agent before this one kept is
    moved to where it is now; a device whose directory cannot be moved joins again."""
    kept = data_dir / DEVICES_DIR
    if not kept.exists():
        with contextlib.suppress(OSError):
            (data_dir / EARLIER_DEVICES_DIR).rename(kept)
    return kept / str(number)


def forget_membership(data_dir: Path) -> None:
    """Forget the membership of all devices after leaving: from now on an invite is needed again.
    The key stays, and what this PC has given; not what was told of others."""
    for file in (MEMBERSHIP_FILE, THANKS_FILE):
        (data_dir / file).unlink(missing_ok=True)
    for name in (DEVICES_DIR, EARLIER_DEVICES_DIR):
        shutil.rmtree(data_dir / name, ignore_errors=True)


async def _ask(
    coordinator: _Coordinator, request: JoinRequest, sealed: bytes, pair: KeyPair, data_dir: Path
) -> Membership:
    sent_at, began = time.time(), time.monotonic()
    body = await _answer(coordinator, sealed)
    round_trip_s = time.monotonic() - began
    answer = open_answer(body, pair, JoinAnswer, coordinator.key)
    clock = ClockReading(sent_at, round_trip_s, answer.time_unix_s)
    check_answer(request, answer, pair.node_id)
    membership = Membership(
        url=coordinator.url, name=request.name, answer=answer, clock_offset_s=clock.offset_s
    )
    await asyncio.to_thread(
        write_private, data_dir / MEMBERSHIP_FILE, membership.model_dump_json(indent=1) + "\n"
    )
    return membership


async def _answer(coordinator: _Coordinator, sealed: bytes) -> bytes:
    """The sealed answer of whoever is there: also behind a certificate that is not known, since
    only the coordinator can seal one, but what is not sealed is not believed then."""
    try:
        status, answer = await _post(coordinator.url, sealed, coordinator.tls)
    except aiohttp.ClientConnectorCertificateError:
        status, answer = await _post(coordinator.url, sealed, None)
        if status != 200:
            raise ControlError(
                f"What answers at {coordinator.url} shows another certificate than the coordinator "
                "did, and does not prove to be it: ask whoever runs the cluster, and for a new "
                "invite if they have set it up anew."
            ) from None
    if status == 200:
        return answer
    raise _refusal(status, answer)


async def _post(url: str, body: bytes, trust: ServerTrust | None) -> tuple[int, bytes]:
    """Status and body of what is answered. Raises UserError when nothing is, and
    aiohttp.ClientConnectorCertificateError when the certificate is refused."""
    connector = aiohttp.TCPConnector(ssl=False if trust is None else trust.ssl_context())
    timeout = aiohttp.ClientTimeout(total=JOIN_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.post(url + JOIN_PATH, data=body, allow_redirects=False) as response,
        ):
            return response.status, await _whole(response.content)
    except aiohttp.ClientConnectorCertificateError:
        raise
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UserError(
            f"The coordinator at {url} cannot be reached "
            f"({_why(error)}): is it running, and is this PC online or in its network?"
        ) from None


def _why(error: Exception) -> str:
    """The reason in words; aiohttp's own are made for programs."""
    match error:
        case TimeoutError():
            return f"no answer within {JOIN_TIMEOUT_S:.0f} s"
        case aiohttp.ClientConnectorDNSError():
            return "its name is not known"
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))) if number > 0:
            return os.strerror(number)
        case _:
            return str(error) or type(error).__name__


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """All of it, unless it is longer than an answer can be."""
    parts = b""
    async for part in content.iter_any():
        parts += part
        if len(parts) > SEALED_BYTES_MAX:
            break
    return parts


def _refusal(status: int, answer: bytes) -> ControlError:
    try:
        message = str(json.loads(answer)["error"]["message"])[:500]
    except (ValueError, TypeError, KeyError, RecursionError):
        message = ""
    message = message or f"The coordinator answered {status}."
    kinds = {403: JoinRefusedError, 503: NotNowError}
    return kinds.get(status, ControlError)(message)
