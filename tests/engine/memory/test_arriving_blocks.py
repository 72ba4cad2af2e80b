"""A step that begins with cached KV waits for each layer of it, and others pass."""

import pytest
import torch

from molink.errors import StageError
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.tiny_models import LAYERS, save_tiny

SAMPLING = SamplingParams(max_tokens=4, temperature=0.0)
PROMPT = [3 + 7 * at % 90 for at in range(40)]
CACHED_TOKENS = 32


@pytest.fixture
def stage(tmp_path):
    save_tiny("llama", tmp_path)
    return cpu_stage(tmp_path, range(LAYERS - 1), kv_tokens=256)


def step(stage, request_id, start, end, interrupt=None, cached=(), batch_class=BatchClass.PREFILL):
    admissions = ()
    if batch_class is BatchClass.PREFILL:
        admissions = (Admission(request_id, 40, 44, SAMPLING, cached=cached),)
    span = Span(request_id, start, end, False)
    batch = Batch(1, batch_class, 0, (span,), admissions)
    return stage.step(batch, PROMPT[start:end], None, interrupt).hidden_TD


def put_away(stage):
    """What is cached of request 1 goes, and nothing of it can be read: rows of each layer."""
    stage.kv.keep(1, 0, range(70, 72))
    places = stage.kv.places([70, 71])
    layers = stage.kv_memory.block_rows_by_layer()
    rows = {layer: [one[places].clone() for one in some] for layer, some in layers.items()}
    stage.release(Release(1))
    stage.kv.drop([70, 71])
    with torch.inference_mode():
        for tensor in stage.kv_memory.block_rows():
            tensor.fill_(255)  # NaN in all formats of floats.
    return rows


def test_each_layer_is_read_once_it_is_there_and_decode_passes(stage):
    whole_TD = step(stage, 1, 0, 40)
    rows = put_away(stage)
    step(stage, 3, 0, 5)
    arriving = stage.moving.bring_back(stage.kv, [80, 81])
    missing = list(rows)
    decoded = []

    def fill_one_and_decode() -> None:
        at = 5 + len(decoded)
        decoded.append(step(stage, 3, at, at + 1, batch_class=BatchClass.DECODE))
        if len(decoded) % 2 or not missing:
            return  # The step under way asks again until its layer is there.
        layer = missing.pop(0)
        tensors = stage.kv_memory.block_rows_by_layer()[layer]
        for tensor, part in zip(tensors, rows[layer], strict=True):
            tensor[arriving.places] = part
        arriving.layer_is_there(layer)
        if not missing:
            arriving.end()

    out_TD = step(stage, 2, CACHED_TOKENS, 40, fill_one_and_decode, ((80, 2),))
    assert len(decoded) >= 2 * len(rows)
    assert all(torch.isfinite(one).all() for one in decoded)
    torch.testing.assert_close(out_TD, whole_TD[CACHED_TOKENS:], rtol=1e-4, atol=1e-4)


def test_what_will_never_be_there_ends_the_step(stage):
    step(stage, 1, 0, 40)
    put_away(stage)
    arriving = stage.moving.bring_back(stage.kv, [80, 81])
    arriving.end(ValueError("the device has no room"))
    with pytest.raises(StageError, match="the device has no room"):
        step(stage, 2, CACHED_TOKENS, 40, None, ((80, 2),))
