"""A node measures its way to neighbours: direct where it works, else through the relay."""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from molink.control.messages.payloads import PathReport, PeerAddress, ProbeOrder
from molink.transport.peer.protocol import PEER_PORT_NAME, probe_key, probe_token
from molink.transport.peer.service import PeerService
from molink.transport.relay.client import Pauses, RelayReceiver
from molink.transport.relay.server import RelayServer
from molink_agent.network.prober import Prober
from tests.transport.relay.nodes import ANNA, BERT, CARL, SECRET, caller_of, free_address

KEY_TEXT = "k" * 40


@pytest.fixture
async def relay():
    async with RelayServer(SECRET, "127.0.0.1") as relay:
        yield relay


@asynccontextmanager
async def serving(node_id, *, allow_download=False):
    service = PeerService(probe_key(SECRET, node_id), "127.0.0.1", allow_download=allow_download)
    await service.start()
    yield service
    await service.stop()


@asynccontextmanager
async def registered(relay, node_id, address):
    receiver = RelayReceiver(caller_of(node_id, relay.address), Pauses(0.01, 0.05))
    receiver.open(PEER_PORT_NAME, address)
    running = asyncio.create_task(receiver.run())
    await receiver.registered.wait()
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def peer(node_id, *addresses, key_of=None):
    token = probe_token(probe_key(SECRET, key_of or node_id), ANNA)
    return PeerAddress(node_id=node_id, public_key=KEY_TEXT, addresses=addresses, token=token)


def prober(relay=None, **settings):
    caller = None if relay is None else caller_of(ANNA, relay.address)
    return Prober(ANNA, caller, bulk_s=0.2, **settings)


async def test_direct_is_tried_first(relay):
    async with serving(BERT) as bert, registered(relay, BERT, bert.address):
        found = await prober(relay).peer(peer(BERT, free_address(), bert.address))
        assert (found.path, found.address) == ("direct", bert.address)
    assert found.rtt_ms > 0 and found.rate_mbps > 10
    assert relay.statistics.dials == 0


async def test_the_relay_is_the_way_when_no_address_answers(relay):
    async with serving(BERT) as bert, registered(relay, BERT, bert.address):
        found = await prober(relay).peer(peer(BERT, free_address()))
    assert (found.path, found.address) == ("relay", relay.address)
    assert found.rtt_ms > 0 and found.rate_mbps > 10
    assert relay.statistics.dials == 1


async def test_another_nodes_service_at_a_private_address_is_passed_over(relay):
    async with (
        serving(BERT) as bert,
        serving(CARL) as stranger,
        registered(relay, BERT, bert.address),
    ):
        found = await prober(relay).peer(peer(BERT, stranger.address))
        assert found.path == "relay"
        assert not stranger.rates


async def test_no_way_at_all_is_said(relay):
    assert (await prober().peer(peer(BERT, free_address()))).path == "none"
    assert (await prober(relay).peer(peer(BERT))).path == "none"
    async with serving(BERT) as bert, registered(relay, BERT, bert.address):
        assert (await prober(relay).peer(peer(BERT, key_of=CARL))).path == "none"


async def test_a_round_measures_everybody(relay):
    async with serving(BERT) as bert, serving(CARL) as carl, registered(relay, CARL, carl.address):
        order = ProbeOrder(round=7, model="demo", peers=(peer(BERT, bert.address), peer(CARL)))
        report, way = await prober(relay).round(order)
    assert way is None, "it was not asked for"
    assert report.round == 7
    assert [(one.to, one.path) for one in report.paths] == [(BERT, "direct"), (CARL, "relay")]
    assert PathReport.model_validate_json(report.model_dump_json()) == report


async def test_the_owners_upload_cap_holds_for_measurements(relay):
    async with serving(BERT) as bert:
        found = await prober(upload_cap_mbps=8.0).peer(peer(BERT, bert.address))
    assert 0 < found.rate_mbps < 16


async def test_the_coordinator_is_measured_through_its_own_relay(relay):
    token = probe_token(probe_key(SECRET, "coordinator"), ANNA)
    assert await prober(relay).coordinator(token) is None
    async with serving("coordinator", allow_download=True) as service:
        relay.forward("coordinator", PEER_PORT_NAME, service.address)
        way = await prober(relay).coordinator(token)
    assert way.rtt_s > 0 and way.upload_bytes_per_s > 1e6
    assert way.download_bytes_per_s > 1e6
    assert await prober().coordinator(token) is None


def test_the_agents_paths_never_load_torch():
    code = (
        "import sys\n"
        "import molink_agent.network.prober, molink_agent.network.port_mapping\n"
        "import molink.transport.relay.client, molink.transport.paths.keeper\n"
        "import molink.transport.paths.direct\n"
        "heavy = {'torch', 'transformers', 'zmq', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
