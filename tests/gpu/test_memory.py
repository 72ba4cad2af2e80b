"""Steps on a card that is full, and cached KV that leaves a card and comes back."""

import queue

import pytest
import torch

from molink.engine.memory.cached_blocks import ArrivingTogether, BlocksOfParts
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.engine.step.card_retry import TensorInputs, computed
from molink.errors import DeviceMemoryError
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import Fetched
from molink_scheduler.kv.tiers import FILE, HOST
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.tiny_models import LAYERS, save_tiny
from tests.gpu.device import HAS_CARD, needs_card

SAMPLING = SamplingParams(max_tokens=1, temperature=0.0)
ROWS = 2048 if HAS_CARD else 64
WIDE = {"hidden_size": 512, "intermediate_size": 8192, "max_position_embeddings": 2 * ROWS}
"""So that what a step takes is more than what the allocator rounds."""

DIFFERENCE_MAX = 2e-5
"""Of rows: halves of a step are summed in another order."""


def prompt(request_id: int, start: int = 0, cached=()) -> Batch:
    admission = Admission(request_id, ROWS, ROWS, SAMPLING, cached=cached)
    return Batch(0, PREFILL, -1, (Span(request_id, start, ROWS, False),), (admission,))


def token_ids(start: int = 0) -> list[int]:
    return [3 + 7 * at % 90 for at in range(start, ROWS)]


@pytest.fixture
def head(device, tmp_path):
    save_tiny("llama", tmp_path, **WIDE)
    options = {"device": str(device), "kv_tokens": 4 * ROWS}
    return cpu_stage(tmp_path, range(LAYERS - 1), **options)


@needs_card
def test_a_step_that_finds_its_card_full_is_computed_in_halves(head):
    wanted_TD = head.step(prompt(1), token_ids()).hidden_TD.clone()
    head.release(Release(1))
    head.card.forget_peak()
    head.step(prompt(2), token_ids())
    head.release(Release(2))
    step_bytes = head.card.peak_bytes - head.card.held_bytes
    head.card.return_freed()
    try:
        head.card.hold_to(head.card.held_bytes + int(0.8 * step_bytes))
        out_TD = computed(head, TensorInputs(prompt(3), token_ids(), None)).hidden_TD
        assert (out_TD - wanted_TD).abs().max() <= DIFFERENCE_MAX * wanted_TD.abs().max()
        head.release(Release(3))
        head.card.return_freed()
        head.card.hold_to(head.card.held_bytes + int(0.1 * step_bytes))
        with pytest.raises(DeviceMemoryError, match="ran out of memory in a step of 2048 rows"):
            computed(head, TensorInputs(prompt(4), token_ids(), None))
    finally:
        head.card.hold_to(head.card.total_bytes)
    head.release(Release(4))
    again_TD = head.step(prompt(5), token_ids()).hidden_TD
    assert torch.equal(again_TD, wanted_TD), "a card goes on after it was full"


@pytest.mark.parametrize("tier", [HOST, FILE])
def test_what_was_cached_comes_back_layer_by_layer(tier, head, tmp_path):
    """Rows behind cached blocks are those of a prompt that was computed whole, though the device's
    own copy is gone before."""
    wanted_TD = head.step(prompt(1), token_ids()).hidden_TD.clone()
    count = ROWS // BLOCK_TOKENS - 1
    numbers, start = range(70, 70 + count), count * BLOCK_TOKENS
    head.kv.keep(1, 0, numbers)
    packed = PackedBlocks((head.kv_memory,))
    answers: queue.Queue[Fetched] = queue.Queue()
    (tmp_path / "cache").mkdir()
    size = 2 * count * packed.block_bytes
    store = CacheStore(
        CacheRoom(size, size, str(tmp_path / "cache")), packed.block_bytes, answers.put
    )
    store.start(BlocksOfParts([head]), head.kv.blocks_total)
    leaving = LeavingBlocks(packed, tuple(numbers), [head.kv.places(numbers)])
    store.put(tier, numbers, leaving)
    head.release(Release(1))
    head.kv.drop(numbers)
    leaving.vacate(0, set(leaving.places[0]), 10**9)
    with torch.inference_mode():
        for rows_BW in head.kv_memory.block_rows():
            rows_BW.fill_(255)  # NaN in all formats of floats.
    arriving = head.moving.bring_back(head.kv, numbers)
    store.fetch(0, ArrivingTogether(packed, [arriving]))
    assert answers.get(timeout=60).blocks == count
    out_TD = head.step(prompt(2, start, ((70, count),)), token_ids(start)).hidden_TD
    difference = (out_TD - wanted_TD[start:]).abs().max()
    assert difference <= DIFFERENCE_MAX * wanted_TD.abs().max()
