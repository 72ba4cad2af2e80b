"""Sketches of real stages: honest rings agree however they are cut, and a lie is found."""

import pytest
import torch

from molink.engine.model.row_sketches import DONE_MAX, PROMPTS_MAX, RowSketches
from molink_scheduler.audit import Disagreements, disagreement
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Span
from molink_scheduler.request import SamplingParams
from tests.engine.tiny_models import LAYERS, save_tiny
from tests.sweeps import swept
from tools.experiments.audits.in_process import InProcessRing, flip, leave_out

CUTS = ((0, LAYERS), (0, 3, LAYERS), (0, 2, 5, LAYERS))
KINDS = (
    {"dtype": "float32"},
    {"dtype": "float16", "codec": "int8"},
    {"dtype": "bfloat16", "codec": "fp8", "kv_dtype": "int8"},
)


def texts(count):
    random = torch.Generator().manual_seed(1)
    sizes = torch.randint(8, 120, (count,), generator=random).tolist()
    return [torch.randint(1, 160, (size,), generator=random).tolist() for size in sizes]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_tiny("llama", folder)
    return folder


@pytest.mark.parametrize(
    "kind", swept(KINDS, KINDS[0], KINDS[2]), ids=lambda kind: "-".join(kind.values())
)
def test_honest_rings_never_accuse(directory, kind):
    rings = [InProcessRing.load(directory, cuts, at, **kind) for at, cuts in enumerate(CUTS)]
    exact = InProcessRing.load(directory, (0, 4, LAYERS), 9)
    for text in texts(6):
        told = [exact.audit(text, 64), *(ring.audit(text, 17 + ring.number) for ring in rings)]
        found = [disagreement(one, other) for one in told for other in told]
        assert found == [None] * len(found)


def test_honest_rings_whose_rows_choose_experts_never_accuse(tmp_path):
    save_tiny("mixtral", tmp_path)
    kinds = (("float32", "raw"), ("bfloat16", "raw"), ("bfloat16", "int8"))
    rings = [
        InProcessRing.load(tmp_path, cuts, at, *kind)
        for at, (cuts, kind) in enumerate(zip(CUTS, kinds, strict=True))
    ]
    for ring in rings:
        ring.has_experts = True
    for text in texts(6):
        told = [ring.audit(text, 17 + ring.number) for ring in rings]
        assert [disagreement(one, other) for one in told for other in told] == [None] * 9


@pytest.mark.parametrize(
    ("lie", "kind"), [(flip, KINDS[1]), (leave_out, KINDS[0])], ids=["negated", "left out"]
)
def test_a_layer_that_lies_is_found_out_within_a_hundred_spans(directory, lie, kind):
    rings = [InProcessRing.load(directory, cuts, at, **kind) for at, cuts in enumerate(CUTS)]
    lie(rings[2].stages[1], 3)
    rings[2] = InProcessRing(2, rings[2].stages, kind["dtype"], kind.get("codec", "raw"))
    judge, spans, guilty = Disagreements(), 0, []
    for at, text in enumerate(texts(20)):
        told = [ring.audit(text, 23) for ring in rings]
        spans += sum(len(one.stages) for one in told)
        pairs = ((0, 1), (0, 2), (1, 2))
        found = [disagreement(told[one], told[other]) for one, other in pairs]
        guilty = judge.add([one for one in found if one is not None], float(at))
        if guilty:
            break
    assert guilty == ["ring 2 stage 1"] and spans <= 100


def prompt(*spans, admitted=()):
    sampling = SamplingParams(max_tokens=1)
    admissions = tuple(Admission(one, tokens, tokens + 1, sampling) for one, tokens in admitted)
    whole = tuple(Span(request_id, start, end, False) for request_id, start, end in spans)
    return Batch(1, PREFILL, -1, whole, admissions)


DECODED = Batch(2, DECODE, 0, (Span(5, 9, 10, True),))


@pytest.fixture
def sketched(directory):
    ring = InProcessRing.load(directory, (0, LAYERS))
    (stage,), (sketches,) = ring.stages, ring.sketches
    return stage, sketches


def compute(sketches, stage, batch, tokens=(5,)):
    sketches.begins(batch)
    stage.step(batch, [*tokens] * batch.tokens if len(tokens) == 1 else tokens)
    sketches.ended(batch, 7.0)


def test_a_prompt_sums_to_the_same_in_parts_and_beside_others(sketched):
    stage, sketches = sketched
    compute(sketches, stage, prompt((1, 0, 12), admitted=[(1, 12)]))
    compute(sketches, stage, prompt((2, 0, 5), (3, 0, 9), admitted=[(2, 12), (3, 9)]))
    compute(sketches, stage, prompt((2, 5, 12)))
    (second, third, first) = sketches.done()
    wanted = [(7.0, 1, 12), (7.0, 3, 9), (7.0, 2, 12)]
    assert [one[:3] for one in (first, third, second)] == wanted
    assert second[3] == pytest.approx(first[3], abs=1e-3)


def test_decode_between_two_layers_of_a_prompt_changes_nothing(sketched):
    stage, sketches = sketched
    compute(sketches, stage, prompt((1, 0, 12), admitted=[(1, 12)]))
    compute(sketches, stage, prompt((5, 0, 9), admitted=[(5, 9)]))
    whole = prompt((2, 0, 12), admitted=[(2, 12)])
    sketches.begins(whole)
    done = []

    def interrupt():
        if not done:
            done.append(True)
            compute(sketches, stage, DECODED)

    stage.step(whole, [5] * 12, interrupt=interrupt)
    sketches.ended(whole, 8.0)
    second, _, first = sketches.done()
    assert done and second[3] == pytest.approx(first[3], abs=1e-3)


def test_what_was_not_seen_whole_is_not_reported(sketched):
    stage, sketches = sketched
    compute(sketches, stage, prompt((1, 0, 6), admitted=[(1, 12)]))
    halved = prompt((1, 6, 12))
    sketches.begins(halved)
    stage.step(prompt((1, 6, 9)), [5] * 3)
    stage.step(prompt((1, 9, 12)), [5] * 3)
    sketches.ended(halved, 7.0)
    compute(sketches, stage, prompt((2, 0, 6), admitted=[(2, 12)]))
    sketches.begins(prompt((2, 8, 12)))
    sketches._products = {place: torch.zeros(4, 4) for place in range(LAYERS + 1)}
    sketches.ended(prompt((2, 8, 12)), 7.0)
    assert sketches.done() == []


def test_what_is_kept_is_bounded(directory):
    stage = InProcessRing.load(directory, (0, 1, LAYERS)).stages[0]
    sketches = RowSketches([(stage.model, stage.layers)], stage.hidden_size, stage.device)
    for one in range(2 * PROMPTS_MAX):
        sketches.begins(prompt((one, 0, 1), admitted=[(one, 5)]))
    assert len(sketches._prompts) == PROMPTS_MAX
    for one in range(2 * DONE_MAX):
        batch = prompt((one, 0, 1), admitted=[(one, 1)])
        sketches.begins(batch)
        sketches._products = {place: torch.zeros(1, 4) for place in range(2)}
        sketches.ended(batch, 1.0)
    assert len(sketches.done()) == DONE_MAX
