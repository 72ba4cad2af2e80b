"""A mixer's outputs are the same whatever was drafted, whichever drafts came true."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.engine.layers.finding_mixers import stage_mixers
from molink.engine.layers.mixer_projections import hoist
from molink.engine.layers.staged_mixer import RecurrentStep, active_recurrence
from molink.engine.memory.recurrent_rows import decode_index, recurrent_spans
from molink.engine.memory.state_pool import StatePool
from molink_scheduler.batch import DRAFTS_MAX, Batch, BatchClass, KeptState, Span
from tests.engine.layers.test_staged_mixer import MIXERS, Model, small_mixer

PROMPTS = (1, 5, 12)
TOKENS = 90
EVENTS = ("", "", "", "keep", "preempt", "begin")

TURNS = st.tuples(st.integers(0, DRAFTS_MAX), st.integers(0, DRAFTS_MAX), st.sampled_from(EVENTS))
STEPS = st.lists(
    st.lists(st.none() | TURNS, min_size=len(PROMPTS), max_size=len(PROMPTS)), max_size=8
)
"""For each request of each step, where it goes along: drafts, how many of them may come true, and
what happens behind."""


def staged(name: str, hoisted: bool) -> Model:
    model = small_mixer(name)
    first = "in_proj" if hasattr(model.mixer, "in_proj") else "in_proj_qkv"
    model.width = width = getattr(model.mixer, first).in_features
    mixers = stage_mixers(model, lambda cache: model(torch.randn(1, 3, width), cache))
    if hoisted:
        one = Batch(0, BatchClass.PREFILL, 0, (Span(0, 0, 1, True),))
        hoist(mixers, lambda: computed(model, StatePool(1), one, torch.randn(1, width), 1))
    return model


def computed(
    model: Model, pool: StatePool, batch: Batch, rows_TD: torch.Tensor, rows_max: int
) -> torch.Tensor:
    spans = recurrent_spans(batch, pool)
    index = torch.tensor(decode_index(spans), dtype=torch.long)
    with torch.inference_mode(), active_recurrence(RecurrentStep(spans, pool, index, rows_max)):
        output = model(rows_TD[None])[0].clone()
        pool.keep(batch.snapshots)
    return output


@dataclass
class Story:
    """Rows of one request, and what a mixer makes of them when nothing is drafted."""

    prompt: int
    rows_TD: torch.Tensor
    wanted_TD: torch.Tensor


@dataclass
class Requests:
    model: Model
    rows_max: int
    stories: list[Story]
    pool: StatePool
    starts: dict[int, tuple[Story, int]] = field(default_factory=dict)
    """Story and next row of each request."""
    kept: dict[int, tuple[Story, int]] = field(default_factory=dict)
    worst: float = 0.0
    passed: int = 0
    """Drafts that came true."""

    @torch.inference_mode()
    def begin(self, request: int) -> None:
        story = self.stories[request]
        self.starts[request] = story, story.prompt
        span = Span(request, 0, story.prompt, False)
        self._step(BatchClass.PREFILL, [(span, story.rows_TD[: story.prompt], 0)], ())

    @torch.inference_mode()
    def step(self, turns) -> None:
        going, snapshots = [], list[KeptState]()
        for request, turn in enumerate(turns):
            if turn is None:
                continue
            if request not in self.starts:
                self.begin(request)
            story, start = self.starts[request]
            drafts = min(turn[0], TOKENS - start - 1)
            if start >= TOKENS - 1:
                continue
            right = min(turn[1], drafts)
            span = Span(request, start, start + 1 + drafts, True, (1,) * drafts)
            wrong_TD = torch.randn(drafts - right, story.rows_TD.shape[1])
            true_TD = story.rows_TD[start : start + 1 + right]
            going.append((span, torch.cat([true_TD, wrong_TD]), right))
            self.passed += right
            if turn[2] == "keep":
                snapshots.append(KeptState(request, span.known_end, request))
                self.kept[request] = story, span.known_end
        if going:
            self._step(BatchClass.DECODE, going, tuple(snapshots))
        for request, turn in enumerate(turns):
            if turn is not None:
                self._happens(request, turn[2])

    def _happens(self, request: int, event: str) -> None:
        if event == "preempt":
            self.pool.release(request)
            self.begin(request)
        if event == "begin" and self.kept:
            snapshot, begun = sorted(self.kept.items())[request % len(self.kept)]
            self.pool.release(request)
            self.pool.begin(request, snapshot)
            self.starts[request] = begun

    def _step(self, kind, going, snapshots) -> None:
        spans = tuple(span for span, _, _ in going)
        batch = Batch(0, kind, 0, spans, snapshots=snapshots)
        rows_TD = torch.cat([rows for _, rows, _ in going])
        out_TD, row = computed(self.model, self.pool, batch, rows_TD, self.rows_max), 0
        for span, _, right in going:
            end = span.known_end + right
            story, _ = self.starts[span.request_id]
            got_TD, wanted_TD = out_TD[row : row + end - span.start], story.wanted_TD
            difference = (got_TD - wanted_TD[span.start : end]).abs().max() / wanted_TD.abs().max()
            self.worst = max(self.worst, float(difference))
            row, self.starts[span.request_id] = row + span.tokens, (story, end)


def stories_of(model: Model) -> list[Story]:
    generator, stories = torch.Generator().manual_seed(3), []
    for prompt in PROMPTS:
        rows_TD, pool = torch.randn(TOKENS, model.width, generator=generator), StatePool(1)
        ends = [prompt, *range(prompt + 1, TOKENS + 1)]
        outputs = []
        for start, end in zip([0, *ends], ends, strict=False):
            batch = Batch(0, BatchClass.PREFILL, 0, (Span(1, start, end, False),))
            outputs.append(computed(model, pool, batch, rows_TD[start:end], 1))
        stories.append(Story(prompt, rows_TD, torch.cat(outputs)))
    return stories


@pytest.mark.parametrize(("rows_max", "hoisted", "allowed"), [(1, False, 0.0), (64, True, 1e-5)])
@pytest.mark.parametrize("name", MIXERS)
def test_outputs_are_the_same_whatever_was_drafted(name, rows_max, hoisted, allowed):
    """To the bit where each row is computed alone; products of several rows are summed in another
    order."""
    model, passed = staged(name, hoisted), []
    stories = stories_of(model)

    @settings(max_examples=15)
    @given(STEPS)
    def whatever_was_drafted(steps):
        pool = StatePool(len(PROMPTS), snapshots=len(PROMPTS))
        requests = Requests(model, rows_max, stories, pool)
        for request in range(len(PROMPTS)):
            requests.begin(request)
        for turns in steps:
            requests.step(turns)
        assert requests.worst <= allowed
        passed.append(requests.passed)

    whatever_was_drafted()
    assert sum(passed) > 100
