"""Every row's position and slot, whatever the spans and wherever their blocks are."""

from random import Random

import pytest
import torch

from molink.executor.attention.step_plan import plan_step
from molink_scheduler.batch import Batch, BatchClass, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks

CPU = torch.device("cpu")


def test_rows_are_written_where_their_tables_say():
    kv = KvBlocks(8)
    for tokens in (16, 32, 40):  # In turn, so that both are scattered.
        kv.grow(1, tokens)
        kv.grow(2, tokens)
    spans = (Span(2, 39, 40, samples=True), Span(1, 14, 18, samples=False))
    plan = plan_step(Batch(0, BatchClass.DECODE, 0, spans), kv, CPU)
    assert list(kv.table(1)) == [0, 2, 4] and list(kv.table(2)) == [1, 3, 5]
    assert plan.positions_T.tolist() == [39, 14, 15, 16, 17]
    assert plan.slots_T.tolist() == [5 * 16 + 7, 14, 15, 32, 33]
    assert {plan.positions_T.dtype, plan.slots_T.dtype} == {torch.int64}
    batch = plan.batch
    assert batch.row_S.tolist() == [0, 1] and batch.rows_S.tolist() == [1, 4]
    assert batch.start_S.tolist() == [39, 14] and batch.keys_S.tolist() == [40, 18]
    assert batch.blocks_SB.tolist() == [[1, 3, 5], [0, 2, 4]]


@pytest.mark.parametrize("seed", range(20))
def test_all_tensors_are_parts_of_one_upload(seed):
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
