"""Requests whose KV is cut answer as the library's model does with the same keys left out."""

import pytest
import torch

from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.key_scores import chosen_tokens, key_scores
from molink.engine.memory.prompt_cuts import PromptCuts
from molink.engine.step.card_retry import TensorInputs, computed
from molink.errors import StageError
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.request import SamplingParams
from tests.engine.cut_reference import Cut, generate_cut
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import LAYERS, generate, save_tiny

CUTS = (0, 2, 5, LAYERS)
PROMPT_TOKENS, NEW_TOKENS, EXPECTED = 150, 20, 200

CUT_LAYERS = {
    "llama": [3, 4, 5, 6],
    "gpt_oss": [3, 5],
    "gemma4_text": [5, 6],
    "mixtral": [3, 4, 5, 6],
    "gpt2": [3, 4, 5, 6],
    "gemma2": [3, 5],
}
"""Plain, with sinks and windows, with KV of two shapes, with experts, with learned positions, with
softcaps."""


def sampling(budget: float, tokens: int = NEW_TOKENS) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, kv_budget=budget)


def prompt_of(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 160, (tokens,), generator=generator).tolist()


@pytest.mark.parametrize("name", CUT_LAYERS)
def test_cut_answers_are_those_of_the_library_with_the_same_keys_left_out(name, tmp_path):
    model, prompt = save_tiny(name, tmp_path), prompt_of(0)
    stages, cut = load_stages(tmp_path, CUTS), Cut(PROMPT_TOKENS, 75)
    job = Job(1, prompt, NEW_TOKENS, sampling(0.5))
    assert RingDriver(stages, span_tokens=50).run([job])[0] == generate_cut(
        model, prompt, NEW_TOKENS, cut
    )
    assert sorted(cut.scores) == CUT_LAYERS[name]


def test_cut_requests_beside_others_change_nobody(tmp_path):
    """Spans of one to three rows end anywhere among the last rows, beside decode of all kinds."""
    model = save_tiny("llama", tmp_path)
    stages, budgets = load_stages(tmp_path, CUTS), (0.5, 1.0, 0.45, 1.0)
    jobs = [
        Job(n, prompt_of(n, 150 + 7 * n), 30, sampling(budget, 30), scattered=n % 2 == 0)
        for n, budget in enumerate(budgets)
    ]
    answers = RingDriver(stages, span_tokens=13).run(jobs)
    for job, budget, answer in zip(jobs, budgets, answers, strict=True):
        cut = Cut(len(job.prompt), round(budget * len(job.prompt)))
        wanted = generate_cut(model, job.prompt, 30, cut)
        assert answer == (wanted if budget < 1 else generate(model, job.prompt, 30))
        assert budget == 1 or wanted != generate(model, job.prompt, 30), "the cut shows"
    for stage in stages:
        assert stage.kv.blocks_free == stage.kv.blocks_total


@pytest.mark.parametrize(("tokens", "budget"), [(150, 1.0), (32, 0.1), (20, 0.5)])
def test_what_fits_the_budget_is_what_it_was_to_the_bit(tokens, budget, tmp_path):
    """Also in the same batch as a request that is cut."""
    save_tiny("llama", tmp_path)
    (plain,) = load_stages(tmp_path, (0, LAYERS))
    (other,) = load_stages(tmp_path, (0, LAYERS))
    prompt = prompt_of(1, tokens)
    alone, beside = (
        Follower(plain, prompt, sampling(1.0)),
        Follower(other, prompt, sampling(budget)),
    )
    alone.prefill()
    Follower(other, prompt_of(2), sampling(0.5), request=2).prefill()
    beside.prefill()
    for _ in range(8):
        alone.decode()
        beside.decode()
    assert alone.known == beside.known
    for index, layer in plain.kv_memory.layers.items():
        for mine, theirs in zip(
            (layer.keys, layer.values),
            (other.kv_memory.layers[index].keys, other.kv_memory.layers[index].values),
            strict=True,
        ):
            assert torch.equal(mine.rows_SKA[alone.slots()], theirs.rows_SKA[beside.slots()])


class Follower:
    """A request of one stage, step by step."""

    def __init__(self, stage, prompt, params, request=1, **admitted):
        self.stage, self.prompt, self.request = stage, prompt, request
        self.known, self.computed = list(prompt), admitted.pop("begun", 0)
        self.admission = Admission(request, len(prompt), EXPECTED, params, **admitted)

    def run(self, end: int, kind=BatchClass.PREFILL, drafts=()) -> list[int]:
        span = Span(self.request, self.computed, end, end >= len(self.known), drafts)
        admissions, self.admission = (self.admission,) if self.admission else (), None
        ids = [*self.known, *drafts][self.computed : end]
        batch = Batch(0, kind, 0, (span,), admissions)
        drawn = computed(self.stage, TensorInputs(batch, ids, None)).drawn
        new = [token.token_id for token in drawn]
        self.known += new
        self.computed = len(self.known) - 1 if new else end
        return new

    def prefill(self, *ends: int) -> None:
        for end in (*ends, len(self.known)):
            self.run(end)

    def decode(self, *drafts: int) -> list[int]:
        return self.run(len(self.known) + len(drafts), BatchClass.DECODE, drafts)

    def slots(self) -> list[int]:
        table = self.stage.kv.table(self.request)
        places = range(self.computed)
        return [table[at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS for at in places]


@pytest.fixture
def cut_stage(tmp_path):
    model, prompt = save_tiny("llama", tmp_path), prompt_of(0)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    answer = generate_cut(model, prompt, NEW_TOKENS, Cut(PROMPT_TOKENS, 75))
    assert answer != generate(model, prompt, NEW_TOKENS)
    return stage, prompt, [*prompt, *answer]


@pytest.mark.parametrize("had", [1, 7, 19])
def test_a_preempted_request_is_cut_again_at_the_same_place(had, cut_stage):
    """It comes with its answer so far, in spans that a stage has laid together."""
    stage, prompt, wanted = cut_stage
    stage.release(Release(1))
    again = Follower(stage, prompt, sampling(0.5))
    again.known = wanted[: PROMPT_TOKENS + had]
    again.prefill(100)
    while len(again.known) < len(wanted):
        again.decode()
    assert again.known == wanted


def test_drafts_behind_a_cut_come_true_or_not(cut_stage):
    stage, prompt, wanted = cut_stage
    request = Follower(stage, prompt, sampling(0.5))
    request.prefill()
    assert request.decode(*wanted[151:154]) == wanted[151:155]
    assert request.decode(wanted[155], 3, 3) == wanted[155:157]
    assert request.decode(3, 3, 3, 3) == wanted[157:158]
    while len(request.known) < len(wanted):
        request.decode()
    assert request.known == wanted


@pytest.mark.parametrize("begun", [1, 4])
def test_cached_blocks_stay_whole_under_requests_that_are_cut(begun, cut_stage):
    """The first blocks are others', too: what is kept lies behind them."""
    stage, prompt, wanted = cut_stage
    first = Follower(stage, prompt, sampling(0.5))
    first.prefill()
    stage.kv.keep(1, 0, range(7, 7 + begun))
    stage.release(Release(1))
    before = [rows.clone() for rows in cached_rows(stage, begun)]
    for request in (2, 3):
        hit = Follower(
            stage, prompt, sampling(0.5), request, cached=((7, begun),), begun=16 * begun
        )
        hit.prefill()
        while len(hit.known) < len(wanted):
            hit.decode()
        assert hit.known == wanted
    assert all(map(torch.equal, before, cached_rows(stage, begun)))


def cached_rows(stage, blocks):
    stage.kv.begin(99, range(7, 7 + blocks))
    table = list(stage.kv.table(99))
    stage.kv.release(99)
    return [rows[table] for rows in stage.kv_memory.block_rows()]


def test_a_step_that_found_no_memory_is_cut_when_it_is_computed_again(cut_stage, monkeypatch):
    stage, prompt, wanted = cut_stage
    tries, real = [], PromptCuts.computed

    def full_once(cuts, *args):
        tries.append(1)
        if len(tries) == 1:
            raise MemoryError
        real(cuts, *args)

    monkeypatch.setattr(PromptCuts, "computed", full_once)
    request = Follower(stage, prompt, sampling(0.5))
    request.prefill()
    while len(request.known) < len(wanted):
        request.decode()
    assert request.known == wanted and len(tries) > 2


@pytest.mark.parametrize("start", [0, 149])
def test_a_request_does_not_go_back_behind_its_cut(start, cut_stage):
    stage, prompt, _ = cut_stage
    request = Follower(stage, prompt, sampling(0.5))
    request.prefill()
    request.computed = start
    with pytest.raises(StageError, match=f"goes back behind its cut.* from {start}"):
        request.run(start + 1)


def test_a_step_over_the_end_of_a_prompt_is_refused(cut_stage):
    stage, _, wanted = cut_stage
    batch = Batch(
        0,
        BatchClass.PREFILL,
        0,
        (Span(1, 0, 155, True),),
        (Admission(1, PROMPT_TOKENS, EXPECTED, sampling(0.5)),),
    )
    with pytest.raises(StageError, match="over it"):
        stage.step(batch, wanted[:155])


def test_cut_keys_in_int8_are_those_that_were_kept(tmp_path):
    """Codes and scales move together: what a head keeps is in its first slots behind the whole
    blocks."""
    save_tiny("llama", tmp_path)
    (whole,) = load_stages(tmp_path, (0, LAYERS), kv_dtype="int8")
    (cut,) = load_stages(tmp_path, (0, LAYERS), kv_dtype="int8")
    asked = [Follower(one, prompt_of(0), sampling(b)) for one, b in ((whole, 1.0), (cut, 0.5))]
    for one in asked:
        one.prefill()
    slots = [one.slots() for one in asked]
    for index in range(3, LAYERS):
        before = whole.kv_memory.layers[index].keys
        after = cut.kv_memory.layers[index].keys
        tokens = before.rows_SKA[slots[0]], before.scales_SK[slots[0]]
        kept = slots[1][64 : 64 + 75]
        for head in range(2):
            seen = set(coded(tokens[0][:, head], tokens[1][:, head]))
            moved = coded(after.rows_SKA[kept][:, head], after.scales_SK[kept][:, head])
            assert len(set(moved)) == 75 and set(moved) <= seen


def coded(rows, scales):
    return [(*row.tolist(), scale.item()) for row, scale in zip(rows, scales, strict=True)]


# -- scores ---------------------------------------------------------------------------------------


def test_scores_are_the_sums_of_softmax_and_of_snapkv():
    """kvpress (SnapKVPress.compute_window_attention and score) takes means over the window's rows
    and over a group's heads, of the keys before the window, and pools these."""
    torch.manual_seed(0)
    q, k = torch.randn(32, 6, 16), torch.randn(300, 2, 16)
    scores = key_scores(q, k, AttentionVariant(0.25))
    keys = k.repeat_interleave(3, 1).permute(1, 2, 0)
    weights = q.transpose(0, 1) @ keys * 0.25
    mask = torch.triu(torch.full((32, 300), float("-inf")), diagonal=300 - 32 + 1)
    weights = torch.softmax(weights + mask, -1)
    sums = weights.unflatten(0, (2, 3)).sum((1, 2))
    assert (scores - sums).abs().max() < 1e-6 * sums.max()
    means = weights[..., :-32].mean(-2)
    pooled = torch.nn.functional.avg_pool1d(means[None], 5, 1, 2)[0].view(2, 3, -1).mean(1)
    ours = torch.nn.functional.avg_pool1d(scores[None], 5, 1, 2)[0] / (32 * 3)
    inner = slice(2, 300 - 32 - 2)
    assert torch.allclose(ours[:, inner], pooled[:, inner], rtol=1e-5, atol=1e-8)


def test_first_and_newest_tokens_are_kept_whatever_their_scores():
    scores = torch.zeros(2, 200)
    scores[0, 50:55], scores[1, 90] = 1.0, 5.0
    kept = chosen_tokens(scores, 64)
    assert kept.shape == (2, 64) and (kept.diff(dim=1) > 0).all()
    for head in kept.tolist():
        assert {*range(4), *range(184, 200)} <= set(head)
    assert set(range(48, 57)) <= set(kept[0].tolist())
    assert set(range(88, 93)) <= set(kept[1].tolist()), "a neighbour's score counts"
