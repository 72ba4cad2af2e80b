"""A stage that takes lost layers beside its own goes on exactly where its ring was."""

from dataclasses import replace

import pytest
import torch

from molink.engine.device.elements import dtype_name, elements_of
from molink.engine.step.extended_stage import ExtendedExecutor
from molink.stage.packing import Packing
from molink.stage.sent_log import SentLog
from molink_scheduler.batch import Batch, BatchClass, Release, Span
from molink_scheduler.resume import Resume
from molink_scheduler.stage.extension import Extension
from tests.engine.ring_driver import Job, load_stages
from tests.engine.tiny_models import generate, save_tiny

PROMPT, TOKENS, LOST_AFTER = [5, 17, 23, 8, 40, 2, 9], 20, 12
CUTS = (0, 2, 4, 6)


class Ring:
    """One request, computed a span at a time, by stages of which the first keeps a log."""

    def __init__(self, directory, model):
        self.stages = load_stages(directory, CUTS)
        self.model, self.directory = model, directory
        self.job = Job(1, PROMPT, TOKENS)
        width = self.stages[0].hidden_size
        dtype = dtype_name(self.stages[0].dtype)
        self.sent = SentLog(Packing(width), dtype, 1e9, 128)
        self.left = SentLog(Packing(width), dtype, 1e9, 128)
        self.sent_by_second = SentLog(Packing(width), dtype, 1e9, 128)

    def run(self, until: int, kept: int = 0) -> None:
        while len(self.job.known) < until:
            job, admission = self.job, ()
            if not job.computed or kept:
                known = tuple(job.known[len(PROMPT) :])
                admission = (replace(job.admission(), kept_tokens=kept, output=known),)
            span = job.next_span(4)
            ids = job.known[span.start : span.end]
            drawn = self.step(Batch(0, BatchClass.PREFILL, -1, (span,), admission), ids)
            job.computed, kept = span.end, 0
            job.known += [token.token_id for token in drawn]

    def step(self, batch: Batch, ids: list[int]):
        first = self.stages[0]
        if isinstance(first, ExtendedExecutor):
            for piece, fed in first.feed(batch, self.compute):
                keep(self.left, piece, fed)
        output = first.step(batch, ids)
        keep(self.sent, batch, output)
        for stage in self.stages[1:]:
            if output.hidden_TD is not None:
                output = stage.step(batch, output.token_ids, output.hidden_TD)
                if stage is self.stages[1]:
                    keep(self.sent_by_second, batch, output)
        return output.drawn

    def compute(self, part, piece, sent):
        rows_TD = torch.frombuffer(bytearray(sent.rows), dtype=part.dtype)
        return part.step(piece, sent.token_ids or None, rows_TD.view(-1, part.hidden_size))

    def resume(self, **fresh: tuple[()]) -> Resume:
        return Resume(((1, self.job.computed),), **fresh)

    def assert_exact(self) -> None:
        assert self.job.known == PROMPT + generate(self.model, PROMPT, TOKENS)


def keep(log: SentLog, batch: Batch, output) -> None:
    if output.hidden_TD is not None:
        log.keep(batch, elements_of(output.hidden_TD), output.token_ids or ())


@pytest.fixture
def ring(tmp_path, request):
    ring = Ring(tmp_path, save_tiny(request.param, tmp_path, num_hidden_layers=6))
    ring.run(len(PROMPT) + LOST_AFTER)
    return ring


MODELS = pytest.mark.parametrize("ring", ["llama", "qwen3"], indirect=True)


@MODELS
@pytest.mark.parametrize("end", [4, 6], ids=["middle", "up to the tail"])
def test_layers_behind_are_fed_from_what_was_sent(ring, end):
    (added,) = load_stages(ring.directory, (2, end))
    kept, held = ring.stages[0], ring.job.computed
    table = kept.kv.table(1)
    extended = ExtendedExecutor(kept, added, Extension(ring.sent.log, {}))
    assert extended.begin_epoch(ring.resume(), {1: held}, ring.left.log.has) == ()
    ring.stages[: 2 if end == 4 else 3] = [extended]
    ring.run(len(PROMPT) + TOKENS, kept=held)
    ring.assert_exact()
    assert extended.layers == range(end) and extended.is_tail == (end == 6)
    assert kept.kv.table(1)[: len(table)] == table, "what it holds stays where it is"
    assert not ring.sent.log.has(1, held) and ring.left.log.has(1, held) == (end == 4)
    extended.release(Release(1))
    assert not kept.kv.holders() | added.kv.holders()


@MODELS
def test_layers_before_are_fed_from_the_tokens_and_for_themselves_alone(ring):
    (added,) = load_stages(ring.directory, (0, 2))
    held = ring.job.computed
    extended = ExtendedExecutor(added, ring.stages[1], Extension(None, {1: held}))
    assert extended.begin_epoch(ring.resume(held=()), {}, ring.left.log.has) == ()
    ring.stages[:2] = [extended]
    span, again = Span(1, 0, held, samples=False), replace(ring.job.admission(), kept_tokens=0)
    replayed = Batch(0, BatchClass.PREFILL, -1, (span,), (again,), replay=True)
    assert not ring.step(replayed, ring.job.known[:held])
    ring.run(len(PROMPT) + TOKENS, kept=held)
    ring.assert_exact()
    assert extended.is_head and not extended.is_tail


@MODELS
def test_layers_behind_wait_while_layers_before_are_fed_for_themselves_alone(ring):
    """Both neighbours were lost, one after the other, before the request was fed."""
    held, kept = ring.job.computed, ring.stages[1]
    (behind,), (before,) = (load_stages(ring.directory, cut) for cut in ((4, 6), (0, 2)))
    inner = ExtendedExecutor(kept, behind, Extension(ring.sent_by_second.log, {}))
    assert inner.begin_epoch(ring.resume(), {1: held}, ring.left.log.has) == ()
    whole = ExtendedExecutor(before, inner, Extension(None, {1: held}))
    assert whole.begin_epoch(ring.resume(held=()), {}, ring.left.log.has) == ()
    ring.stages = [whole]
    span, again = Span(1, 0, held, samples=False), replace(ring.job.admission(), kept_tokens=0)
    replayed = Batch(0, BatchClass.PREFILL, -1, (span,), (again,), replay=True)
    assert not ring.step(replayed, ring.job.known[:held])
    assert ring.sent_by_second.log.has(1, held), "what feeds the layers behind is still there"
    ring.run(len(PROMPT) + TOKENS, kept=held)
    ring.assert_exact()


@MODELS
def test_what_was_not_logged_or_not_held_is_missing(ring):
    (added,) = load_stages(ring.directory, (2, 4))
    held = ring.job.computed
    ring.sent.log.forget(1)
    behind = ExtendedExecutor(ring.stages[0], added, Extension(ring.sent.log, {}))
    assert behind.begin_epoch(ring.resume(), {1: held}, ring.left.log.has) == (1,)
    before = ExtendedExecutor(added, ring.stages[2], Extension(None, {1: held - 1}))
    assert before.begin_epoch(ring.resume(held=()), {}, ring.left.log.has) == (1,)
