"""Which recorded steps are believed, which are used, and what is told of the others."""

from unittest import mock

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from molink.engine.device.streams import uploaded
from molink.engine.layers.staged_mixer import RecurrentStep
from molink.engine.memory.ragged_batch import DecodeTables
from molink.engine.memory.state_pool import StatePool
from molink.engine.step.graphs import decode_graphs, static_inputs
from molink.engine.step.graphs.recording import Recording
from molink.engine.step.graphs.static_inputs import BUCKETS
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.request import SamplingParams
from tests.engine.step.graphs.decode_runs import given_rows
from tests.engine.step.graphs.static_stages import static_stage
from tests.engine.step.graphs.tape import TapeRecorder
from tests.engine.step.graphs.test_replays import read_lengths

HYBRID = "LFM2 1.2B"

GREEDY = SamplingParams(max_tokens=50, temperature=0.0)
ASKED = SamplingParams(
    max_tokens=50, temperature=0.9, top_p=0.8, logprobs=2, frequency_penalty=0.5, seed=7
)


class Counted(TapeRecorder):
    """Recorder that notes the rows of what is replayed."""

    def __init__(self):
        self.replayed = []

    def record(self, compute):
        recording = super().record(compute)

        def replay():
            self.replayed.append(len(recording.out))
            recording.replay()

        return Recording(recording.out, replay)


class Lying(TapeRecorder):
    """Recorder whose recordings answer what they were recorded with."""

    def record(self, compute):
        return Recording(super().record(compute).out, lambda: None)


class Full(TapeRecorder):
    """Recorder on a card that has no room for large recordings."""

    def __init__(self):
        self.asked = 0

    def record(self, compute):
        self.asked += 1
        if self.asked == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 1.00 GiB")
        return super().record(compute)


def llama(recorder, **options):
    return static_stage("llama", range(2), 4, recorder, **options)


def refusals(stage):
    return stage._graphs.refused, sorted(stage._graphs.steps)


def test_a_graph_that_lies_is_not_used_and_the_stage_says_why():
    stage = llama(Lying())
    assert refusals(stage)[1] == []
    assert stage.fallbacks.decode.startswith("4 rows: a replayed step differs by ")
    assert "1 rows: a replayed step differs by " in stage.fallbacks.decode
    assert prompted(stage, [3, 4]).hidden_TD.isfinite().all()


def test_numbers_that_are_none_are_never_near():
    def spoilt(tape, compute):
        recording = TapeRecorder.record(tape, compute)
        return Recording(recording.out, lambda: recording.out.fill_(float("nan")))

    with mock.patch.object(Lying, "record", spoilt):
        assert "differs by inf" in llama(Lying()).fallbacks.decode


def test_a_card_that_fails_in_the_proof_launches_everything():
    def failing(tape, compute):
        def replay():
            raise RuntimeError("CUDA error: unspecified launch failure\nadvice")

        return Recording(TapeRecorder.record(tape, compute).out, replay)

    with mock.patch.object(Lying, "record", failing):
        stage = llama(Lying())
    assert (
        stage.fallbacks.decode == "4, 1 rows: RuntimeError: CUDA error: unspecified launch failure"
    )
    assert refusals(stage)[1] == []
    assert stage.kv.tokens_used == 0


def test_what_was_read_while_recording_is_found():
    with mock.patch.object(DecodeTables, "over", read_lengths):
        assert "a replayed step differs by" in llama(TapeRecorder()).fallbacks.decode


def test_a_read_that_a_card_refuses_leaves_steps_launched():
    def reads(module, inputs, output):
        return output * (1.0 if output.sum() == output.sum() else 2.0)

    stage = llama(None)
    stage.recorder = TapeRecorder()
    stage.model.get_decoder().layers[0].mlp.register_forward_hook(reads)
    stage.resize_kv(64)
    stage._graphs = decode_graphs.DecodeGraphs.recorded(stage, stage.recorder)
    assert "while recording: the host reads a number" in stage.fallbacks.decode


def test_slots_that_were_read_while_recording_are_found():
    def read_slots(slots_R, pool, of_decodes=RecurrentStep.of_decodes):
        return of_decodes(torch.tensor(slots_R.tolist()), pool)

    with mock.patch.object(RecurrentStep, "of_decodes", read_slots):
        stage = static_stage(HYBRID, range(4), 4, TapeRecorder())
    assert "a replayed step differs by" in stage.fallbacks.decode


def test_states_that_are_not_kept_are_found_though_the_step_is_right():
    def lost(*given, store=StatePool.store):
        if not is_in_torch_dispatch_mode():
            store(*given)

    with mock.patch.object(StatePool, "store", lost):
        stage = static_stage(HYBRID, range(4), 4, TapeRecorder())
    assert "a replayed step differs by" in stage.fallbacks.decode


def test_what_has_no_room_is_launched_and_the_rest_replayed():
    stage = llama(Full())
    assert refusals(stage) == ({4: "OutOfMemoryError: CUDA out of memory."}, [1])
    assert stage.fallbacks.decode == "4 rows: OutOfMemoryError: CUDA out of memory."


def test_buckets_with_one_reason_share_a_sentence():
    stage = llama(TapeRecorder())
    stage._graphs.refused = {64: "no room", 32: "no room", 8: "x" * 300}
    assert stage.fallbacks.decode.startswith("64, 32 rows: no room; 8 rows: xxx")
    assert len(stage.fallbacks.decode) <= 200


def test_without_a_kernel_whole_contexts_are_not_gathered():
    with mock.patch.object(decode_graphs, "GATHERED_BLOCKS_MAX", 8):
        stage = llama(TapeRecorder())
    assert refusals(stage) == ({4: "torch would read 128 tokens for each"}, [1])


def test_no_bucket_is_recorded_that_no_step_needs():
    stage = llama(TapeRecorder(), buckets=BUCKETS, kv_tokens=16)
    assert refusals(stage) == ({}, [1, 2, 4, 8, 16, 32])  # A request's token and 16 drafts.
    stage = static_stage(HYBRID, range(4), 4, TapeRecorder(), memory_bytes=1)
    assert stage.state_slots == 1
    assert refusals(stage) == ({}, [1])


def test_steps_of_one_row_each_are_replayed_and_no_others():
    stage = llama(counted := Counted())
    plain = llama(None)
    counted.replayed.clear()
    outputs = [
        [prompted(one, [5, 9, 3]), decoded(one, [5, 9, 3]), decoded(one, [6])]
        for one in (stage, plain)
    ]
    assert counted.replayed == [4, 1]
    for got, wanted in zip(*outputs, strict=True):
        torch.testing.assert_close(got.hidden_TD, wanted.hidden_TD, rtol=1e-5, atol=1e-5)


def test_drafts_are_replayed_but_where_layers_keep_states():
    drafted = Batch(1, BatchClass.DECODE, 0, (Span(0, 5, 8, True, (4, 5)), Span(1, 9, 10, True)))
    stage, plain = llama(counted := Counted()), llama(None)
    for one in (stage, plain):
        prompted(one, [5, 9])
    counted.replayed.clear()
    got, wanted = computed(stage, drafted), computed(plain, drafted)
    assert counted.replayed == [4]
    torch.testing.assert_close(got.hidden_TD, wanted.hidden_TD, rtol=1e-5, atol=1e-5)
    hybrid = static_stage(HYBRID, range(4), 4, TapeRecorder())
    assert hybrid._graphs._step_for(drafted) is None


def test_rows_of_a_step_outlive_the_next():
    stage = llama(TapeRecorder())
    prompted(stage, [5, 9, 3])
    first = decoded(stage, [5, 9, 3]).hidden_TD
    before = first.clone()
    decoded(stage, [6, 10, 4])
    assert first.equal(before)


def test_a_tail_draws_the_same_and_is_sent_one_array(monkeypatch):
    """Also where not all rows draw: their numbers, and what is asked of them, go up together."""
    tails = [static_stage("llama", range(2, 4), 4, own) for own in (TapeRecorder(), None)]
    sent, drawn = [], []
    monkeypatch.setattr(
        static_inputs, "uploaded", lambda *given: sent.append(1) or uploaded(*given)
    )
    for tail in tails:
        prompted(tail, [5, 9, 3], ASKED)
        steps = [decoded(tail, [5 + n, 9 + n, 3 + n], (0, n)).drawn for n in (1, 2)]
        drawn.append([(token.request_id, token.token_id) for step in steps for token in step])
    assert drawn[0] == drawn[1]
    assert [number for number, _ in drawn[0]] == [0, 1, 0, 2]
    assert len(sent) == 2


def test_a_first_token_begins_a_state_and_is_launched():
    stage = static_stage(HYBRID, range(4), 4, counted := Counted())
    counted.replayed.clear()
    prompted(stage, [1])
    assert counted.replayed == []
    decoded(stage, [1])
    assert counted.replayed == [1]


def test_drafts_of_a_hybrid_and_what_follows_them_are_launched():
    """A recorded step would leave the states where they stood before the drafts that came true."""
    stage = static_stage(HYBRID, range(2), 4, counted := Counted())
    plain = static_stage(HYBRID, range(2), 4, None)
    counted.replayed.clear()
    drafted = Batch(1, BatchClass.DECODE, 0, (Span(0, 6, 11, True, (3, 4, 5, 6)),))
    outputs = []
    for one in (stage, plain):
        prompted(one, [5])
        steps = [decoded(one, [5]), computed(one, drafted), decoded(one, [9]), decoded(one, [10])]
        outputs.append(torch.cat([step.hidden_TD for step in steps]))
    assert counted.replayed == [1, 1], "the first decode step and the last"
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)


def test_another_pool_forgets_what_was_recorded_over_the_old_one():
    stage = llama(counted := Counted())
    counted.replayed.clear()
    stage.resize_kv(128)
    prompted(stage, [5])
    decoded(stage, [5])
    assert counted.replayed == []


def test_the_proof_leaves_nothing_behind():
    stage = static_stage("gemma2", range(2), 4, TapeRecorder())
    assert stage.kv.tokens_used == 0
    assert not stage.kv.holders()
    assert not any(
        rows.rows_SKA.any()
        for layer in stage._pool.layers.values()
        for rows in (layer.keys, layer.values)
    )


def test_padding_writes_where_nobody_reads():
    stage = llama(TapeRecorder())
    prompted(stage, [5, 9, 3])
    decoded(stage, [5, 9, 3])
    spare = slice(stage.kv.tokens_capacity, None)
    keys = stage._pool.layers[0].keys.rows_SKA
    assert keys[spare].any()
    tables = [stage.kv.table(number) for number in range(3)]
    used = {block * 16 + i for table in tables for block in table for i in range(16)}
    others = [slot for slot in range(stage.kv.tokens_capacity) if slot not in used]
    assert not keys[others].any()


def prompted(stage, lengths, sampling=GREEDY):
    """Compute prompts of so many tokens."""
    admissions = tuple(Admission(n, tokens, 99, sampling) for n, tokens in enumerate(lengths))
    spans = tuple(Span(n, 0, tokens, False) for n, tokens in enumerate(lengths))
    return computed(stage, Batch(0, BatchClass.PREFILL, -1, spans, admissions))


def decoded(stage, positions, samples=()):
    """Compute one row for each request, at these positions; some of them sample."""
    spans = tuple(Span(n, at, at + 1, n in samples) for n, at in enumerate(positions))
    return computed(stage, Batch(1, BatchClass.DECODE, 0, spans))


def computed(stage, batch):
    generator = torch.Generator().manual_seed(batch.tokens)
    return stage.step(batch, *given_rows(stage, batch.tokens, generator))
