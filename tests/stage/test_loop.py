"""A stage between real links: it answers, whatever else its neighbour sends."""

import threading

import numpy as np
import pytest

from molink.stage.health import health_reports
from molink.stage.links import StageLinks
from molink.stage.packing import Packing
from molink.stage_protocol.health import RoomOffer
from molink.stage_protocol.messages import SetRoom, StageReady
from molink.stage_protocol.progress import StageProgress
from molink.wire.codecs import CODECS
from molink.wire.elements import TensorHeader
from molink.wire.frames import Activations, FinishReason, Forget, SetCapacity
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.capacity import RingCapacity
from molink_scheduler.kv.changes import AwayBlocks
from molink_scheduler.request import SamplingParams
from molink_scheduler.resume import Resume
from molink_scheduler.stage.replay_log import ReplayLog
from molink_sim.replay import replay
from tests.stage.echo_engine import HIDDEN, KV_BLOCKS, Ended
from tests.stage.running_stage import ANSWERS_WITHIN_S, Neighbours, join


@pytest.fixture
def neighbours(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    links = [
        StageLinks.bind(name, "127.0.0.1", name == "head", lambda fact: None)
        for name in ("stage", "head")
    ]
    for here, there in (links, links[::-1]):
        here.connect(join(there.ports[0]))
    yield Neighbours(*links)
    for one in links:
        one._links.close()


def batch(*spans: Span, admits: bool, batch_class: BatchClass = BatchClass.DECODE) -> Batch:
    sampling = SamplingParams(max_tokens=512)
    known = tuple(Admission(s.request_id, 1, 512, sampling) for s in spans if admits)
    return Batch(1, batch_class, 0, spans, known)


def message(batch: Batch, codec: str = "raw") -> Activations:
    return Activations(batch, *Packing(HIDDEN).pack(rows_of(batch.tokens), codec))


def rows_of(tokens: int) -> np.ndarray:
    return np.linspace(-1, 1, tokens * HIDDEN, dtype=np.float32).reshape(tokens, -1)


def rows_message(codec: str, first_id: int = 0) -> Activations:
    """The first rows of two requests."""
    return message(batch(*(Span(first_id + i, 0, 1, True) for i in range(2)), admits=True), codec)


def malformed(codec: str) -> list[Activations]:
    """Messages that are well-formed up to their packed rows."""
    good = rows_message(codec)
    batch, header, buffer = good.batch, good.tensor, bytes(good.buffer)
    lies = TensorHeader(header.dtype, header.rows, HIDDEN // 2, codec)
    huge = TensorHeader(header.dtype, header.rows, 2**40, codec)
    bad_frame = [Activations(batch, header, b"\xff" * len(buffer))] if codec == "lossless" else []
    return [
        *bad_frame,
        Activations(batch, header, buffer[:-1]),
        Activations(batch, header, buffer[: len(buffer) // 2]),
        Activations(batch, header, buffer + b"\0"),
        Activations(batch, lies, buffer),
        Activations(batch, huge, buffer),
    ]


def test_rows_that_cannot_be_read_are_dropped_and_the_next_are_answered(neighbours, caplog):
    sent = [message for codec in CODECS for message in malformed(codec)]
    for message in sent:
        neighbours.peer.send_next(message)
    for number, codec in enumerate(CODECS):
        good = rows_message(codec, 2 * number)
        neighbours.peer.send_next(good)
        assert neighbours.answer().spans == good.batch.spans
    assert neighbours.stage.frames_refused == len(sent)
    assert [rows.shape for rows in neighbours.engine.rows] == [(2, HIDDEN)] * len(CODECS)
    warnings = [record for record in caplog.records if "is dropped" in record.getMessage()]
    assert len(warnings) == 1
    neighbours.end()


def impossible() -> list[Batch]:
    """Well-formed batches that no head plans after requests 0 and 1 have one token each."""
    return [
        batch(Span(7, 0, 1, True), admits=False),
        batch(Span(0, 1, 2, True), Span(7, 1, 2, True), admits=False),
        batch(Span(0, 5, 6, True), admits=False),
        batch(Span(0, 0, 1, True), admits=False),
        batch(Span(0, 0, 1, True), admits=True),
        batch(Span(0, 1, 513, False), admits=False),
        batch(*(Span(i, 0, 400, False) for i in (7, 8)), admits=True),
        batch(*(Span(i, 0, 400, False) for i in range(7, 18)), admits=True),
        batch(Span(0, 2, 4, True, (5,)), admits=False),
        batch(Span(0, 0, 2, True, (5,)), admits=False),
        batch(Span(0, 1, 3, True, (100,)), admits=False),
    ]


def test_batches_that_cannot_be_computed_are_dropped_and_the_next_are_answered(neighbours, caplog):
    neighbours.peer.send_next(rows_message("raw"))
    assert neighbours.answer().spans
    for one in impossible():
        neighbours.peer.send_next(message(one))
    fine = message(batch(Span(0, 1, 2, True), Span(1, 1, 2, True), admits=False))
    neighbours.peer.send_next(fine)
    assert neighbours.answer().spans == fine.batch.spans
    assert neighbours.stage.frames_refused == len(impossible())
    assert [len(rows) for rows in neighbours.engine.rows] == [2, 2]
    [warning] = [one for one in caplog.records if "is dropped" in one.getMessage()]
    assert "request 7 was never admitted" in warning.getMessage()
    neighbours.end()


@pytest.mark.parametrize("lost", [float("inf"), float("nan")])
def test_a_bad_row_ends_its_request_and_nobody_elses(neighbours, lost, monkeypatch):
    told = []
    monkeypatch.setattr(StageLinks, "send_coordinator", lambda links, message: told.append(message))
    both = batch(*(Span(i, 0, 1, True) for i in range(2)), admits=True)
    rows = rows_of(2)
    spoilt = rows.copy()
    spoilt[0, 3] = lost
    neighbours.peer.send_next(Activations(both, *Packing(HIDDEN).pack(spoilt, "raw")))
    answer = neighbours.answer()
    assert answer.spans == both.spans
    assert [(one.request_id, one.finish) for one in answer.tokens] == [(0, FinishReason.REFUSED)]
    (computed,) = neighbours.engine.rows
    assert computed[0].tolist() == [0.0] * HIDDEN and np.array_equal(computed[1], rows[1])
    assert neighbours.stage.frames_refused == 0, "the message itself is as it should be"
    while neighbours.reports.get(timeout=ANSWERS_WITHIN_S).rows_refused != 1:
        pass
    neighbours.peer.send_next(Forget(Release(0)))
    neighbours.peer.send_next(message(batch(Span(1, 1, 2, True), admits=False)))
    assert neighbours.answer().tokens == ()
    assert neighbours.engine.wiped == [0], "what follows finds no infinity in its blocks"
    neighbours.end()
    assert [copy.tokens for copy in told] == [answer.tokens]


def test_an_idle_stage_tells_at_once_that_kv_was_freed(neighbours, monkeypatch):
    """With the usual reports switched off."""
    neighbours.engine.kv_tokens_used = 16
    while neighbours.reports.get(timeout=ANSWERS_WITHIN_S).kv_tokens_used != 16:
        pass
    monkeypatch.setattr(health_reports, "PERIOD_S", 1e9, 128)
    monkeypatch.setattr(health_reports, "REPEAT_S", 1e6)
    neighbours.peer.send_next(Forget(Release(1)))
    used = [16]
    while used[-1]:
        used.append(neighbours.reports.get(timeout=ANSWERS_WITHIN_S).kv_tokens_used)
    assert set(used) == {16, 0}
    neighbours.end()


def test_a_stage_whose_pc_has_too_little_memory_says_so_and_gives_up_what_it_can(
    neighbours, monkeypatch
):
    n, shed = neighbours, threading.Event()
    monkeypatch.setattr(ReplayLog, "shed", lambda log: shed.set())
    n.engine.host_is_short = True
    assert shed.wait(ANSWERS_WITHIN_S)
    while not n.reports.get(timeout=ANSWERS_WITHIN_S).host_is_short:
        pass
    n.end()


def offer_with(neighbours: Neighbours, number: int) -> RoomOffer:
    """The offer of this number, once it is reported."""
    while (offer := neighbours.reports.get(timeout=ANSWERS_WITHIN_S).offer).number != number:
        pass
    return offer


def test_room_is_offered_at_once_and_given_back_only_at_the_heads_word(neighbours):
    n = neighbours
    n.joins.append(SetRoom(16 * 20))
    n.stage.wake()
    assert offer_with(n, 1) == RoomOffer(1, 16 * 20)
    assert n.engine.places == [], "the head may still plan with all of it"
    for word in (
        RingCapacity(10, (0,)),
        RingCapacity(20, (1,)),
    ):  # The first has not heard of the offer.
        n.peer.send_next(SetCapacity(word))
    n.peer.send_next(rows_message("raw"))
    assert n.answer().spans
    assert n.engine.places == [KV_BLOCKS, 20]
    n.joins.append(SetRoom(16 * 1000))
    n.stage.wake()
    assert offer_with(n, 2) == RoomOffer(2, 16 * KV_BLOCKS), "there are no more places"
    assert n.engine.places[2:] == [KV_BLOCKS], "they are there before they are offered"
    n.end()


def test_a_head_that_counts_with_more_than_there_is_is_refused(neighbours):
    neighbours.peer.send_next(SetCapacity(RingCapacity(KV_BLOCKS + 1, (0,))))
    neighbours.peer.send_next(rows_message("raw"))
    assert neighbours.answer().spans
    assert neighbours.stage.frames_refused == 1 and neighbours.engine.places == []
    neighbours.end()


def test_a_neighbour_that_falls_silent_is_reported_at_once(neighbours, monkeypatch):
    """With the usual reports switched off; the loop may be within a step."""
    monkeypatch.setattr(health_reports, "PERIOD_S", 1e9, 128)
    monkeypatch.setattr(health_reports, "REPEAT_S", 1e6)
    assert neighbours.reports.get(timeout=ANSWERS_WITHIN_S).progress.next_silent_s == 0
    monkeypatch.setattr(StageLinks, "neighbours_silent_s", lambda self: (0.0, 1.5))
    neighbours.stage.fell_silent.set()
    progress = StageProgress()
    while progress.next_silent_s == 0:
        progress = neighbours.reports.get(timeout=ANSWERS_WITHIN_S).progress
    assert (progress.previous_silent_s, progress.next_silent_s) == (0.0, 1.5)
    neighbours.end()


def test_within_a_step_that_stands_still_reports_go_on_and_say_so(neighbours, monkeypatch):
    """As with a kernel that hangs: the loop itself reports nothing any more."""
    monkeypatch.setattr(health_reports, "REPEAT_S", 0.01)
    hangs, released = neighbours.engine, threading.Event()
    step = hangs.step

    def step_that_hangs(*given):
        assert released.wait(ANSWERS_WITHIN_S)
        return step(*given)

    hangs.step = step_that_hangs
    neighbours.peer.send_next(rows_message("raw"))
    reports = [neighbours.reports.get(timeout=ANSWERS_WITHIN_S).progress]
    while reports[-1].stalled_s < 0.05:
        reports.append(neighbours.reports.get(timeout=ANSWERS_WITHIN_S).progress)
    released.set()
    assert neighbours.answer().spans
    while reports[-1].rows_out < 2:
        reports.append(neighbours.reports.get(timeout=ANSWERS_WITHIN_S).progress)
    assert [one.reports for one in reports] == list(range(1, len(reports) + 1))
    assert (reports[-1].rows_in, reports[-1].rows_out, reports[-1].stalled_s) == (2, 2, 0.0)
    neighbours.end()


def test_decode_that_comes_during_a_prefill_step_does_not_wait_for_its_end(neighbours):
    """The engine ends no step of a prompt before it has computed decode."""
    prompt = batch(Span(7, 0, 3, False), admits=True, batch_class=BatchClass.PREFILL)
    neighbours.peer.send_next(message(prompt), BatchClass.PREFILL)
    assert neighbours.engine.in_prefill.wait(ANSWERS_WITHIN_S)
    neighbours.peer.send_next(rows_message("raw"))
    assert neighbours.answer().batch_class is BatchClass.DECODE
    assert neighbours.answer().batch_class is BatchClass.PREFILL
    assert [len(rows) for rows in neighbours.engine.rows] == [2, 3]
    neighbours.end()


def test_a_card_says_itself_what_a_step_took(neighbours):
    neighbours.engine.computed_s = 77.0
    neighbours.peer.send_next(rows_message("raw"))
    assert neighbours.answer().stamps[-1].step_s == 77
    neighbours.engine.computed_s = None
    neighbours.peer.send_next(rows_message("raw", 2))
    assert neighbours.answer().stamps[-1].step_s < ANSWERS_WITHIN_S
    neighbours.end()


def test_a_stage_that_fails_leaves_what_it_was_told(neighbours, tmp_path):
    """The engine runs out of memory; the log that is left decides the same, up to that step."""
    neighbours.peer.send_next(rows_message("raw"))
    assert neighbours.answer().spans

    def out_of_memory(*given):
        raise Ended("no more memory")

    neighbours.engine.step = out_of_memory
    neighbours.peer.send_next(message(batch(Span(0, 1, 2, True), admits=False)))
    neighbours.thread.join(ANSWERS_WITHIN_S)
    [path] = (tmp_path / "molink" / "failed-stages").iterdir()
    found = replay(path.read_text().splitlines())
    assert found.failure == "Ended: no more memory"
    assert found.difference is found.error is None, "the core decided what it always does"
    last_call = path.read_text().splitlines()[-2]
    assert last_call.startswith('["next_step"') and '"RunBatch"' in last_call


def test_a_stage_goes_on_in_the_next_epoch_with_what_it_keeps(neighbours):
    """It holds a token of requests 0 and 1; of request 1 the others hold more."""
    neighbours.peer.send_next(rows_message("raw"))
    assert neighbours.answer().spans
    ports = neighbours.peer.ports[0], neighbours.stage.ports[0]
    neighbours.joins.append(join(ports[0], 2, Resume(((0, 1), (1, 5)))))
    neighbours.stage.wake()
    ready = StageReady(2, missing=(1,), away=AwayBlocks(directory=2))
    assert neighbours.facts.get(timeout=ANSWERS_WITHIN_S) == ready
    assert neighbours.engine.held == {0} and neighbours.engine.kept == [(0, 1)]
    neighbours.peer.send_next(message(batch(Span(0, 1, 2, True), admits=False)))  # Of epoch 1.
    neighbours.peer.connect(join(ports[1], 2))
    kept = Admission(0, 1, 512, SamplingParams(max_tokens=512), kept_tokens=1)
    goes_on = Batch(9, BatchClass.PREFILL, -1, (Span(0, 1, 2, True),), (kept,))
    neighbours.peer.send_next(message(goes_on), BatchClass.PREFILL)
    assert neighbours.answer().spans == goes_on.spans
    assert neighbours.stage.frames_refused == 0, "what came of the epoch before is nobody's fault"
    assert [len(rows) for rows in neighbours.engine.rows] == [2, 1]
    neighbours.end()


def test_a_lender_that_goes_while_nothing_is_computed_is_reported(neighbours):
    neighbours.engine.lender_is_lost = True
    while neighbours.reports.get(timeout=ANSWERS_WITHIN_S).lender_lost_in != 1:
        pass
    neighbours.joins.append(join(neighbours.peer.ports[0], 2))
    assert neighbours.facts.get(timeout=ANSWERS_WITHIN_S).epoch == 2, "it had waited for that"
    neighbours.peer.connect(join(neighbours.stage.ports[0], 2))
    neighbours.end()
