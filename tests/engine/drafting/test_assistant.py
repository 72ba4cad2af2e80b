"""Assistants of Gemma 4 at the tail against the library's candidate generator."""

from dataclasses import replace
from random import Random

import pytest

from molink.engine.drafting import assistant as assistants
from molink.engine.layers import kept_attention
from molink.engine.local_engine import LocalEngine
from molink.stage_protocol.draft_model import DraftModel
from molink.stage_protocol.messages import LoadStage, StageWork
from molink_scheduler.batch import KeptState, Release
from tests.engine.drafting.assistant_checkpoints import SETTINGS, SOURCES, save_assisted
from tests.engine.drafting.tail_checkpoints import change_tensors
from tests.engine.drafting.tail_ring import Request, TailRing, drafting_stages
from tests.engine.drafting.test_tail_layer import DRAWN, GREEDY, requests_of
from tests.engine.step.test_lending import lent
from tests.engine.tiny_models import LAYERS

ORDERED = dict(use_ordered_embeddings=True, num_centroids=16, centroid_intermediate_top_k=4)
WIDE = dict(sliding_window=100)
"""A window that is no class of its own: its layers keep all tokens."""


class AssistedRing(TailRing):
    def due(self, one, wants):
        """Drafts of the library; a request has them behind its last block, too."""
        return self.oracle.drafts(one.known, one.prompt, one.params, wants)


def assisted_stages(directory, cuts, **options):
    return drafting_stages(directory, cuts, assistant=directory / "assistant", **options)


@pytest.fixture(scope="module", params=[*SETTINGS, "ordered"])
def made(request, tmp_path_factory):
    """The last layers are cut as near to the end as they may be."""
    directory = tmp_path_factory.mktemp(request.param)
    target = request.param if request.param in SETTINGS else "plain"
    oracle = save_assisted(target, directory, **(ORDERED if request.param == "ordered" else {}))
    return oracle, assisted_stages(directory, (0, SOURCES[target], LAYERS))


def test_drafts_are_the_librarys(made):
    """Greedy and drawn, of several users in a step, in prompts and behind wrong drafts."""
    oracle, stages = made
    ring = AssistedRing(stages, oracle, Random(1))
    ring.play(requests_of(ring.random, 3), 9)
    assert ring.drafted > 20


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain")
    return save_assisted("plain", directory), assisted_stages(directory, (0, LAYERS))


def play(plain, requests: int = 3) -> AssistedRing:
    oracle, stages = plain
    for request_id in range(requests):
        stages[0].release(Release(request_id))
    ring = AssistedRing(stages, oracle, Random(2))
    ring.play(requests_of(ring.random, requests), 6)
    return ring


def test_it_keeps_nothing_and_takes_no_kv(plain, tmp_path):
    stage = play(plain).tail
    assert sorted({*stage.kv_memory.layers, *stage.windows.layers}) == list(range(LAYERS))
    (without,) = drafting_stages(stage.description.directory, (0, LAYERS), drafts=False)
    assert stage.kv_token_bytes == without.kv_token_bytes
    assert stage.weights_bytes > without.weights_bytes


@pytest.mark.parametrize("window", ["narrow", "wide"])
@pytest.mark.parametrize("cuts", [(0, LAYERS), (0, 4, LAYERS)])
def test_a_request_that_begins_with_cached_blocks_has_the_same_drafts(window, cuts, tmp_path):
    of_both = WIDE if window == "wide" else {}
    oracle = save_assisted("plain", tmp_path, of_both=of_both)
    ring = AssistedRing(assisted_stages(tmp_path, cuts), oracle, Random(3))
    assert bool(ring.tail.windows.layers) == (window == "narrow")
    text = [ring.random.randrange(3, 160) for _ in range(45)]
    ring.prompts((first := Request(1, text[:40], 40, GREEDY), 40, 6))
    kept = (KeptState(1, 32, 0),)
    for stage in ring.stages:
        stage.kv.keep(1, 0, range(50, 52))
        if window == "narrow":
            stage.states.keep(kept)
            stage.windows.computed((), kept)
    ring.release(first)
    for number, (prompt, params) in enumerate([(text, GREEDY), (text[:33], DRAWN)]):
        again = Request(7 + number, list(prompt), len(prompt), params, start=32)
        snapshot = {"snapshot": 0} if window == "narrow" else {}
        ring.prompts((again, len(prompt), 6), cached=((50, 2),), **snapshot)
        assert again.guessed
        ring.play([again], 4, preempts=False)


def test_requests_that_lent_blocks_have_the_same_drafts(tmp_path):
    oracle = save_assisted("plain", tmp_path)
    ring = AssistedRing(assisted_stages(tmp_path, (0, LAYERS), kv_tokens=192), oracle, Random(4))
    lender = lent(ring.tail, 12)
    texts = [[ring.random.randrange(3, 160) for _ in range(size)] for size in (90, 70)]
    requests = [Request(n, text, len(text), GREEDY) for n, text in enumerate(texts)]
    ring.play(requests, 12, preempts=False)
    assert lender.pushed and ring.drafted > 10


def test_one_that_fails_leaves_the_tokens_as_they_are(plain, monkeypatch, caplog):
    oracle, stages = plain
    ring = AssistedRing(stages, oracle, Random(6))
    one = Request(0, [7, 8, 9], 3, GREEDY)
    ring.prompts((one, 3, 2))

    def fail(*_):
        raise KeyError("no such layer")

    monkeypatch.setattr(type(stages[0].drafter), "_rows", fail)
    monkeypatch.setattr(ring, "due", lambda one, wants: [])
    for _ in range(3):
        ring.decode((one, [], 3))
    assert sum("the tail drafts no more" in one for one in caplog.messages) == 1
    assert len(one.known) == 7
    ring.release(one)
    stages[0].drafter.failure = None


def without(lost):
    return lambda stored: {name: tensor for name, tensor in stored.items() if name != lost}


LOST = "post_projection.weight"


@pytest.mark.parametrize(
    ("cuts", "settings", "lost", "said"),
    [
        ((0, 5, LAYERS), {}, "", "reads the keys and values of layers 4 to 6"),
        ((0, LAYERS), dict(backbone_hidden_size=96), "", "made for a model of width 96"),
        ((0, LAYERS), {}, LOST, f"its drafting layer lacks {LOST}"),
        ((0, LAYERS), dict(vocab_size=161), "", "it has 161 words where the model has 160"),
        ((0, LAYERS), dict(num_key_value_heads=4), "", "read 4 heads of 16 numbers"),
        ((0, LAYERS), dict(head_dim=24), "", "its heads have 24 numbers"),
    ],
)
def test_one_that_cannot_draft_is_named_and_costs_no_ring(
    cuts, settings, lost, said, tmp_path, caplog
):
    of_text = {name: one for name, one in settings.items() if name != "backbone_hidden_size"}
    own = {name: one for name, one in settings.items() if name not in of_text}
    save_assisted("plain", tmp_path, of_text=of_text, **own)
    if lost:
        change_tensors(tmp_path / "assistant", without(lost))
    tail = assisted_stages(tmp_path, cuts)[-1]
    assert tail.drafter is None
    (sentence,) = [one for one in caplog.messages if "without drafts of its tail" in one]
    assert said in sentence


# -- what the comparison must see -----------------------------------------------------------------


def test_the_right_one_passes(plain):
    assert play(plain).drafted > 10


def a_key_more(number, rows, start, keys, blocks, span=assistants.RaggedSpan):
    """Over the key that stands where the last token will, as the library leaves it in."""
    return span(number, rows, start, keys + 1, [*blocks, 0])


def a_place_before(stage, asked, ids, step=assistants._step):
    for one in asked:
        one.keys -= 1
    return step(stage, asked, ids)


def row_of_another(stage, *given, asked=assistants._asked):
    for one, token_id in asked(stage, *given):
        one.row = max(0, one.row - 1)
        yield one, token_id


def a_shorter_window(*given, rows=kept_attention.LayerRows):
    made = rows(*given)
    return replace(made, window=made.window and made.window - 1)


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (assistants, "RaggedSpan", a_key_more),
        (assistants, "_step", a_place_before),
        (assistants, "_asked", row_of_another),
        (kept_attention, "LayerRows", a_shorter_window),
    ],
)
def test_one_that_is_wrong_is_seen(place, name, wrong, plain, monkeypatch):
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(AssertionError):
        play(plain)


def test_hidden_states_that_passed_no_norm_are_seen(plain, monkeypatch):
    guessed = assistants.Assistant._guessed

    def unscaled(self, stage, asked, seen_TD):
        return guessed(self, stage, asked, 3 * seen_TD)

    monkeypatch.setattr(assistants.Assistant, "_guessed", unscaled)
    with pytest.raises(AssertionError):
        play(plain)


@pytest.mark.parametrize("refused", ["", "no room."])
def test_an_engine_loads_the_one_that_its_stage_is_told_of(refused, tmp_path):
    save_assisted("plain", tmp_path)
    drafter = DraftModel(str(tmp_path / "assistant"), 3, "assistant", 1, refused, reads_from=4)
    work = StageWork((4, LAYERS), "cpu", "float32", 64, drafts=True)
    prepared = LocalEngine().prepare(
        LoadStage(str(tmp_path), work, "127.0.0.1", drafter=drafter), lambda fraction: None
    )
    assert prepared.loaded.drafts == (not refused)
