"""Every row's position and slot, whatever the spans and wherever their blocks are."""

from random import Random

import numpy as np
import pytest
import torch

from molink.engine.device.streams import sent_together
from molink.engine.memory import ragged_batch, step_plan
from molink.engine.memory.ragged_batch import RaggedSpan, TileRows
from molink.engine.memory.step_plan import StepPlan, plan_step
from molink_scheduler.batch import Batch, BatchClass, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks

CPU = torch.device("cpu")


def test_rows_are_written_where_their_tables_say():
    kv = KvBlocks(8)
    for tokens in (16, 32, 40):  # In turn, so that both are scattered.
        kv.grow(1, tokens)
        kv.grow(2, tokens)
    spans = (Span(2, 39, 40, samples=True), Span(1, 14, 18, samples=False))
    plan = plan_step(Batch(0, BatchClass.PREFILL, 0, spans), kv, CPU)
    assert list(kv.table(1)) == [0, 2, 4] and list(kv.table(2)) == [1, 3, 5]
    assert plan.positions_T.tolist() == [39, 14, 15, 16, 17]
    assert plan.slots_T.tolist() == [5 * 16 + 7, 14, 15, 32, 33]
    assert {plan.positions_T.dtype, plan.slots_T.dtype} == {torch.int64}
    batch = plan.batch
    assert batch.row_S.tolist() == [0, 1] and batch.rows_S.tolist() == [1, 4]
    assert batch.start_S.tolist() == [39, 14] and batch.keys_S.tolist() == [40, 18]
    assert batch.blocks_SB.tolist() == [[1, 3, 5], [0, 2, 4]]


def test_rows_of_a_decode_batch_are_spans_of_their_own():
    kv = KvBlocks(8)
    kv.grow(1, 40)
    kv.grow(2, 18)
    spans = (Span(2, 14, 18, True, (7, 7, 7)), Span(1, 39, 40, True))
    plan = plan_step(Batch(0, BatchClass.DECODE, 0, spans), kv, CPU)
    assert plan.positions_T.tolist() == [14, 15, 16, 17, 39]
    batch = plan.batch
    assert batch.row_S.tolist() == [0, 1, 2, 3, 4] and batch.rows_S.tolist() == [1] * 5
    assert batch.start_S.tolist() == [14, 15, 16, 17, 39]
    assert batch.keys_S.tolist() == [15, 16, 17, 18, 40]
    assert batch.blocks_SB.tolist() == [[3, 4, 0]] * 4 + [[0, 1, 2]]
    assert batch.has_decodes and not batch.has_pieces


@pytest.mark.parametrize("seed", range(20))
def test_all_tensors_are_parts_of_one_upload(seed, monkeypatch):
    monkeypatch.setattr(step_plan, "uploaded", sent_together)
    random, kv = Random(seed), KvBlocks(200)
    spans = []
    for request_id in range(random.randint(1, 9)):
        start, rows = random.randint(0, 200), random.randint(1, 40)
        kv.grow(request_id, start + rows)
        spans.append(Span(request_id, start, start + rows, samples=False))
    plan = plan_step(Batch(0, BatchClass.PREFILL, 0, tuple(spans)), kv, CPU)
    batch = plan.batch
    parts = (batch.row_S, batch.rows_S, batch.start_S, batch.keys_S, batch.blocks_SB)
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    tables = [kv.table(span.request_id) for span in spans]
    wanted = [
        (position, table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS)
        for span, table in zip(spans, tables, strict=True)
        for position in range(span.start, span.end)
    ]
    assert list(zip(plan.positions_T.tolist(), plan.slots_T.tolist(), strict=True)) == wanted


def test_tiles_that_layers_will_ask_for_go_up_with_the_rest(monkeypatch):
    spans = (RaggedSpan(0, 1, 40, 41, (3, 1, 2)), RaggedSpan(1, 20, 0, 20, (4, 5)))
    sizes = (TileRows(4, 16), TileRows(2, 8))
    fresh = StepPlan.of(spans, CPU).batch
    uploads = []
    plain = step_plan.uploaded
    monkeypatch.setattr(step_plan, "uploaded", lambda *given: uploads.append(0) or plain(*given))
    monkeypatch.setattr(ragged_batch, "uploaded", lambda *given: uploads.append(1))
    plan = StepPlan.of(spans, CPU, [[7, 8], (), np.array([9])], sizes)
    assert [numbers.tolist() for numbers in plan.beside] == [[7, 8], [], [9]]
    assert all(numbers.dtype is torch.int64 for numbers in plan.beside)
    given = [plan.batch.tiles(size) for size in sizes]
    assert uploads == [0] and plan.batch.tile_sizes == sizes
    monkeypatch.undo()
    for tiles, wanted in zip(given, map(fresh.tiles, sizes), strict=True):
        for one, other in ((tiles.few, wanted.few), (tiles.many, wanted.many)):
            assert torch.equal(one.span_P, other.span_P) and torch.equal(one.row_P, other.row_P)
        assert torch.equal(tiles.part_P, wanted.part_P)
        assert torch.equal(tiles.merged_M, wanted.merged_M)
