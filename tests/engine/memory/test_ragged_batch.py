"""The geometry of a batch: one place for every row, whatever the sizes."""

from random import Random

import pytest
import torch

from molink.engine.memory.ragged_batch import (
    FEW_SPAN_ROWS,
    RaggedBatch,
    RaggedSpan,
    TileRows,
)

CPU = torch.device("cpu")
SPANS = (
    RaggedSpan(0, 1, 36, 37, (3, 1, 5)),
    RaggedSpan(1, 12, 0, 12, (7,)),
    RaggedSpan(13, 5, 3, 8, (2,)),
    RaggedSpan(18, 1, 0, 0, ()),
)


def test_spans_are_integers_on_the_device():
    batch = RaggedBatch.of(SPANS, CPU)
    assert batch.row_S.tolist() == [0, 1, 13, 18]
    assert batch.rows_S.tolist() == [1, 12, 5, 1]
    assert batch.start_S.tolist() == [36, 0, 3, 0]
    assert batch.keys_S.tolist() == [37, 12, 8, 0]
    assert batch.blocks_SB.tolist() == [[3, 1, 5], [7, 0, 0], [2, 0, 0], [0, 0, 0]]
    tensors = (batch.row_S, batch.rows_S, batch.start_S, batch.keys_S, batch.blocks_SB)
    assert {tensor.dtype for tensor in tensors} == {torch.int32}


def test_only_padding_has_no_blocks():
    batch = RaggedBatch.of([RaggedSpan(0, 1, 0, 0, ())], CPU)
    assert batch.blocks_SB.shape == (1, 0)


def test_spans_of_few_rows_are_split_and_merged():
    tiles = RaggedBatch.of(SPANS, CPU).tiles(TileRows(few=2, many=8))
    assert tiles.few.span_P.tolist() == [0, 2, 2, 2, 3]
    assert tiles.few.row_P.tolist() == [0, 0, 2, 4, 0]
    assert tiles.part_P.tolist() == [0, 1, 3, 5, 6]
    assert tiles.merged_M.tolist() == [0, 13, 14, 15, 16, 17, 18]
    assert tiles.many.span_P.tolist() == [1, 1]
    assert tiles.many.row_P.tolist() == [0, 8]


def test_tiles_are_made_once_for_each_size():
    batch = RaggedBatch.of(SPANS, CPU)
    assert batch.tiles(TileRows(4, 16)) is batch.tiles(TileRows(4, 16))
    assert batch.tiles(TileRows(4, 16)) is not batch.tiles(TileRows(4, 8))


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_one_tile(seed):
    random = Random(seed)
    spans, row = [], 0
    for _ in range(random.randint(1, 9)):
        rows = random.randint(1, 3 * FEW_SPAN_ROWS)
        spans.append(RaggedSpan(row, rows, 0, rows, range(2)))
        row += rows
    size = TileRows(random.choice((1, 2, 4)), random.choice((1, 4, 16)))
    tiles = RaggedBatch.of(spans, CPU).tiles(size)
    seen = []
    for of, height in ((tiles.few, size.few), (tiles.many, size.many)):
        for span, first in zip(of.span_P.tolist(), of.row_P.tolist(), strict=True):
            stop = min(first + height, spans[span].rows)
            seen += range(spans[span].row + first, spans[span].row + stop)
    assert sorted(seen) == list(range(row))
    few = zip(tiles.few.span_P.tolist(), tiles.few.row_P.tolist(), strict=True)
    starts = [spans[span].row + first for span, first in few]
    assert [tiles.merged_M.tolist()[part] for part in tiles.part_P.tolist()] == starts
