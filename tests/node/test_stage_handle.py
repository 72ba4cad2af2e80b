"""A stage's process: what it prints, and one that is started while its weights come."""

import asyncio
from dataclasses import dataclass, field

import pytest

from molink.errors import StageError
from molink.node import stage_handle
from molink.node.stage_handle import ChildProcess, StageHandle, WarmStage
from molink.stage_protocol.messages import (
    JoinRing,
    LoadStage,
    SetUploadCap,
    StageReady,
    StageWork,
    decode_line,
    encode_line,
)
from molink_scheduler.head.settings import RingTerms


@dataclass
class Process:
    returncode: int | None = None


@dataclass
class Child:
    threads: int
    process: Process = field(default_factory=Process)
    lines: list = field(default_factory=list)
    stopped: bool = False

    def write_line(self, line):
        self.lines.append(decode_line(line))

    async def stop(self):
        self.stopped = True


@pytest.fixture
def started(monkeypatch):
    """Every process that was started."""
    children = []

    async def start(threads, arguments=()):
        children.append(Child(threads))
        return children[-1]

    monkeypatch.setattr(stage_handle, "start_process", start)
    return children


def load(threads):
    return LoadStage("m", StageWork((0, 2), "cpu", "auto", threads=threads), "127.0.0.1")


async def test_the_process_that_waits_is_told_what_to_load(started):
    warm = WarmStage()
    await warm.begin(2)
    handle = await warm.start("it", load(2))
    assert [child.threads for child in started] == [2]
    assert started[0].lines == [load(2)] and handle.child is started[0]
    await warm.drop()
    assert not started[0].stopped, "it is a stage's now"
    await warm.start("another", load(2))
    assert len(started) == 2


@pytest.mark.parametrize("dead", [True, False])
async def test_one_that_died_or_does_not_fit_is_replaced(started, dead):
    warm = WarmStage()
    await warm.begin(1 if dead else 2)
    started[0].process.returncode = 1 if dead else None
    handle = await warm.start("it", load(1))
    assert started[0].stopped and not started[0].lines
    assert handle.child is started[1] and started[1].lines == [load(1)]


async def test_without_one_a_stage_starts_as_usual(started):
    assert (await WarmStage().start("it", load(1))).child is started[0]


async def test_one_that_fits_waits_on_and_any_other_is_ended(started):
    warm = WarmStage()
    await warm.begin(1)
    await warm.begin(1)
    assert [child.stopped for child in started] == [False]
    await warm.begin(2)
    assert [child.stopped for child in started] == [True, False]
    started[1].process.returncode = 1
    await warm.begin(2)
    await warm.drop()
    assert len(started) == 3 and started[2].stopped


async def test_nodes_that_share_one_start_one(started):
    warm = WarmStage()
    await asyncio.gather(*(warm.begin(1) for _ in range(4)))
    assert len(started) == 1


@dataclass
class Printing:
    """As much of a process as prints lines."""

    stdout: asyncio.StreamReader
    pid: int = 4711
    stdin: "Heard | None" = None


@dataclass
class Heard:
    """As much of a process's standard input as is written to."""

    lines: list = field(default_factory=list)
    write = property(lambda self: self.lines.append)


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        (b"x" * 5000 + b"\n", r"The process 4711 printed a line of over 1048576 bytes\."),
        (b"\xff\xfe\xfa\n", r"stage 0 reported what cannot be read: not a line .*\."),
        (b'{"kind": "stage_health", "steps": "many"}\n', r"stage 0 reported what cannot be read: "),
        (encode_line(SetUploadCap(None)), r"stage 0 sent a command, SetUploadCap: update MoLink\."),
    ],
)
async def test_a_line_that_is_no_report_ends_the_watch_with_a_sentence(printed, sentence):
    """Nobody would read what the stage prints after it."""
    stdout = asyncio.StreamReader(limit=4096)
    stdout.feed_data(printed)
    handle = StageHandle("stage 0", load(1), ChildProcess(Printing(stdout)))
    with pytest.raises(StageError, match=sentence):
        await handle.watch(lambda moved: None, asyncio.Event())


async def test_only_the_report_of_the_latest_order_to_join_counts():
    """That of the epoch before came too late, and names other requests."""
    stdout = asyncio.StreamReader()
    stdout.feed_data(encode_line(StageReady(3, (7,))) + encode_line(StageReady(4, (9,))))
    child = ChildProcess(Printing(stdout, stdin=Heard()))
    order = JoinRing(4, "tcp://a:1", None, RingTerms(64), None)
    assert await StageHandle("stage 0", load(1), child).join(order) == StageReady(4, (9,))
    assert [decode_line(line) for line in child.process.stdin.lines] == [order]
