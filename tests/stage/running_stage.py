"""A stage that runs its loop in a thread, and the links of the stage before it."""

import queue
import threading
from dataclasses import dataclass, field

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
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.messages import JoinRing, LoopCommand, StageReady
from molink.wire.frames import Forget, Sampled
from molink_scheduler.batch import Release
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.recording.event_log import EventLog, RecordedCore
from molink_scheduler.request import ModelLimits
from molink_scheduler.resume import Resume
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.queue import StageQueue
from tests.stage.echo_engine import HIDDEN, KV_BLOCKS, LAST_REQUEST, EchoTail, Ended, layers

ANSWERS_WITHIN_S = 30.0


def join(next_port: int, epoch: int = 1, resume: Resume | None = None) -> JoinRing:
    address, terms = f"tcp://127.0.0.1:{next_port}", RingTerms(64, None, (1,), None)
    return JoinRing(epoch, address, None, terms, None, resume=resume)


def no_more_layers(*given):
    raise AssertionError("nothing is loaded beside what there is")


@dataclass
class Neighbours:
    """A stage that runs in a thread, and the links of the one before it."""

    stage: StageLinks
    peer: StageLinks
    engine: EchoTail = field(default_factory=EchoTail)
    reports: queue.SimpleQueue[StageHealth] = field(default_factory=queue.SimpleQueue)
    answers: list[Sampled] = field(default_factory=list)
    joins: list[LoopCommand] = field(default_factory=list)
    facts: queue.SimpleQueue[StageReady] = field(default_factory=queue.SimpleQueue)
    is_tail: bool = True

    def __post_init__(self):
        packing = Packing(HIDDEN)
        book = StageBook(BlockTable(KvLedger(KV_BLOCKS)), ModelLimits(1024, 100))
        core = StageCore(StageQueue.for_steps_of(128, book), is_tail=self.is_tail)
        recent = RecentWork(is_head=False)
        sent = SentLog(packing, "float32", 1e9, 128)
        shadowing = Shadowing(sent, self.stage)
        watched = self.engine, self.stage, packing, self.reports.put
        reports = HealthReports(core, *watched, recent, shadowing, with_head)
        events = EventFiles(EventLog(), "layers 0-4")
        recorded = RecordedCore.begin(core, events.events, 0.0)
        rules = EndRules(None)
        loop = StageLoop(
            *(
                recorded,
                self.engine,
                layers(is_tail=self.is_tail),
                self.stage,
                packing,
                rules,
                reports,
            ),
            *(events, sent, shadowing, self.next_command, new_core, no_more_layers, self.facts.put),
            *(StageCache(self.engine), Drafters.of()),
        )
        self.thread = threading.Thread(target=self._run, args=(loop,), daemon=True)
        self.thread.start()

    def _run(self, loop):
        try:
            loop.run()
        except Ended:
            return

    def next_command(self) -> LoopCommand | None:
        return self.joins.pop() if self.joins else None

    def answer(self) -> Sampled:
        """The next one; several may come at once."""
        if not self.answers:
            self.peer.wait(ANSWERS_WITHIN_S)
            self.answers += self.peer.receive()
        return self.answers.pop(0)

    def end(self):
        self.peer.send_next(Forget(Release(LAST_REQUEST)))
        self.thread.join(ANSWERS_WITHIN_S)
        assert not self.thread.is_alive()
