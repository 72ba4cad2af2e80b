"""Layers with a window keep their window only, and every token is the one of `generate`."""

import pytest
import torch

from molink.engine.step.card_retry import TensorInputs, computed
from molink.engine.step.number_range import release_wiped
from molink.engine.step.prepared import prepared
from molink.engine.step.taken_layers import goes_on
from molink_scheduler.batch import Admission, Batch, BatchClass, KeptState, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, OutOfBlocks
from molink_scheduler.kv.layer_class import STEP_ROWS_MAX, room_blocks
from molink_scheduler.request import SamplingParams
from molink_scheduler.resume import Resume
from tests.engine.drafted_ring import DraftedRing, Turn
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import LAYERS, WINDOW, generate, save_tiny

CUTS = (0, 2, 3, LAYERS)
WINDOWED = {"gemma3_text": [0, 1, 2, 3, 4, 6], "gpt_oss": [0, 2, 4, 6], "mistral": list(range(7))}
KEPT_TOKENS, PROMPT_TOKENS, NEW_TOKENS = 64, 150, 8
SAMPLING = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)


def prompt_of(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 160, (tokens,), generator=generator).tolist()


@pytest.mark.parametrize("name", WINDOWED)
def test_long_requests_side_by_side_equal_generate(name, tmp_path):
    """Prompts far longer than the window, in pieces, beside decode; blocks are used anew."""
    model = save_tiny(name, tmp_path)
    stages = load_stages(tmp_path, CUTS)
    jobs = [Job(n, prompt_of(n, 90 + 20 * n), 40, scattered=n == 1) for n in range(4)]
    outputs = RingDriver(stages, span_tokens=23).run(jobs)
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs]
    in_windows = [one for stage in stages for one in sorted(stage.windows.layers)]
    assert in_windows == WINDOWED[name]
    for stage in stages:
        blocks = stage.windows.blocks
        assert blocks.blocks_free == blocks.blocks_total
        if stage.windows.layers:
            # A request keeps 3 blocks of 16 tokens there, not its 17.
            assert stage.windows.request_bytes == 3 * 16 * stage.windows.tensors.token_bytes
            assert stage.state_slots is not None


@pytest.mark.parametrize("right", [0, 5, 16])
@pytest.mark.parametrize("name", WINDOWED)
def test_sixteen_drafts_come_true_or_not_and_the_window_stays(name, right, tmp_path):
    """The next span begins as far back as right behind the one known row, in windows of any age."""
    model = save_tiny(name, tmp_path)
    stages = load_stages(tmp_path, CUTS)
    texts = [[*prompt_of(n, 90), *generate(model, prompt_of(n, 90), 60)] for n in range(2)]
    ring = DraftedRing(stages, model.config.vocab_size)
    for n, text in enumerate(texts):
        ring.begin(n, text, 90)
    blocks = [stage.windows.blocks for stage in stages if stage.windows.layers]
    for _ in range(30):
        for n, (at, logits) in ring.step([Turn(0, 16, right), Turn(1, 16, 16 - right)]).items():
            wanted = texts[n][at + 1 : at + 1 + len(logits)]
            assert logits.argmax(-1).tolist()[: len(wanted)] == wanted
            assert all(one.can_go_on(n, at) for one in blocks), "a loss may take the round back"
        if any(one.start >= len(one.text) - 1 for one in ring.requests.values()):
            break
    assert ring.tried > 60
    assert blocks and max(len(one.blocks_of(0)) for one in blocks) <= room_blocks(WINDOW)


def test_models_without_windows_have_no_second_class(tmp_path):
    save_tiny("llama", tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    assert not stage.windows.layers
    assert stage.state_slots is None
    assert stage.windows.request_bytes == stage.windows.shared_bytes == 0


def run(stages, span, ids, admission=None, snapshots=()):
    kind = BatchClass.PREFILL if span.tokens > 1 else BatchClass.DECODE
    admissions = () if admission is None else (admission,)
    batch, hidden = Batch(0, kind, 0, (span,), admissions, snapshots=snapshots), None
    for stage in stages:
        output = stage.step(batch, ids, hidden)
        hidden = output.hidden_TD
    return [token.token_id for token in output.drawn]


def answer(stages, request, prompt, begun=0, ends=(PROMPT_TOKENS,), **admitted):
    known = list(prompt)
    admission = Admission(request, len(prompt), 200, SAMPLING, **admitted)
    for end in ends:
        kept = (KeptState(request, end, 1),) if end == KEPT_TOKENS else ()
        span = Span(request, begun, end, end == len(prompt))
        known += run(stages, span, known[begun:end], admission, kept)
        begun, admission = end, None
    while len(known) < len(prompt) + NEW_TOKENS:
        known += run(stages, Span(request, len(known) - 1, len(known), True), known[-1:])
    return known[len(prompt) :]


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_oss"])
def test_a_hit_begins_with_the_window_that_was_kept(name, tmp_path):
    """The first request has gone on for long, and its window with it."""
    model = save_tiny(name, tmp_path)
    stages = load_stages(tmp_path, CUTS)
    prompt = prompt_of(3)
    other = [*prompt[:KEPT_TOKENS], *reversed(prompt[KEPT_TOKENS:])]
    first = answer(stages, 1, prompt, ends=(KEPT_TOKENS, PROMPT_TOKENS))
    assert first == generate(model, prompt, NEW_TOKENS)
    for stage in stages:
        stage.kv.keep(1, 0, range(7, 11))
        stage.release(Release(1))
    for request in (2, 3):
        hit = answer(stages, request, other, KEPT_TOKENS, cached=((7, 4),), snapshot=1)
        assert hit == generate(model, other, NEW_TOKENS)


def test_a_request_cannot_go_back_behind_its_window(tmp_path):
    save_tiny("gemma3_text", tmp_path)
    stages = load_stages(tmp_path, (0, LAYERS))
    prompt = prompt_of(4)
    answer(stages, 1, prompt)
    with pytest.raises(OutOfBlocks, match="go back to token 64"):
        run(stages, Span(1, KEPT_TOKENS, KEPT_TOKENS + 1, True), prompt[:1])


@pytest.mark.parametrize("back", [1, 16])
def test_a_request_goes_on_from_a_little_before_after_a_loss(back, tmp_path):
    """What the ring has heard of is less than what a stage has computed."""
    model = save_tiny("gemma3_text", tmp_path)
    stages = load_stages(tmp_path, CUTS)
    prompt = prompt_of(6)
    assert answer(stages, 1, prompt[:120], ends=(100, 120)) == generate(model, prompt[:120], 8)
    computed_tokens = 127
    known = [*prompt[:120], *generate(model, prompt[:120], 8)]
    tokens = computed_tokens - back
    resume = Resume(((1, tokens),))
    for stage in stages:
        missing, keeps = goes_on(stage, resume, {1: computed_tokens}, lambda *_: True)
        assert (missing, keeps) == ((), {1: tokens})
    admission = Admission(1, 120, 200, SAMPLING, kept_tokens=tokens)
    for start in range(tokens, len(known)):
        drawn = run(stages, Span(1, start, start + 1, True), known[start : start + 1], admission)
        admission = None
        assert start < 119 or drawn == [*known, *generate(model, known, 1)][start + 1 : start + 2]


def test_a_request_of_which_too_much_is_to_be_computed_again_is_missing(tmp_path):
    save_tiny("gemma3_text", tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    answer([stage], 1, prompt_of(7))
    resume = Resume(((1, 100),))
    assert goes_on(stage, resume, {1: 157}, lambda *_: True) == ((1,), {})


def test_a_step_wider_than_the_stage_has_room_for_is_computed_in_pieces(tmp_path):
    model = save_tiny("gemma3_text", tmp_path, max_position_embeddings=2048)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    tokens = STEP_ROWS_MAX + STEP_ROWS_MAX // 2
    prompt = prompt_of(5, tokens)
    span = Span(1, 0, tokens, True)
    batch = Batch(0, BatchClass.PREFILL, 0, (span,), (Admission(1, tokens, 900, SAMPLING),))
    output = computed(stage, TensorInputs(batch, prompt, None))
    assert [one.token_id for one in output.drawn] == generate(model, prompt, 1)
    assert len(stage.windows.blocks.blocks_of(1)) <= room_blocks(WINDOW)
    assert stage.kv.tokens_used == tokens // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_stage_tells_what_tokens_keep_and_what_requests_keep(tmp_path):
    save_tiny("gemma3_text", tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    loaded = prepared(stage, 0, None).loaded
    layer_bytes = 2 * 2 * 16 * 4  # Keys and values of two heads in fp32.
    assert loaded.kv_token_bytes == layer_bytes
    assert loaded.kv_request_bytes == 6 * room_blocks(WINDOW) * BLOCK_TOKENS * layer_bytes
    assert loaded.can_go_back and loaded.state_slots and loaded.state_snapshots
    blocks = (loaded.state_slots + loaded.state_snapshots) * room_blocks(WINDOW)
    assert stage.windows.blocks.blocks_total == blocks + STEP_ROWS_MAX // BLOCK_TOKENS
    assert stage.windows.held_bytes == stage.windows.tensors.slots * 6 * layer_bytes


def test_numbers_that_left_the_range_stay_in_no_block_of_a_window(tmp_path):
    save_tiny("gemma3_text", tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    answer([stage], 1, prompt_of(8))
    rows = stage.windows.tensors.layers[0].keys.rows_SKA
    held = sorted(stage.windows.blocks.blocks_of(1))
    slots = [block * BLOCK_TOKENS for block in held]
    rows[slots] = torch.inf
    release_wiped(stage, Release(1))
    assert not rows[slots].any()
