"""A step that finds its card full is computed in halves, with the same tokens."""

from dataclasses import replace

import pytest
import torch

from molink.engine.step import card_room as room
from molink.engine.step.card_retry import TensorInputs, _pieces, computed, halves
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_output import StepOutput
from molink.errors import DeviceMemoryError
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.kv.layer_class import STEP_ROWS_MAX
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.device.stand_in import GB, StandInCard
from tests.engine.step.graphs.tape import TapeRecorder
from tests.engine.tiny_models import LAYERS, save_tiny

SAMPLING = SamplingParams(max_tokens=8, temperature=0.0)


def batch(*spans: Span) -> Batch:
    admissions = tuple(Admission(s.request_id, s.end, 40, SAMPLING) for s in spans)
    return Batch(1, BatchClass.PREFILL, -1, spans, admissions)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    save_tiny("llama", directory)
    return directory


@pytest.fixture
def full_above(monkeypatch):
    """Let steps of more rows than this run out of memory, after they have written their KV."""
    computed = StageExecutor._computed
    failed: list[int] = []

    def above(rows_max: int) -> list[int]:
        def failing(stage, step, *inputs):
            output = computed(stage, step, *inputs)
            if step.tokens > rows_max:
                failed.append(step.tokens)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return output

        monkeypatch.setattr(StageExecutor, "_computed", failing)
        return failed

    return above


SPANS = (Span(1, 0, 5, False), Span(2, 0, 6, True), Span(3, 0, 1, True))
TOKEN_IDS = list(range(3, 15))


def stages(checkpoint):
    head, tail = cpu_stage(checkpoint, range(2)), cpu_stage(checkpoint, range(2, LAYERS))
    head.card = tail.card = StandInCard()
    return head, tail


def answer(head, tail, step):
    rows = computed(head, TensorInputs(step, TOKEN_IDS, None)).hidden_TD
    return rows, computed(tail, TensorInputs(step, None, rows)).drawn


def test_halves_give_what_the_whole_gives(checkpoint, full_above):
    rows, drawn = answer(*stages(checkpoint), batch(*SPANS))
    head, tail = stages(checkpoint)
    failed = full_above(6)
    rows_again, drawn_again = answer(head, tail, batch(*SPANS))
    assert failed == [12, 12] and head.card.returned > 0
    torch.testing.assert_close(rows_again, rows, rtol=1e-5, atol=1e-6)
    assert drawn_again == drawn and [one.request_id for one in drawn] == [2, 3]


def test_token_ids_and_drafts_go_on_with_the_rows_of_both_halves(checkpoint, monkeypatch):
    """Ids to stages whose layers read them, drafts home."""
    head, _ = stages(checkpoint)

    def step(stage, part, token_ids, hidden_TD, interrupt=None):
        if part.tokens > 6:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        drafts = tuple((span.request_id, (7,)) for span in part.spans if span.wants)
        ids = tuple(token_ids)
        return StepOutput(torch.zeros(part.tokens, 4), token_ids=ids, drafts=drafts)

    monkeypatch.setattr(StageExecutor, "step", step)
    spans = [replace(span, wants=2 * span.samples) for span in SPANS]
    output = computed(head, TensorInputs(batch(*spans), TOKEN_IDS, None))
    assert output.token_ids == tuple(TOKEN_IDS) and len(output.hidden_TD) == 12
    assert output.drafts == tuple((span.request_id, (7,)) for span in SPANS if span.samples)


def test_a_stage_that_is_full_again_ends_with_one_sentence(checkpoint, full_above):
    head, _ = stages(checkpoint)
    full_above(5)
    said = r"in a step of 12 rows, and again in one of 6: other programs"
    with pytest.raises(DeviceMemoryError, match=said):
        computed(head, TensorInputs(batch(*SPANS), TOKEN_IDS, None))


DRAFTED = (Span(1, 5, 8, True, (4, 5)), Span(2, 6, 11, True, (1, 2, 3, 4)), Span(3, 1, 2, True))


def decode(*spans: Span) -> TensorInputs:
    ids = list(range(3, 3 + sum(span.tokens for span in spans)))
    return TensorInputs(Batch(2, BatchClass.DECODE, 0, spans), ids, None)


def test_decode_is_cut_between_spans():
    """Which drafts came true shows where all rows of a span are."""
    parts = halves(decode(*DRAFTED))
    assert [part.batch.spans for part in parts] == [DRAFTED[:1], DRAFTED[1:]]
    assert [part.token_ids for part in parts] == [[3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert [part.batch.spans for part in halves(decode(DRAFTED[1]))] == [DRAFTED[1:2]]


def test_decode_that_is_more_than_windows_hold_is_cut_between_spans():
    spans = tuple(Span(n, 9, 26, True, tuple(range(16))) for n in range(70))
    pieces = list(_pieces(decode(*spans), STEP_ROWS_MAX))
    assert [len(piece.batch.spans) for piece in pieces] == [30, 30, 10]
    assert tuple(span for piece in pieces for span in piece.batch.spans) == spans
    assert [token for piece in pieces for token in piece.token_ids] == list(range(3, 3 + 70 * 17))


def test_a_single_row_is_tried_once_more_as_it_is(checkpoint, full_above):
    head, _ = stages(checkpoint)
    failed = full_above(0)
    with pytest.raises(DeviceMemoryError, match="again in one of 1"):
        computed(head, TensorInputs(batch(Span(1, 0, 1, True)), [3], None))
    assert failed == [1, 1]


def test_states_that_have_moved_on_are_not_computed_twice(checkpoint, full_above):
    head, _ = stages(checkpoint)
    head.states.layers[0] = {}
    failed = full_above(6)
    with pytest.raises(DeviceMemoryError, match="cannot be computed twice"):
        computed(head, TensorInputs(batch(*SPANS), TOKEN_IDS, None))
    assert failed == [12]


CPU_IS_FULL = (
    MemoryError(),
    RuntimeError(
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    ),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 99 bytes."),
)


@pytest.mark.parametrize("error", CPU_IS_FULL, ids=["python", "linux", "windows"])
def test_a_full_pc_makes_room_and_computes_in_halves(checkpoint, monkeypatch, error):
    head, whole = cpu_stage(checkpoint, range(2)), cpu_stage(checkpoint, range(2))
    rows = computed(whole, TensorInputs(batch(*SPANS), TOKEN_IDS, None)).hidden_TD
    real, has_room = StageExecutor._computed, []

    def full(stage, step, *inputs):
        if not has_room:
            raise error
        assert step.tokens <= 6
        return real(stage, step, *inputs)

    monkeypatch.setattr(StageExecutor, "_computed", full)
    inputs = TensorInputs(batch(*SPANS), TOKEN_IDS, None)
    again = computed(head, inputs, make_room=lambda: has_room.append(1)).hidden_TD
    torch.testing.assert_close(again, rows, rtol=1e-5, atol=1e-6)
    assert len(has_room) == 1


def test_a_pc_that_stays_full_ends_its_stage_with_one_sentence(checkpoint, monkeypatch):
    def full(stage, step, *inputs):
        raise MemoryError

    head = cpu_stage(checkpoint, range(2))
    monkeypatch.setattr(StageExecutor, "_computed", full)
    with pytest.raises(DeviceMemoryError, match=r"cpu ran out of memory .* lend less .*memory_gb"):
        computed(head, TensorInputs(batch(*SPANS), TOKEN_IDS, None))


def test_any_other_error_is_none_of_memory(checkpoint, monkeypatch):
    def wrong(stage, step, *inputs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    head = cpu_stage(checkpoint, range(2))
    monkeypatch.setattr(StageExecutor, "_computed", wrong)
    with pytest.raises(RuntimeError, match="shapes"):
        computed(head, TensorInputs(batch(*SPANS), TOKEN_IDS, None))


def test_a_cut_goes_through_a_span_and_admits_nobody():
    first, rest = halves(TensorInputs(batch(*SPANS), TOKEN_IDS, torch.arange(12.0)[:, None]))
    assert first.batch.spans == (Span(1, 0, 5, False), Span(2, 0, 1, False))
    assert rest.batch.spans == (Span(2, 1, 6, True), Span(3, 0, 1, True))
    assert first.token_ids + rest.token_ids == TOKEN_IDS
    assert first.hidden_TD[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert not first.batch.admissions and not rest.batch.admissions


def test_a_stage_makes_the_room_that_its_card_has(checkpoint, monkeypatch):
    """Through `prepare`, as when it loads: measured, sized, held to, and tried at the far end."""
    ran: list[tuple[int, int]] = []
    run_span = room.run_span

    def watched(stage, start, end):
        ran.append((start, end))
        run_span(stage, start, end)

    monkeypatch.setattr(room, "run_span", watched)
    stage = cpu_stage(checkpoint, range(2))
    card = stage.card = StandInCard(held_bytes=GB, step=GB)
    token_bytes = stage.kv_token_bytes
    context, kept = GB // 2, GB // 2
    card.total_bytes = context + 2 * GB + kept + 3_000 * token_bytes
    stage.prepare(None)
    assert stage.kv.tokens_capacity == 2_992
    assert ran == [(0, 256), (0, 256)]  # The model's length.
    assert card.held_to == card.total_bytes - context - kept
    assert stage.kv.tokens_used == 0


def test_recorded_steps_have_room_of_their_own(checkpoint, monkeypatch):
    """As much again as the largest takes, what the driver keeps, and a block for padding."""
    monkeypatch.setattr(room, "BUCKETS", (4, 1))
    stage = cpu_stage(checkpoint, range(2))
    stage.recorder = TapeRecorder()
    card = stage.card = StandInCard(held_bytes=GB, step=GB)
    recordings = GB + 2 * room.RECORDING_BYTES + 16 * stage.kv_token_bytes
    card.total_bytes = GB // 2 + 2 * GB + GB // 2 + recordings + 3_000 * stage.kv_token_bytes
    stage.prepare(None)
    assert stage.kv.tokens_capacity == 2_992
