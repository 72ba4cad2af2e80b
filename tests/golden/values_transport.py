"""What is said around the links: preambles at relays and peers, proofs, STUN, NAT-PMP."""

import asyncio
import socket
from contextlib import closing

import zmq

from molink.config.link_schedule import LinkSchedule, LinkShape, LinkStep
from molink.transport.link.inbound import InboundLink
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.thread import LinkThread
from molink.transport.peer.protocol import (
    PEER_FRAMES,
    Bulk,
    Echo,
    Give,
    Measure,
    Ready,
    ReceivedBytes,
    Reject,
    probe_key,
    probe_token,
)
from molink.transport.preamble import Hello, is_signed, sentence, sign
from molink.transport.relay.protocol import (
    COORDINATOR,
    RELAY_FRAMES,
    Answer,
    Called,
    Dial,
    Joined,
    Ping,
    Refused,
    Register,
    Registered,
    relay_token,
)
from molink.transport.stun import serve_stun
from molink.wire.chunks import ChunkHeader, encode_hello, encode_welcome
from molink_agent.network.gateway import NatPmpGateway
from molink_agent.network.nat import ask_stun
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from tests.agent.network.test_gateway import NatPmpRouter
from tests.golden.codec import Codec, hexed, itself, unhexed
from tests.golden.fixed_random import fixed_random

NODE, OTHER = "abcdefghijklmnop", "qrstuvwxyz234567"
NONCE, PROOF, TICKET = bytes(range(16)), bytes(range(32)), bytes(range(16, 32))
LONGEST = "ж" * 300
SECRET = bytes(range(32))

RELAY = Codec(
    "relay-frames",
    hexed(RELAY_FRAMES.encode),
    unhexed(lambda frame: RELAY_FRAMES.decode(frame[2:])),
)
RELAY.add(
    hello=lambda: Hello(NONCE),
    register=lambda: Register(NODE, PROOF),
    register_of_the_coordinator=lambda: Register(COORDINATOR, b""),
    dial=lambda: Dial(NODE, PROOF, OTHER, "ring"),
    dial_with_the_longest_port=lambda: Dial(NODE, PROOF, COORDINATOR, "sampled-123456789012"),
    answer=lambda: Answer(NODE, PROOF, TICKET),
    answer_without_a_ticket=lambda: Answer(NODE, PROOF, b""),
    registered=Registered,
    called=lambda: Called(NODE, "requests", TICKET),
    joined=Joined,
    ping=Ping,
    refused=lambda: Refused("Nobody is registered as x: is its agent running?"),
    refused_dial=lambda: Refused(LONGEST, TICKET),
    refused_for_no_reason=lambda: Refused(""),
)

PEER = Codec(
    "peer-frames", hexed(PEER_FRAMES.encode), unhexed(lambda frame: PEER_FRAMES.decode(frame[2:]))
)
PEER.add(
    hello=lambda: Hello(NONCE),
    measure=lambda: Measure(NODE, PROOF, NONCE),
    ready=lambda: Ready(NODE, PROOF),
    sorry=lambda: Reject("Überlastet: try again later."),
    echo_first=lambda: Echo(0),
    echo_last=lambda: Echo(2**50),
    bulk=Bulk,
    give=Give,
    received_nothing=lambda: ReceivedBytes(0),
    received=lambda: ReceivedBytes(2**50),
)

# -- proofs: what is signed, and with what --------------------------------------------------------

KEY = "key that both ends know"


def proved(frame) -> bytes:
    signed = sign(frame, KEY, NONCE)
    assert is_signed(signed, KEY, NONCE) and not is_signed(signed, KEY, PROOF)
    return signed.proof


PROOFS = Codec("preamble-proofs", hexed(proved))
PROOFS.add(
    register=lambda: Register(NODE, b""),
    dial=lambda: Dial(NODE, b"", OTHER, "ring"),
    answer=lambda: Answer(NODE, b"", TICKET),
    measure=lambda: Measure(NODE, b"", TICKET),
    ready=lambda: Ready(NODE, b""),
)

TOKENS = Codec("preamble-tokens", itself)
TOKENS.add(
    relay_token_of_a_node=lambda: relay_token(SECRET, NODE),
    relay_token_of_the_coordinator=lambda: relay_token(SECRET, COORDINATOR),
    probe_key_of_a_node=lambda: probe_key(SECRET, NODE),
    probe_key_of_the_coordinator=lambda: probe_key(SECRET, COORDINATOR),
    probe_token_of_a_pair=lambda: probe_token(probe_key(SECRET, NODE), OTHER),
    sentence_that_fits=lambda: sentence(LONGEST),
    sentence_that_is_cut=lambda: sentence(LONGEST + "!"),
)

# -- dialogues with somebody who speaks bytes -----------------------------------------------------

DIALOGUES = Codec("transport-dialogues", lambda scene: scene())

WAIT_MS = 1500


def heard(peer) -> list[str]:
    assert peer.poll(WAIT_MS), "nothing came"
    return [part.hex() for part in peer.recv_multipart()]


@DIALOGUES.value
def a_link_answers():
    """A sender as it would be in another process: a bare DEALER."""

    def scene():
        messages = []
        with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
            sender.linger = 0
            inbound = InboundLink.bind(context, "127.0.0.1")
            thread = LinkThread([inbound], lambda m: messages.append(list(map(bytes, m.frames))))
            thread.start()
            sender.connect(f"tcp://127.0.0.1:{inbound.port}")
            answers = []
            pieces = (
                (encode_hello(),),
                (ChunkHeader(0, 1, 0, 5, 2).encode(), b"head!"),
                (ChunkHeader(2, 2, 0, 5, 2).encode(), b"early"),
                (ChunkHeader(0, 1, 0, 5, 2).encode(), b"head!"),
                (encode_hello(),),
            )
            for frames in pieces:
                sender.send_multipart(frames)
                answers += heard(sender)
            thread.stop()
            inbound.socket.close()
        assert messages == [[b"he", b"ad!"]]
        return "\n".join(answers)

    return scene


@DIALOGUES.value
def a_link_sends():
    """To a receiver as it would be in another process: a bare ROUTER."""

    def scene():
        with zmq.Context() as context, context.socket(zmq.ROUTER) as receiver:
            receiver.linger = 0
            port = receiver.bind_to_random_port("tcp://127.0.0.1")
            address = f"tcp://127.0.0.1:{port}"
            with fixed_random():  # Its number.
                link = PacedLink.connect(context, "next", address, PriorityQueues(), LinkPacer())
            link.send_hello()
            sender, *said = heard_of(receiver)
            receiver.send_multipart([sender, encode_welcome(0)])
            link.connections.socket.poll(WAIT_MS)
            link.pump()
            assert link.is_open
            link.send((b"header", b"buffer"), BatchClass.DECODE)
            said += heard_of(receiver)[1:]
            link.close()
        return "\n".join(part.hex() for part in said)

    return scene


def heard_of(receiver) -> list[bytes]:
    assert receiver.poll(WAIT_MS), "nothing came"
    return receiver.recv_multipart()


@DIALOGUES.value
def a_stun_server_answers():
    """Ports differ from run to run: left out."""

    async def ask() -> bytes:
        loop = asyncio.get_running_loop()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as line:
            line.setblocking(False)
            line.bind(("127.0.0.1", 0))
            async with serve_stun("127.0.0.1", 0) as server:
                request = bytes.fromhex("000100002112a442") + bytes(range(12))
                await loop.sock_sendto(line, request, ("127.0.0.1", server.port))
                async with asyncio.timeout(WAIT_MS / 1e3):
                    return (await loop.sock_recvfrom(line, 1000))[0]

    def scene():
        answer = bytearray(asyncio.run(ask()))
        answer[26:28] = answer[38:40] = bytes(2)
        return answer.hex()

    return scene


@DIALOGUES.value
def an_agent_asks_a_stun_server():
    async def ask() -> bytes:
        loop = asyncio.get_running_loop()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as line:
            line.setblocking(False)
            line.bind(("127.0.0.1", 0))
            asking = asyncio.create_task(
                ask_stun("127.0.0.1", line.getsockname()[1], retransmissions=0)
            )
            async with asyncio.timeout(WAIT_MS / 1e3):
                request, _ = await loop.sock_recvfrom(line, 1000)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return request

    def scene():
        with fixed_random():
            return asyncio.run(ask())[:8].hex()  # What follows is drawn anew for each.

    return scene


@DIALOGUES.value
def a_router_is_asked_for_ports():
    def scene():
        requests = []

        class Router(NatPmpRouter):
            def answer(self, request):
                requests.append(request)
                return super().answer(request)

        router = Router()
        gateway = NatPmpGateway("127.0.0.1", router.port)
        gateway.discover()
        gateway.map(7000, 3600)
        gateway.map(7000, 3600)
        gateway.unmap(7000)
        router.stop()
        return "\n".join(request.hex() for request in requests)

    return scene


# -- what the link emulator is started with -------------------------------------------------------

SCHEDULES = Codec("link-schedules", lambda schedule: schedule.text, LinkSchedule.from_text)
SCHEDULES.add(
    one_step=lambda: LinkSchedule((LinkStep(0.0, LinkShape(100.0, 30.0)),)),
    several_steps=lambda: LinkSchedule(
        (LinkStep(0.0, LinkShape(0.1, 0.0)), LinkStep(1.5, LinkShape(1e4, 60_000.0)))
    ),
)

CODECS = (RELAY, PEER, PROOFS, TOKENS, DIALOGUES, SCHEDULES)
