"""A real lender process: what it gives joined with what is at home is what the whole gives."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from molink.engine.layers import lent_attention
from molink.engine.layers.held_blocks import HeldBlocks
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.lent_attention import LentStep, is_sooner_pushed
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink.engine_protocol.lender import LentKv, LentLayer
from molink.errors import LenderLostError
from molink.lender.client import LenderClient
from molink.lender.starting import start_lender

LAYERS, KV_HEADS, HEADS, SIZE, HERE, AWAY = 2, 2, 4, 32, 24, 24
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lender() -> Iterator[LenderClient]:
    client = start_lender()
    client.timeout_s = (10.0, 10.0)  # Whether it answers counts here, not how soon.
    yield client
    client.link.close()


def random_rows(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Stage:
    """Two layers' KV of a stage, of which all blocks from `HERE` on are given to the lender too."""

    def __init__(self, lender: LenderClient, dtype: torch.dtype, kv_dtype: str) -> None:
        self.lender, self.dtype = lender, dtype
        self.pool = KvPool((HERE + AWAY) * 16, kv_dtype)
        for layer in range(LAYERS):
            keys, values = (
                random_rows(self.pool.slots, KV_HEADS, SIZE, seed=2 * layer + one, dtype=dtype)
                for one in (0, 1)
            )
            self.pool.write(layer, torch.arange(self.pool.slots), keys, values)
        shapes = tuple(LentLayer(layer, KV_HEADS, SIZE, SIZE) for layer in range(LAYERS))
        kv = LentKv(shapes, str(dtype).removeprefix("torch."), kv_dtype)
        lender.hold(kv, AWAY)
        packed = torch.cat([rows[HERE:] for rows in self.pool.block_rows()], dim=1)
        lender.put(range(AWAY), packed.numpy())
        self.held = HeldBlocks.of(kv, AWAY, is_shared=True)

    def differs(self, spans: list[RaggedSpan], variant: AttentionVariant) -> float:
        """How far parts are from the whole, against the largest value."""
        rows = spans[-1].row + spans[-1].rows
        step = LentStep.of(spans, HERE, self.lender, self.held)
        assert step is not None
        worst = 0.0
        for layer in range(LAYERS):
            q_THA = random_rows(rows, HEADS, SIZE, seed=10 + layer, dtype=self.dtype)
            batch = RaggedBatch.of(spans, CPU)
            whole = LayerRows(batch, self.pool, self.pool.layers[layer], q_THA, None, variant)
            wanted = whole.attend().float()
            got = step.attend(layer, whole).float()
            worst = max(worst, float((got - wanted).abs().max() / wanted.abs().max()))
        return worst


def span(row: int, rows: int, start: int, blocks: list[int]) -> RaggedSpan:
    return RaggedSpan(row, rows, start, start + rows, blocks[: -(-(start + rows) // 16)])


BEGINNING_AWAY = [*range(HERE, HERE + 10), *range(6)]
SCATTERED = [3, HERE + 12, 4, HERE + 11, HERE + 13, 5, 7]
AT_HOME = [*range(8, 14)]
SPANS = [
    span(0, 1, 250, BEGINNING_AWAY),
    span(1, 1, 90, SCATTERED),
    span(2, 3, 70, AT_HOME),
    span(5, 4, 100, SCATTERED),
    span(9, 90, 165, BEGINNING_AWAY),
]


@pytest.mark.parametrize(
    "dtype, kv_dtype, within",
    [
        (torch.float32, "auto", 2e-5),
        (torch.bfloat16, "auto", 3e-2),
        (torch.float32, "int8", 2e-5),
    ],
)
def test_parts_of_decode_rows_drafts_and_prompts_are_as_the_whole(
    lender: LenderClient, dtype: torch.dtype, kv_dtype: str, within: float
) -> None:
    stage = Stage(lender, dtype, kv_dtype)
    sinks_H = random_rows(HEADS, seed=5, dtype=torch.float32)
    for variant in (
        AttentionVariant(SIZE**-0.5),
        AttentionVariant(SIZE**-0.5, 5.0),
        AttentionVariant(SIZE**-0.5, None, sinks_H),
    ):
        assert stage.differs(SPANS, variant) < within


def test_brought_keys_give_the_same(lender: LenderClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_attention, "is_sooner_pushed", lambda device, rows, *_: rows < 4)
    assert Stage(lender, torch.float32, "auto").differs(SPANS, AttentionVariant(0.2)) < 2e-5


def test_a_span_of_many_rows_has_its_keys_brought_to_a_card() -> None:
    card = torch.device("cuda")
    assert is_sooner_pushed(card, 1, 4, 16)
    assert not is_sooner_pushed(card, 128, 4, 500)
    assert is_sooner_pushed(card, 128, 4, 513)
    assert is_sooner_pushed(CPU, 128, 4, 500)


def test_a_block_that_is_put_again_is_the_new_one(lender: LenderClient) -> None:
    stage = Stage(lender, torch.float32, "auto")
    bytes_of_block = sum(rows.shape[1] for rows in stage.pool.block_rows())
    lender.put([2], np.full((1, bytes_of_block), 7, np.uint8))
    lender.drop([3])
    first = lender.take(1, [2, 4])
    wanted = torch.cat([rows[HERE + 4] for rows in stage.pool.block_rows_by_layer()[1]])
    assert (first[0] == 7).all()
    assert first[1].tolist() == wanted.tolist()


def test_a_lender_that_is_killed_is_lost_at_the_next_answer() -> None:
    client = start_lender()
    stage = Stage(client, torch.float32, "auto")
    stage.differs(SPANS[:1], AttentionVariant(1.0))
    assert client.process is not None
    client.process.kill()
    client.process.wait()
    with pytest.raises(LenderLostError):
        stage.differs(SPANS[:1], AttentionVariant(1.0))


def test_a_lender_ends_when_its_link_closes() -> None:
    client = start_lender()
    Stage(client, torch.float32, "auto")
    client.link.close()
    assert client.process is not None
    assert client.process.wait(timeout=30) == 0
