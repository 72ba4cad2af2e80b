"""A model that drafts for itself is always right, whatever it was told wrongly before."""

import random
from dataclasses import replace

import pytest

from molink.engine.local_engine import LocalEngine
from molink.engine_protocol.values import StepInputs
from molink.errors import StageError
from molink.stage.drafting.model_drafter import PIECE_TOKENS, SLOW_S, ModelDrafter
from molink.stage_protocol.messages import LoadStage, StageWork
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.drafting.asks import DraftAsk
from molink_scheduler.drafting.widths import PROBE_ROUNDS
from molink_scheduler.request import SamplingParams
from tests.engine.tiny_models import LAYERS, save_tiny

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
SEEDED = SamplingParams(max_tokens=64, temperature=0.9, top_p=0.9, seed=7)
PENALISED = SamplingParams(
    max_tokens=64,
    temperature=0.0,
    frequency_penalty=1.5,
    repetition_penalty=1.4,
    min_tokens=30,
    stop_token_ids=tuple(range(0, 160, 2)),
)
PROMPT = [5, 17, 23, 8, 40, 2, 9, 11, 4, 33, 21, 7]


def engine_of(directory, kv_tokens=1024):
    engine = LocalEngine()
    work = StageWork((0, LAYERS), "cpu", "float32", kv_tokens)
    return engine, engine.prepare(LoadStage(str(directory), work, "127.0.0.1"), lambda _: None)


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def model(request, tmp_path_factory):
    """An engine of whole layers, and one of which some have a window."""
    directory = tmp_path_factory.mktemp("drafter")
    save_tiny(request.param, directory)
    engine, prepared = engine_of(directory)
    assert (prepared.loaded.state_slots is None) == (request.param == "llama")
    return engine, prepared


@pytest.fixture
def drafter(model):
    made = ModelDrafter("tiny", *model)
    yield made
    made.clear()
    assert model[0].executor.kv.tokens_used == 0


def drafts_of(drafter, *asks):
    """What it drafts for these, and in how many steps."""
    for ask in asks:
        drafter.learn(ask)
    waiting = {ask.request_id for ask in asks if drafter.begin(ask)}
    made, steps = {}, 0
    while waiting - made.keys():
        made |= drafter.step()
        steps += 1
    return made, steps


def ask(request_id, start, tokens, sampling=GREEDY, width=4):
    return DraftAsk(request_id, start, tuple(tokens), sampling, width)


ORACLE = 100
"""Request by which the model is asked alone."""


def nothing():
    pass


def drawn_behind(model, text, sampling, tokens):
    """What the model draws behind a text, each token of a span that holds all."""
    known, engine, prompt_tokens = list(text), model[0], len(PROMPT)
    for _ in range(tokens):
        told = tuple(known[:prompt_tokens]), tuple(known[prompt_tokens:])
        admission = Admission(ORACLE, prompt_tokens, 256, sampling, *told)
        span = Span(ORACLE, 0, len(known), samples=True)
        batch = Batch(0, PREFILL, -1, (span,), (admission,))
        (drawn,) = engine.step(StepInputs(batch, known), nothing, nothing).drawn
        known.append(drawn.token_id)
    engine.release(Release(ORACLE), wiped=False)
    return known[len(text) :]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, PENALISED], ids=["greedy", "seeded", "pen"])
def test_every_draft_is_what_the_model_itself_draws(model, drafter, sampling):
    """Wherever the text goes on: as guessed, cut short, or with words of another."""
    known, start = [*PROMPT, *drawn_behind(model, PROMPT, sampling, 1)], 0
    chosen = random.Random(3)
    for _ in range(8):
        width = chosen.randint(1, 6)
        made, steps = drafts_of(drafter, ask(1, start, known[start:], sampling, width))
        assert steps == width
        right = drawn_behind(model, known, sampling, width)
        assert list(made[1]) == right
        start = len(known)
        taken = chosen.randint(0, width)
        others = [chosen.randrange(3, 150) for _ in range(chosen.randint(1, 4))]
        known += [*right[:taken], *others]


def test_users_are_drafted_for_together_each_as_if_alone(model, drafter):
    prompts = {1: PROMPT, 2: PROMPT[3:], 3: PROMPT[::-1]}
    samplings = {1: GREEDY, 2: SEEDED, 3: replace(SEEDED, seed=8)}
    asks = [ask(i, 0, prompts[i], samplings[i], width=2 + i) for i in prompts]
    made, steps = drafts_of(drafter, *asks)
    assert steps == 5
    for i, drafts in made.items():
        alone, _ = drafts_of(ModelDrafter("alone", *model), replace(asks[i - 1], request_id=50 + i))
        assert alone[50 + i] == drafts
        model[0].release(Release(50 + i), wiped=False)


def test_a_long_prompt_is_computed_in_pieces_while_nobody_asks(model, drafter):
    chosen = random.Random(5)
    known = [chosen.randrange(3, 150) for _ in range(3 * PIECE_TOKENS + 5)]
    first = ask(1, 0, known)
    assert drafts_of(drafter, first) == ({}, 0)
    steps = 0
    while drafter.is_busy:
        made, depths = drafts_of(drafter, ask(2, 0, PROMPT, width=1))  # Who asks goes first.
        assert len(made[2]) == depths == 1
        assert drafter.step() == {}
        steps += 1
    assert steps == 2  # The last 64 go with the first draft.
    made, _ = drafts_of(drafter, ask(1, len(known), [9]))
    assert list(made[1]) == drawn_behind(model, [*known, 9], GREEDY, 4)


def test_who_was_not_asked_about_for_rounds_is_drafted_for_at_once(model, drafter):
    """The rounds between two tries where drafts are not worth it, and a try that was right."""
    known = [*PROMPT, *drawn_behind(model, PROMPT, GREEDY, 1)]
    right, start = drafts_of(drafter, ask(1, 0, known, width=1))[0][1], len(known)
    for _ in range(3):
        chosen = random.Random(start)
        known += [*right, *(chosen.randrange(3, 150) for _ in range(PROBE_ROUNDS))]
        made, steps = drafts_of(drafter, ask(1, start, known[start:], width=1))
        assert steps == 1 and not drafter.is_busy
        start, right = len(known), made[1]
        assert list(right) == drawn_behind(model, known, GREEDY, 1)


def test_a_request_without_a_window_of_its_own_is_not_drafted_for(tmp_path):
    save_tiny("gemma3_text", tmp_path)
    engine, prepared = engine_of(tmp_path)
    one_slot = replace(prepared, loaded=replace(prepared.loaded, state_slots=1))
    drafter = ModelDrafter("windows", engine, one_slot)
    assert len(drafts_of(drafter, ask(1, 0, PROMPT))[0][1]) == 4
    assert drafts_of(drafter, ask(2, 0, PROMPT)) == ({}, 0)
    drafter.forget(1)
    assert len(drafts_of(drafter, ask(2, 0, PROMPT))[0][2]) == 4


def test_who_finds_no_room_is_not_drafted_for_and_pushes_nobody_out(tmp_path):
    save_tiny("llama", tmp_path)
    drafter = ModelDrafter("small", *engine_of(tmp_path, kv_tokens=64))
    made, _ = drafts_of(drafter, ask(1, 0, PROMPT))
    assert len(made[1]) == 4
    made, _ = drafts_of(drafter, ask(2, 0, [*PROMPT, *PROMPT, *PROMPT]))
    assert made == {}
    made, _ = drafts_of(drafter, ask(1, 12, [9]))
    assert len(made[1]) == 4
    made, _ = drafts_of(drafter, ask(2, 36, [9]))
    assert made == {}
    drafter.forget(1)
    made, _ = drafts_of(drafter, ask(2, 0, PROMPT))
    assert len(made[2]) == 4


def test_a_text_near_the_models_length_is_not_drafted_for(model, drafter):
    assert drafts_of(drafter, ask(1, 0, [5] * 250)) == ({}, 0)
    assert not drafter.is_busy


class Broken:
    """An engine that answers with what is no number, or late."""

    def __init__(self, engine, clock=None, lost=False):
        self.engine, self.clock, self.lost = engine, clock, lost

    def step(self, *given):
        result = self.engine.step(*given)
        if self.lost:
            return replace(result, drawn=tuple(replace(one, is_lost=True) for one in result.drawn))
        self.clock.now += self.clock.step_s
        return result

    def release(self, *given, **more):
        self.engine.release(*given, **more)


def test_numbers_that_are_not_finite_are_a_failure(model):
    drafter = ModelDrafter("nan", Broken(model[0], lost=True), model[1])
    with pytest.raises(StageError, match="not finite"):
        drafts_of(drafter, ask(1, 0, PROMPT))
    drafter.clear()


class Clock:
    now, step_s = 100.0, 0.03

    def monotonic(self):
        return self.now


def test_a_step_of_ten_times_its_usual_time_is_a_failure(model, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("molink.stage.drafting.model_drafter.time", clock)
    drafter = ModelDrafter("slow", Broken(model[0], clock), model[1])
    drafts_of(drafter, ask(1, 0, PROMPT))
    assert drafter.step_s == pytest.approx(0.03)
    clock.step_s = 0.29
    drafts_of(drafter, ask(1, 12, [9], width=1))
    clock.step_s = 0.9
    with pytest.raises(StageError, match=r"0\.90 s"):
        drafts_of(drafter, ask(1, 13, [9]))
    drafter.clear()


def test_a_short_step_is_no_failure_however_short_others_were(model, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("molink.stage.drafting.model_drafter.time", clock)
    clock.step_s = 0.001
    drafter = ModelDrafter("quick", Broken(model[0], clock), model[1])
    drafts_of(drafter, ask(1, 0, PROMPT))
    assert drafter.step_s == pytest.approx(0.001)
    clock.step_s = SLOW_S  # 250 times the usual.
    made, _ = drafts_of(drafter, ask(1, 12, [9]))
    assert len(made[1]) == 4
    assert drafter.step_s == pytest.approx((SLOW_S + 0.001) / 2), "the median of eight"
    drafter.clear()
    clock.step_s = 0.001
    drafter = ModelDrafter("quick", Broken(model[0], clock), model[1])
    drafts_of(drafter, ask(1, 0, PROMPT))
    clock.step_s = 1.01 * SLOW_S
    with pytest.raises(StageError, match="is usual"):
        drafts_of(drafter, ask(1, 12, [9]))
    drafter.clear()
