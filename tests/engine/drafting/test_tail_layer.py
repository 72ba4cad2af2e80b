"""The drafting layer at the tail against the library's own, on tiny checkpoints of each family."""

from random import Random

import pytest

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.layer_sizes import draft_layer_of
from molink.engine.drafting import packaging
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.engine.model.weights import held_bytes
from molink_scheduler.batch import PREFILL, Admission, Batch, Span
from molink_scheduler.request import SamplingParams
from tests.engine.drafting.tail_checkpoints import (
    FAMILIES,
    LAYERS,
    change_config,
    change_tensors,
    save_with_layer,
)
from tests.engine.drafting.tail_ring import Request, TailRing, drafting_stages
from tests.engine.model.quantized.checkpoints import is_linear
from tests.engine.model.quantized.formats import FORMATS
from tests.engine.tiny_models import save_tiny

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
DRAWN = SamplingParams(max_tokens=64, temperature=0.9, seed=77, top_p=0.9)
PENALISED = SamplingParams(
    max_tokens=64, temperature=0.8, seed=5, frequency_penalty=0.7, repetition_penalty=1.2
)


@pytest.fixture(scope="module", params=list(FAMILIES))
def made(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    oracle = save_with_layer(request.param, directory)
    return oracle, {
        cuts: drafting_stages(directory, cuts) for cuts in ((0, LAYERS), (0, 2, LAYERS))
    }


def requests_of(random: Random, count: int) -> list[Request]:
    params = [GREEDY, DRAWN, PENALISED]
    sizes = [random.randint(1, 40) for _ in range(count)]
    prompts = [[random.randrange(3, 160) for _ in range(size)] for size in sizes]
    return [
        Request(n, prompt, len(prompt), params[n % len(params)]) for n, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("cuts", [(0, LAYERS), (0, 2, LAYERS)])
def test_drafts_are_the_librarys(made, cuts):
    oracle, stages = made
    ring = TailRing(stages[cuts], oracle, Random(len(cuts)))
    ring.play(requests_of(ring.random, 3), 10)
    assert ring.drafted > 20


ATTENTION_ALONE = ("glm4_moe", "glm4_moe_lite", "deepseek_v3")


@pytest.mark.parametrize("family", ATTENTION_ALONE)
@pytest.mark.parametrize("cuts", [(0, LAYERS), (0, 2, LAYERS)])
def test_a_request_that_begins_with_cached_blocks_has_the_same_drafts(family, cuts, tmp_path):
    oracle = save_with_layer(family, tmp_path)
    ring = TailRing(drafting_stages(tmp_path, cuts), oracle, Random(3))
    text = [ring.random.randrange(3, 160) for _ in range(45)]
    first = Request(0, text[:40], 40, GREEDY)
    ring.play([first], 8, preempts=False)
    first = Request(1, text[:40], 40, GREEDY)
    ring.prompts((first, 40, 6))
    for stage in ring.stages:
        stage.kv.keep(1, 0, range(50, 52))
    ring.release(first)
    for number, (prompt, params) in enumerate([(text, GREEDY), (text[:35], DRAWN)]):
        again = Request(7 + number, list(prompt), len(prompt), params, start=32)
        ring.prompts((again, len(prompt), 6), cached=((50, 2),))
        assert again.guessed
        ring.play([again], 6, preempts=False)


def test_a_cached_block_that_another_token_follows_makes_one_row_of_the_layer_strange(tmp_path):
    oracle = save_with_layer("glm4_moe", tmp_path)
    ring = TailRing(drafting_stages(tmp_path, (0, LAYERS)), oracle, Random(4))
    text = [ring.random.randrange(3, 160) for _ in range(40)]
    first = Request(0, text, 40, GREEDY)
    ring.prompts((first, 40, 0))
    ring.tail.kv.keep(0, 0, range(50, 52))
    other = [*text[:32], (text[32] + 1) % 160, 9, 8]
    again = Request(1, other, len(other), GREEDY, start=32, strange={31: text[32]})
    ring.prompts((again, len(other), 6), cached=((50, 2),))
    ring.play([again], 6, preempts=False)
    ring.release(first)


def test_no_draft_of_an_answer_that_nothing_is_wanted_of(made):
    oracle, stages = made
    ring = TailRing(stages[0, LAYERS], oracle, Random(5))
    one = Request(0, [7, 8, 9], 3, GREEDY)
    ring.prompts((one, 3, 0))
    for _ in range(4):
        ring.decode((one, [], 0))
    ring.decode((one, [], 4))
    assert len(one.guessed) == 4
    ring.release(one)


def test_a_layer_that_fails_leaves_the_tokens_as_they_are(tmp_path, monkeypatch, caplog):
    oracle = save_with_layer("glm4_moe", tmp_path)
    ring = TailRing(drafting_stages(tmp_path, (0, 2, LAYERS)), oracle, Random(6))
    one = Request(0, [7, 8, 9], 3, GREEDY)
    ring.prompts((one, 3, 2))

    def fail(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr(type(ring.tail.drafter), "_computed", fail)
    monkeypatch.setattr(ring, "due", lambda one, wants: [])
    for _ in range(3):
        ring.decode((one, [], 3))
    said = "the tail drafts no more until the stage starts anew: no room"
    assert caplog.messages.count(said) == 1
    assert len(one.known) == 7


def test_a_model_without_such_a_layer_is_served_without_drafts(tmp_path, caplog):
    save_tiny("llama", tmp_path)
    tail = drafting_stages(tmp_path, (0, 3, 7))[-1]
    assert tail.drafter is None
    assert "has no layer that drafts" in caplog.text


def test_half_a_layer_is_named_and_drafts_nothing(tmp_path, caplog):
    save_with_layer("qwen3_5_text", tmp_path)
    change_tensors(
        tmp_path, lambda stored: {n: t for n, t in stored.items() if n != "mtp.fc.weight"}
    )
    assert drafting_stages(tmp_path, (0, LAYERS))[-1].drafter is None
    assert "its drafting layer lacks mtp.fc.weight" in caplog.text


def test_a_layer_of_an_unknown_family_drafts_nothing(tmp_path, caplog, monkeypatch):
    save_with_layer("glm4_moe", tmp_path)
    monkeypatch.delitem(packaging.FED_BEHIND_NORM, "glm4_moe")
    assert drafting_stages(tmp_path, (0, LAYERS))[-1].drafter is None
    assert "what the drafting layer of glm4_moe is fed is not known here" in caplog.text


def test_its_kv_and_weights_are_counted(tmp_path):
    save_with_layer("glm4_moe", tmp_path)
    (plain,) = drafting_stages(tmp_path, (0, LAYERS), drafts=False)
    (drafting,) = drafting_stages(tmp_path, (0, LAYERS))
    assert not plain.takes_token_ids and drafting.takes_token_ids
    assert drafting.kv_token_bytes * LAYERS == plain.kv_token_bytes * (LAYERS + 1)
    assert drafting.weights_bytes == plain.weights_bytes + held_bytes(drafting.drafter.model)
    assert sorted(drafting.kv_memory.block_rows_by_layer()) == list(range(LAYERS + 1))


def quantize(directory, form, own_layer: str) -> list[int]:
    """Write the linears of a checkpoint in one format, its layer that drafts (what begins with
    `own_layer`) in bfloat16, if that is not empty. Returns the drafts of the same numbers."""
    own, exact = {}, {}

    def written(stored):
        for key, tensor in stored.items():
            if own_layer and key.startswith(own_layer):
                own[key] = exact[key] = tensor.bfloat16()
            elif is_linear(key, tensor) and len(tensor) >= 16:
                parts, exact[key] = form.write(tensor)
                stem = key.removesuffix(".weight")
                own.update({stem + end: one.contiguous() for end, one in parts.items()})
            else:
                own[key] = exact[key] = tensor
        return exact

    change_tensors(directory, written)
    plain = first_drafts(directory)
    change_tensors(directory, lambda _: own)
    change_config(directory, quantization_config=form.scheme)
    return plain


def test_a_quantized_layer_drafts_as_its_numbers_do(tmp_path):
    save_with_layer("glm4_moe", tmp_path)
    plain = quantize(tmp_path, FORMATS["fp8 block"], "")
    assert len(plain) == 6 and first_drafts(tmp_path) == plain


@pytest.mark.parametrize(
    "family, own_layer", [("qwen3_5_text", "mtp."), ("glm4_moe", f"model.layers.{LAYERS}.")]
)
@pytest.mark.parametrize("form", ["pack-quantized", "awq", "gptq", "fp8 block", "int8 channel"])
def test_a_layer_in_16_bits_drafts_beside_a_quantized_model(family, own_layer, form, tmp_path):
    """Whatever the config declares, which names no part that stays plain."""
    save_with_layer(family, tmp_path)
    plain = quantize(tmp_path, FORMATS[form], own_layer)
    assert len(plain) == 6 and first_drafts(tmp_path) == plain
    layer = draft_layer_of(open_checkpoint(str(tmp_path)))
    assert layer.objection == ""
    (drafting,) = drafting_stages(tmp_path, (0, LAYERS))
    kinds = {type(one) for one in drafting.drafter.model.modules() if hasattr(one, "weight")}
    assert not any(issubclass(one, QuantizedLinear) for one in kinds)
    assert held_bytes(drafting.drafter.model) == pytest.approx(layer.held_bytes(4), rel=1e-3)


def first_drafts(directory) -> list[int]:
    """Drafts behind a prompt, which nobody judges."""
    stages, text = drafting_stages(directory, (0, 2, LAYERS)), [5, 9, 23, 77, 120, 33, 8]
    admission = Admission(0, len(text), 100, GREEDY)
    batch = Batch(1, PREFILL, -1, (Span(0, 0, len(text), True, wants=6),), (admission,))
    inner = stages[0].step(batch, text)
    ((_, drafts),) = stages[1].step(batch, inner.token_ids, inner.hidden_TD).drafts
    return list(drafts)
