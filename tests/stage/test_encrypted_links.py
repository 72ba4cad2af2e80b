"""The links of stages and of the coordinator, encrypted, steered while they are open."""

import asyncio
import queue
from dataclasses import dataclass, field, replace

import pytest

from molink.coordinator.ring.links import HeadLost, HeadSilent, RingClientLinks
from molink.errors import LinkFullError, LinkLostError, StageError
from molink.stage.links import StageLinks
from molink.stage_protocol.messages import (
    Fact,
    HoldLinks,
    JoinRing,
    MovePath,
    PathMoved,
    SetAllowed,
)
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.thread import LinkThread
from molink.wire.frames import Cancel, Forget, Sampled, TokenSample
from molink_scheduler.batch import BatchClass, Release
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.link.silence import GiveUp, Reconnect
from molink_scheduler.resume import Resume
from tests.transport.link.two_ends import keys, public

STAGE, PEER, COORDINATOR, STRANGER = 1, 2, 3, 4
EPOCH = 7
PATIENCE_S = 30.0
NOBODY = "tcp://127.0.0.1:9"
"""The port of what discards: nothing listens there."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(LinkThread, "_measure", lambda self, link: None)


@dataclass
class Stages:
    """Two stages that listen everywhere; the first one sends to the second."""

    facts: "queue.SimpleQueue[Fact]" = field(default_factory=queue.SimpleQueue)

    def __post_init__(self):
        self.stage = StageLinks.bind(
            "stage", "0.0.0.0", False, self.facts.put, keys(STAGE, public(PEER))
        )
        self.peer = StageLinks.bind(
            "peer", "0.0.0.0", False, self.facts.put, keys(PEER, public(STAGE))
        )

    def address(self, host: str) -> str:
        return f"tcp://{host}:{self.peer.ports[0]}"

    def order(self, **fields: object) -> JoinRing:
        usual = {
            "epoch": EPOCH,
            "next_address": self.address("127.0.0.1"),
            "next_key": public(PEER),
            "coordinator_address": None,
            "ring": RingTerms(64),
            "upload_bytes_per_s": None,
        }
        return JoinRing(**usual | fields)

    def join(self, **fields: object) -> None:
        assert self.stage.connect(self.order(**fields))
        self.peer._links.epoch = EPOCH

    def steer(self, command: SetAllowed | MovePath) -> PathMoved:
        self.stage.handle(command)
        fact = self.facts.get(timeout=PATIENCE_S)
        assert isinstance(fact, PathMoved)
        return fact

    def arrived(self) -> list[int]:
        self.peer.wait(PATIENCE_S)
        return [message.release.request_id for message in self.peer.receive()]


@pytest.fixture
def stages():
    stages = Stages()
    yield stages
    for one in (stages.stage, stages.peer):
        one._links.close()


def test_stages_speak_over_encrypted_links(stages):
    stages.join()
    stages.stage.send_next(Forget(Release(5)))
    assert stages.arrived() == [5]


@pytest.mark.parametrize("key", [None, "short", "x" * 41])
def test_an_encrypted_stage_opens_no_link_without_the_key_of_its_neighbour(stages, key):
    with pytest.raises(StageError, match="cannot encrypt its link"):
        stages.join(next_key=key)


def test_a_neighbour_that_is_struck_off_is_counted_and_not_heard(stages):
    stages.join()
    stages.peer.handle(SetAllowed((public(STRANGER),)))
    stages.stage.send_next(Forget(Release(5)))
    while not stages.peer.frames_refused:
        stages.peer._links.thread.wake()
    assert list(stages.peer.receive()) == []
    stages.peer.handle(SetAllowed((public(STAGE),)))
    stages.stage.send_next(Forget(Release(6)))
    heard: list[int] = []
    while len(heard) < 2:
        heard += stages.arrived()
    assert heard == [5, 6]  # The one that was not heard is repeated.


def test_a_path_moves_on_command(stages):
    early = stages.steer(MovePath("next", stages.address("127.0.0.2")))
    assert not early.moved and "no such link" in early.reason
    stages.join()
    address = stages.address("127.0.0.2")
    assert stages.steer(MovePath("next", address)) == PathMoved("next", address, True, "")
    stages.stage.send_next(Forget(Release(5)))
    assert stages.arrived() == [5]
    assert not stages.steer(MovePath("coordinator", address)).moved


def test_a_stage_asks_for_another_way_when_nothing_comes_through(stages):
    stages.join()
    link = stages.stage._next
    link.on_silence(link, Reconnect(ask_for_path=False))
    assert stages.facts.empty()
    link.on_silence(link, Reconnect(ask_for_path=True))
    fact = stages.facts.get_nowait()
    assert (fact.link, fact.address, fact.moved) == ("next", link.address, False)
    assert list(stages.stage.receive()) == []


def test_a_stage_whose_link_is_lost_says_so_and_ends(stages):
    stages.join()
    link = stages.stage._next
    link.on_silence(link, GiveUp(25.4))
    with pytest.raises(StageError, match="has lost its link 'next': for 25 s nothing"):
        list(stages.stage.receive())


def test_a_stage_that_is_told_of_a_loss_gives_no_link_up_until_its_ring_goes_on(stages):
    stages.join()
    link = stages.stage._next
    stages.stage.handle(HoldLinks())
    link.on_silence(link, GiveUp(25.4))
    assert list(stages.stage.receive()) == []
    stages.join()
    link.on_silence(link, GiveUp(25.4))
    with pytest.raises(StageError, match="has lost its link 'next'"):
        list(stages.stage.receive())


@pytest.mark.parametrize("what", ["a loss", "the next epoch"])
def test_a_neighbour_that_is_gone_is_not_waited_for_once_its_ring_goes_on_without_it(stages, what):
    stages.join()
    order = stages.order(epoch=EPOCH + 1, next_address=NOBODY, resume=Resume())
    stages.stage.handle(order)
    following = stages.order(epoch=EPOCH + 2, resume=Resume())
    stages.stage.handle(HoldLinks() if what == "a loss" else following)
    assert not stages.stage.connect(order)
    stages.stage.handle(following)
    assert stages.stage.connect(following)
    stages.peer._links.epoch = following.epoch
    stages.stage.send_next(Forget(Release(5)))
    assert stages.arrived() == [5]


def test_a_stage_whose_link_takes_nothing_more_says_which(stages, monkeypatch):
    stages.join()

    def refuse(*arguments: object) -> None:
        raise LinkFullError("9 messages wait for it to be acknowledged")

    monkeypatch.setattr(PacedLink, "send", refuse)
    with pytest.raises(LinkLostError, match="has lost its link 'next': 9 messages wait") as lost:
        stages.stage.send_next(Forget(Release(5)))
    assert lost.value.link == "next"


def test_a_stage_whose_link_thread_fails_says_so_and_ends(stages, caplog):
    stages.join()
    thread = stages.stage._links.thread
    outbound, thread.outbound = thread.outbound, [None]
    thread.wake()
    with pytest.raises(StageError, match="nothing any more: AttributeError"):
        for _ in range(100):
            stages.stage.wait(PATIENCE_S / 100)
            assert list(stages.stage.receive()) == []
    assert "the link thread has failed" in caplog.text
    thread.outbound = outbound


def test_a_plain_stage_cannot_be_told_whom_to_accept(caplog):
    links = StageLinks.bind("plain", "127.0.0.1", False, lambda fact: None)
    links.handle(SetAllowed((public(STRANGER),)))
    assert "not encrypted" in caplog.text
    links._links.close()


async def test_the_coordinator_speaks_with_head_and_tail_over_encrypted_links():
    allowed = keys(PEER, public(PEER), public(COORDINATOR))
    ring = StageLinks.bind("ring", "0.0.0.0", True, lambda fact: None, allowed)
    links = RingClientLinks.bind("127.0.0.1", EPOCH, keys(COORDINATOR, public(PEER)))
    host = "tcp://127.0.0.{}:{}"
    with pytest.raises(ValueError):
        await links.connect(host.format(1, ring.ports[1]))
    await links.connect(host.format(1, ring.ports[1]), head_key=public(PEER))
    ours = host.format(1, links.port)
    own = host.format(1, ring.ports[0])
    join = JoinRing(EPOCH, own, ours, RingTerms(64, None, (1,), None), None)
    keyed = {"next_key": public(PEER), "coordinator_key": public(COORDINATOR)}
    await asyncio.to_thread(ring.connect, replace(join, **keyed))
    for step in (Reconnect(ask_for_path=False), Reconnect(ask_for_path=True), GiveUp(25.0)):
        links.head.on_silence(links.head, step)
    assert await links.next_event() == HeadSilent()
    lost = HeadLost("For 25 s the head has acknowledged nothing over any way.")
    assert await links.next_event() == lost
    outcome = await links.move_head(host.format(2, ring.ports[1]))
    assert outcome.moved
    links.send(Cancel(3))
    await asyncio.to_thread(ring.wait, PATIENCE_S)
    assert list(ring.receive()) == [Cancel(3)]
    ring.send_coordinator(Sampled(BatchClass.DECODE, 0, (), (TokenSample(1, 2),)))
    assert (await links.next_event()).tokens[0].token_id == 2
    links.head.on_silence(links.head, GiveUp(25.0))
    await asyncio.sleep(0)
    await links.begin_epoch(EPOCH, host.format(3, ring.ports[1]), public(PEER))
    ring.send_coordinator(Sampled(BatchClass.DECODE, 0, (), (TokenSample(1, 3),)))
    assert (await links.next_event()).tokens[0].token_id == 3, "the head that was lost is replaced"
    links.close()
    ring._links.close()
