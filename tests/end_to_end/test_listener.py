"""A listener on the way between an agent's own classes and a coordinator, as `molink up` serves it.

The weakness it stands for: broker passwords and weights tokens that travelled in clear, and a token
that let whoever had listened join without an invite.
"""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from molink.agents_api.app import create_agents_app
from molink.agents_api.offered_files import OfferedFiles
from molink.api.server import start_api
from molink.checkpoint.checkpoint import open_checkpoint
from molink.control.addresses import TlsFiles
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.certificate import own_certificate
from molink.control.client import ControlClient
from molink.control.identity import KeyPair, key_from_z85
from molink.control.messages.joining import request_to_join, seal_vouched
from molink.control.messages.payloads import Services
from molink.control.messages.sealing import seal
from molink.control.messages.topics import SERVICES
from molink.control.registry.registry import Registry
from molink.coordinator.services import JoinService
from molink.errors import ControlError, JoinRefusedError, WeightsError
from molink.report.nodes import ContributionReport
from molink_agent.cli.report import given_until_now
from molink_agent.daemon import membership as membership_module
from molink_agent.daemon.membership import Membership, join_cluster, join_device, rejoin
from molink_agent.weights.block_client import open_client
from tests.agent.weights.weights_server import write_model

RELAY_TOKEN = "5ec7e7" * 8
SERVICES_TOLD = Services(
    relay="127.0.0.1:1", relay_token=RELAY_TOKEN, probe_key="9" * 64, stun_port=1
)

GIVEN = ContributionReport(uptime_s=720, token_layers=12345, bytes_sent=1_250_000)


@dataclass
class Listener:
    """TCP proxy that keeps all that passes."""

    target: int
    heard: bytearray
    port: int = 0

    async def pump(self, reader, writer):
        try:
            while data := await reader.read(2**16):
                self.heard.extend(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def take(self, reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self.pump(reader, back), self.pump(there, writer))


@asynccontextmanager
async def listening(target: int, heard: bytearray):
    listener = Listener(target, heard)
    async with await asyncio.start_server(listener.take, "127.0.0.1", 0) as server:
        listener.port = server.sockets[0].getsockname()[1]
        yield listener


@dataclass
class Coordinator:
    """What of one an agent reaches before it serves, at the ends of a listener's proxies."""

    registry: Registry
    broker: EmbeddedBroker
    agents_port: int
    heard: bytearray
    url: str = ""

    def invite(self):
        return self.registry.make_invite(3600.0, 5, "", time.time(), self.url)


@asynccontextmanager
async def coordinator(folder: Path, tls: TlsFiles | None = None, registry: Registry | None = None):
    tls = tls or own_certificate(folder)
    async with AsyncExitStack() as stack:
        registry = registry or Registry.open(folder)
        broker = EmbeddedBroker("127.0.0.1", 0, tls)
        await broker.start()
        stack.push_async_callback(broker.stop)
        offered = OfferedFiles(open_checkpoint(str(write_model(folder / "model"))), folder / "sums")
        await offered.start()
        await offered.ready()
        stack.push_async_callback(offered.close)
        joining = JoinService(registry, broker, "127.0.0.1", tls.trust)
        app = create_agents_app(joining, offered, registry.pc_of_token, lambda pc: GIVEN)
        runner = await start_api(app, "127.0.0.1", 0, tls.server_context())
        stack.push_async_callback(runner.cleanup)
        made = Coordinator(registry, broker, runner.addresses[0][1], bytearray())
        joins = await stack.enter_async_context(listening(made.agents_port, made.heard))
        made.url = f"https://127.0.0.1:{joins.port}"
        mqtt = await stack.enter_async_context(listening(broker.address.port, made.heard))
        broker._port = mqtt.port  # As agents are told it.
        yield made


async def take_part(membership: Membership, told: str) -> None:
    """Fetch weights, and read a message of the broker."""
    answer = membership.answer
    async with open_client(membership.weights) as client:
        assert (await client.manifest()).files
    async with ControlClient.open(
        membership.broker, answer.username, answer.password, subscriptions=[told]
    ) as client:
        async for received in client.messages():
            assert received.message == SERVICES_TOLD
            return


async def test_a_listener_reads_nothing_with_which_it_could_come_in(tmp_path):
    pair = KeyPair.generate()
    async with coordinator(tmp_path) as made:
        invite = made.invite()
        pc = await join_cluster(invite, pair, "attic", tmp_path / "agent")
        await join_device(pc, pair, pair.for_device(1), "attic (2)", tmp_path / "agent" / "2")
        own = made.broker.coordinator
        async with ControlClient.open(made.broker.address, own.username, own.password) as hub:
            await hub.publish(SERVICES, pc.answer.node_id, SERVICES_TOLD)
            await take_part(pc, SERVICES.of(pc.answer.node_id))
        ledger = await asyncio.to_thread(given_until_now, tmp_path / "agent", connected=True)
        assert ledger.totals is not None
        assert ledger.totals.model_dump() == asdict(GIVEN), "as `molink agent status` shows it"
        heard = bytes(made.heard)
        assert len(heard) > 5_000
        secrets = (
            *(pc.answer.password, pc.answer.weights_token, own.password, RELAY_TOKEN),
            *(invite.secret.value.hex(), invite.text, pair.public_z85, pc.answer.node_id),
        )
        assert [one for one in secrets if one.encode() in heard] == []


async def test_no_secret_that_a_member_has_lets_anybody_else_join(tmp_path):
    """Neither its token nor its password: a further device needs the PC's key itself."""
    pair, mallory = KeyPair.generate(), KeyPair.generate()
    async with coordinator(tmp_path) as made:
        pc = await join_cluster(made.invite(), pair, "attic", tmp_path / "agent")
        key = key_from_z85(pc.answer.coordinator_public_key)
        request = request_to_join(None, "mallory", "1", 0.0)
        old = request.model_copy(update={"pc_token": pc.answer.weights_token})
        for sealed in (
            seal(request, mallory, key),
            seal(old, mallory, key),
            seal_vouched(request, mallory.for_device(1), mallory, key),
        ):
            with pytest.raises(JoinRefusedError, match=r"has not joined|does not know this PC"):
                await membership_module._answer(pc.coordinator, sealed)
        assert [node.name for node in made.registry.list_nodes()] == ["attic"]


async def test_a_coordinator_with_another_certificate_gets_no_secret(tmp_path):
    """It stands where the real one stood; the agent gives it neither password nor token."""
    pair = KeyPair.generate()
    async with coordinator(tmp_path / "real") as made:
        pc = await join_cluster(made.invite(), pair, "attic", tmp_path / "agent")
    async with coordinator(tmp_path / "impostor") as impostor:
        answer = pc.answer.model_copy(update={"broker_port": impostor.broker.address.port})
        there = pc.model_copy(update={"url": impostor.url, "answer": answer})
        with pytest.raises(WeightsError, match="shows another certificate than the coordinator's"):
            async with open_client(there.weights) as client:
                await client.manifest()
        with pytest.raises(ControlError, match="shows another certificate than the coordinator"):
            async with ControlClient.open(there.broker, answer.username, answer.password):
                pass
        with pytest.raises(ControlError, match="does not prove to be it: ask whoever runs"):
            await rejoin(there, pair, tmp_path / "agent")
        assert pc.answer.password.encode() not in impostor.heard


async def test_a_coordinator_that_changed_its_certificate_tells_it_to_its_members(tmp_path):
    """Only it can seal the answer; so nobody need join anew, whatever was lost."""
    pair, registry = KeyPair.generate(), Registry.open(tmp_path)
    async with coordinator(tmp_path, registry=registry) as made:
        before = await join_cluster(made.invite(), pair, "attic", tmp_path / "agent")
    other = own_certificate(tmp_path / "other")
    async with coordinator(tmp_path, other, registry) as made:
        moved = before.model_copy(update={"url": made.url})
        after = await rejoin(moved, pair, tmp_path / "agent")
        assert after.answer.agents_tls == other.trust != before.answer.agents_tls
        async with open_client(after.weights) as client:
            assert (await client.manifest()).files
        refused = replace(after.weights, tls=before.answer.agents_tls)
        with pytest.raises(WeightsError):
            async with open_client(refused) as client:
                await client.manifest()


async def test_the_port_for_agents_serves_nothing_else(tmp_path):
    async with coordinator(tmp_path) as made, aiohttp.ClientSession() as session:
        for path in ("/generate", "/v1/models", "/health", "/cluster", "/plan", "/"):
            async with session.get(f"{made.url}{path}", ssl=False) as response:
                assert response.status == 404
                assert "This port is for agents" in (await response.json())["error"]["message"]
