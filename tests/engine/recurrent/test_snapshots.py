"""Requests that begin with a snapshot of another one's states answer as those that do not."""

import pytest
import torch

from molink.engine.memory.state_pool import StatePool
from molink_scheduler.batch import Admission, Batch, BatchClass, KeptState, Span
from molink_scheduler.kv.blocks import OutOfBlocks
from molink_scheduler.kv.changes import KeptBlocks
from molink_scheduler.request import SamplingParams
from tests.engine.memory.test_state_pool import stored, values
from tests.engine.recurrent.hybrids import HYBRIDS, KINDS, WITH_EXPERTS, small_model
from tests.engine.ring_driver import load_stages
from tests.engine.tiny_models import generate
from tests.sweeps import swept

KEPT_TOKENS, PROMPT_TOKENS, NEW_TOKENS = 64, 90, 8
SAMPLING = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)


def run(stages, span, ids, admission=None, snapshots=()):
    admissions = () if admission is None else (admission,)
    kind = BatchClass.PREFILL if span.tokens > 1 else BatchClass.DECODE
    batch, hidden = Batch(0, kind, 0, (span,), admissions, snapshots=snapshots), None
    for stage in stages:
        output = stage.step(batch, ids, hidden)
        hidden = output.hidden_TD
    return [token.token_id for token in output.drawn]


def answer(stages, request, prompt, admission, begun, ends):
    """Greedy; `begun` tokens are held, spans end at `ends`."""
    known = list(prompt)
    for end in ends:
        kept = KeptState(request, end, 1)
        wanted = (kept,) if end == KEPT_TOKENS else ()
        known += run(
            stages,
            Span(request, begun, end, end == len(prompt)),
            known[begun:end],
            admission,
            wanted,
        )
        begun, admission = end, None
    while len(known) < len(prompt) + NEW_TOKENS:
        known += run(stages, Span(request, len(known) - 1, len(known), True), known[-1:])
    return known[len(prompt) :]


WITHOUT_EXPERTS = [name for name in HYBRIDS if name not in WITH_EXPERTS]


@pytest.mark.parametrize("name", swept(WITHOUT_EXPERTS, *(set(KINDS) - WITH_EXPERTS)))
def test_answers_equal_generate_with_a_snapshot_and_without(name, tmp_path):
    """The second request shares KV and begins with the states; the first has gone on since."""
    whole = small_model(name)
    whole.save_pretrained(tmp_path)
    stages = load_stages(tmp_path, (0, 1, whole.config.num_hidden_layers))
    generator = torch.Generator().manual_seed(3)
    words = whole.config.vocab_size
    prompt = torch.randint(1, words, (PROMPT_TOKENS,), generator=generator).tolist()
    other = [*prompt[:KEPT_TOKENS], *reversed(prompt[KEPT_TOKENS:])]
    first = Admission(1, PROMPT_TOKENS, 200, SAMPLING)
    ends = (KEPT_TOKENS, PROMPT_TOKENS)
    assert answer(stages, 1, prompt, first, 0, ends) == generate(whole, prompt, NEW_TOKENS)
    for stage in stages:
        kept = KeptBlocks(1, 0, 7, 4)
        stage.kv.keep(1, kept.first_block, kept.numbers)
    for request in (2, 3):
        cached = Admission(request, PROMPT_TOKENS, 200, SAMPLING, cached=((7, 4),), snapshot=1)
        answered = answer(stages, request, other, cached, KEPT_TOKENS, (PROMPT_TOKENS,))
        assert answered == generate(whole, other, NEW_TOKENS)


def test_a_snapshot_stays_as_it_was_kept():
    pool = StatePool(2, padding=1, snapshots=2)
    pool.store(7, stored([1.0]), [pool.take(10)])
    pool.keep([KeptState(10, 64, 1)])
    pool.store(7, stored([5.0]), [pool.take(10)])
    pool.begin(11, 1)
    assert values(pool, [pool.take(10), pool.take(11)]) == [5.0, 1.0]
    pool.store(7, stored([9.0]), [pool.take(11)])
    pool.release(10)
    pool.begin(12, 1)
    assert values(pool, [pool.take(11), pool.take(12)]) == [9.0, 1.0]
    with pytest.raises(OutOfBlocks, match="no room for a snapshot 2"):
        pool.begin(12, 2)
