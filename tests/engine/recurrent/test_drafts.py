"""Drafts that come true or not leave the answers of hybrid models what they are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.batch import DRAFTS_MAX
from tests.engine.drafted_ring import DraftedRing, Turn
from tests.engine.recurrent.hybrids import HYBRIDS, KINDS, WITH_EXPERTS, small_model
from tests.engine.recurrent.mixed_answers import NEAR_TIE
from tests.engine.ring_driver import load_stages
from tests.engine.tiny_models import generate
from tests.sweeps import swept

PROMPTS = (1, 18, 33)
NEW_TOKENS = 40
NEAR = 5e-3
"""Largest difference of a logit; delta rules amplify the rounding of other orders of sums."""

TURNS = st.tuples(st.integers(0, DRAFTS_MAX), st.integers(0, DRAFTS_MAX), st.integers(0, 9))
STEPS = st.lists(
    st.lists(st.none() | TURNS, min_size=len(PROMPTS), max_size=len(PROMPTS)),
    min_size=3,
    max_size=7,
)
"""For each request of each step, where it goes along: drafts, how many of them may come true, and,
where it is 0, that it is preempted behind."""


class Texts:
    """Greedy answers of the library to some prompts, and logits of rows when nothing is drafted."""

    def __init__(self, name, directory) -> None:
        self.name, whole = name, small_model(name)
        whole.save_pretrained(directory)
        count = whole.config.num_hidden_layers
        self.stages = load_stages(directory, (0, count // 2, count))
        self.words, self.number = whole.config.vocab_size, 0
        generator = torch.Generator().manual_seed(3)
        drawn = [torch.randint(1, self.words, (n,), generator=generator).tolist() for n in PROMPTS]
        self.texts = [[*prompt, *generate(whole, prompt, NEW_TOKENS)] for prompt in drawn]
        self.wanted = [self._plain_logits(n) for n in range(len(PROMPTS))]

    def ring(self) -> DraftedRing:
        return DraftedRing(self.stages, self.words)

    def begin(self, ring: DraftedRing, request: int, **admitted) -> None:
        text, prompt = self.texts[request], PROMPTS[request]
        self.check(request, prompt - 1, ring.begin(request, text, prompt, **admitted)[None])

    def check(self, request: int, position: int, logits: torch.Tensor) -> None:
        """Tokens are those of `generate`, logits those without drafts."""
        wanted = self.wanted[request][position : position + len(logits)]
        near = NEAR_TIE if self.name in WITH_EXPERTS else NEAR
        assert float((logits - wanted).abs().max()) < near
        for row, token in zip(logits, self.texts[request][position + 1 :], strict=False):
            assert int(row.argmax()) == token or (
                self.name in WITH_EXPERTS and float(row.max() - row[token]) < NEAR_TIE
            )

    def _plain_logits(self, request: int) -> torch.Tensor:
        ring, text, prompt = self.ring(), self.texts[request], PROMPTS[request]
        rows = [ring.begin(request, text, prompt)[None]]
        while ring.requests[request].start < len(text):
            rows.append(ring.step([Turn(request)])[request][1])
        ring.release(request)
        logits = torch.cat(rows)
        return torch.cat([logits.new_full((prompt - 1, logits.shape[1]), torch.nan), logits])


@pytest.fixture(scope="module")
def texts_of(tmp_path_factory):
    made = {}

    def texts(name) -> Texts:
        if name not in made:
            made[name] = Texts(name, tmp_path_factory.mktemp("model"))
        return made[name]

    return texts


@pytest.mark.parametrize("name", swept(HYBRIDS, *KINDS))
def test_tokens_and_logits_are_the_same_whatever_was_drafted(name, texts_of):
    texts, tried, passed = texts_of(name), [], []

    @settings(max_examples=4)
    @given(STEPS)
    def whatever_was_drafted(steps):
        ring = texts.ring()
        for request in range(len(PROMPTS)):
            texts.begin(ring, request)
        for turns in steps:
            going = {n: turn for n, turn in enumerate(turns) if turn is not None}
            left = [n for n in going if ring.requests[n].start < len(texts.texts[n]) - 1]
            for request, (position, logits) in (
                ring.step([Turn(n, *going[n][:2]) for n in left]) if left else {}
            ).items():
                texts.check(request, position, logits)
            for request in [n for n in left if going[n][2] == 0]:
                ring.release(request)
                texts.begin(ring, request)
        for request in list(ring.requests):
            ring.release(request)
        tried.append(ring.tried)
        passed.append(ring.passed)

    whatever_was_drafted()
    print(sum(tried), sum(passed))
    assert 20 < sum(passed) < sum(tried) - 20
    assert not any(stage.states._slot_of or stage.states._known_end for stage in texts.stages)


WITHOUT_EXPERTS = sorted(set(KINDS) - WITH_EXPERTS)


@pytest.mark.parametrize("name", WITHOUT_EXPERTS)
def test_a_snapshot_that_is_kept_while_drafts_fly_is_behind_what_is_known(name, texts_of):
    """Another request begins with it, and the first goes on from the drafts that came true."""
    texts, last = texts_of(name), len(PROMPTS) - 1
    ring, text = texts.ring(), texts.texts[last]
    texts.begin(ring, last)
    for turn in (Turn(last, 16, 13), Turn(last, 8, 3, snapshot=1)):
        texts.check(last, *ring.step([turn])[last])
    for stage in texts.stages:
        stage.kv.keep(last, 0, range(7, 10))
    cached = {"cached": ((7, 3),), "snapshot": 1}
    texts.check(last, 59, ring.begin(9, text, 60, **cached)[None])
    for turns in ([Turn(9, 5, 2), Turn(last, 3, 3)], [Turn(last), Turn(9)]):
        for position, logits in ring.step(turns).values():
            texts.check(last, position, logits)
    for request in (9, last):
        ring.release(request)
    for stage in texts.stages:
        stage.kv.drop(range(7, 10))
