"""A head whose tail lies goes on as if nothing had been sent, and knows whose link it was."""

import queue
import threading
import time
from dataclasses import dataclass, field

import pytest

from molink.stage.cache.stage_cache import StageCache
from molink.stage.drafting.drafters import Drafters
from molink.stage.event_files import EventFiles
from molink.stage.health.head_health import with_head
from molink.stage.health.health_reports import HealthReports
from molink.stage.health.recent_work import RecentWork
from molink.stage.joining import new_core
from molink.stage.links import StageLinks
from molink.stage.loop import StageLoop
from molink.stage.packing import Packing
from molink.stage.sent_log import SentLog
from molink.stage.shadowing import Shadowing
from molink.stage.tail import EndRules
from molink.stage_protocol.messages import JoinRing
from molink.transport.link.thread import LinkThread
from molink.wire.frames import (
    Activations,
    Cancel,
    FinishReason,
    Forget,
    Message,
    Sampled,
    SetCodec,
    Submit,
    TokenSample,
)
from molink_scheduler.batch import BatchClass, Release
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.recording.event_log import EventLog, RecordedCore
from molink_scheduler.request import ModelLimits, Request, SamplingParams
from molink_scheduler.stage.core import StageCore
from molink_scheduler.token_ids import token_bytes
from tests.stage.echo_engine import HIDDEN, EchoHead, Ended, layers
from tests.stage.running_stage import no_more_layers

LIMITS = ModelLimits(sequence_tokens_max=64, vocabulary_size=100)
ARRIVES_WITHIN_S = 30.0


def join(*addresses: str | None) -> JoinRing:
    terms = RingTerms(kv_tokens_capacity=64, micro_batch_count=1)
    return JoinRing(1, addresses[0], addresses[1], terms, None)


@dataclass
class Ring:
    """A head that runs in a thread, and the links of its tail and of its coordinator."""

    head: StageLinks
    tail: StageLinks
    engine: EchoHead = field(default_factory=EchoHead)
    failures: "queue.SimpleQueue[Exception]" = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        settings = HeadSettings(RingTerms(64, micro_batch_count=1), limits=LIMITS)
        core, packing = StageCore(HeadScheduler(settings), is_tail=False), Packing(HIDDEN)
        events = EventFiles(EventLog(), "layers 0-2")
        recent = RecentWork(is_head=True)
        sent = SentLog(packing, "float32", 1e9, 128)
        shadowing = Shadowing(sent, self.head)
        reports = HealthReports(
            core,
            self.engine,
            self.head,
            packing,
            lambda health: None,
            recent,
            shadowing,
            with_head,
        )
        recorded = RecordedCore.begin(core, events.events, 0.0)
        rules = EndRules(None)
        loop = StageLoop(
            *(recorded, self.engine, layers(is_head=True), self.head, packing, rules, reports),
            *(events, sent, shadowing, lambda: None, new_core, no_more_layers, lambda fact: None),
            *(StageCache(self.engine), Drafters.of()),
        )
        self.thread = threading.Thread(target=self._run, args=(loop,), daemon=True)
        self.thread.start()

    def _run(self, loop: StageLoop) -> None:
        try:
            loop.run()
        except Exception as error:
            self.failures.put(error)

    def batch(self) -> Activations:
        """What the head sends next."""
        self.tail.wait(ARRIVES_WITHIN_S)
        (message,) = self.tail.receive()
        assert isinstance(message, Activations)
        return message

    def refused_of(self, wanted: list[int]) -> bool:
        """Whether each link comes to have refused so many: they bring things in no common order."""
        ends_at = time.monotonic() + ARRIVES_WITHIN_S
        while time.monotonic() < ends_at:
            if [link.frames_refused for link in self.head._links.inbound] == wanted:
                return True
            time.sleep(0.01)
        return False

    def answer(self, message: Activations, *tokens: TokenSample) -> Sampled:
        batch = message.batch
        return Sampled(batch.batch_class, batch.micro_batch, batch.spans, tokens, batch.stamps)


@pytest.fixture
def ring(monkeypatch, tmp_path):
    """The tail has two links: to the head's port for it, and to that of the coordinator, whom it
    also plays."""
    monkeypatch.setattr(LinkThread, "_measure", lambda self, link: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    head = StageLinks.bind("head", "127.0.0.1", True, lambda fact: None)
    tail = StageLinks.bind("tail", "127.0.0.1", False, lambda fact: None)
    head.connect(join(f"tcp://127.0.0.1:{tail.ports[0]}", None))
    tail.connect(join(*(f"tcp://127.0.0.1:{port}" for port in head.ports)))
    made = Ring(head, tail)
    yield made
    for one in (head, tail):
        one._links.close()


def request(request_id: int, max_tokens: int = 8, token_id: int = 1) -> Request:
    return Request(request_id, token_bytes((token_id, 2)), SamplingParams(max_tokens=max_tokens))


COMMANDS: list[Message] = [
    Submit(request(1)),
    Submit(request(2)),
    Cancel(1),
    SetCodec("int8"),
    Forget(Release(1)),
]
"""What is for others to say, or for nobody."""

BAD_REQUESTS = [request(1), request(7, max_tokens=10**6), request(8, token_id=100)]
"""The first has the number of one that runs: its message is refused. The others end themselves."""


def test_a_head_goes_on_whatever_its_tail_and_its_coordinator_send(ring):
    ring.tail.send_coordinator(Submit(request(1)))
    first = ring.batch()
    for message in COMMANDS:
        ring.tail.send_next(message)
    for one in BAD_REQUESTS:
        ring.tail.send_coordinator(Submit(one))
    lies = [
        ring.answer(first, TokenSample(1, 10**12)),
        ring.answer(first, TokenSample(1, -1)),
        ring.answer(first),
        ring.answer(first, TokenSample(1, 7), TokenSample(9, 7)),
        Sampled(BatchClass.DECODE, 0, first.batch.spans, (TokenSample(1, 7),)),
    ]
    for lie in lies:
        ring.tail.send_next(lie)
    ring.tail.send_next(ring.answer(first, TokenSample(1, 7)))
    second = ring.batch()
    assert second.batch.codec == "raw"
    assert ring.engine.token_ids == [(1, 2), (7,)]
    assert ring.refused_of([len(COMMANDS) + len(lies), 1])
    assert ring.failures.empty() and ring.thread.is_alive()
    ring.tail.send_next(ring.answer(second, TokenSample(1, 8, FinishReason.STOP)))
    assert isinstance(ring.failures.get(timeout=ARRIVES_WITHIN_S), Ended)
