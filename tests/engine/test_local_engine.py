"""An engine computes behind its ten methods what its executor computes, and tells no torch."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from molink.engine import local_engine
from molink.engine.local_engine import LocalEngine
from molink.engine.memory.kv_pool import KvPool
from molink.engine_protocol.engine import Engine
from molink.engine_protocol.values import Held, StepInputs
from molink.errors import StageError
from molink.stage_protocol.messages import LoadStage, StageWork
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Release, Span
from molink_scheduler.kv.changes import KeepBlocks, KeptBlocks, LowerBlocks, RetainBlocks
from molink_scheduler.kv.tiers import HOST
from molink_scheduler.request import SamplingParams
from molink_scheduler.resume import Resume
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.stage.sent_rows import SentRows
from tests.engine.tiny_models import LAYERS, generate, save_tiny

PROMPT = [5, 17, 23, 8, 40, 2, 9, 11, 4, 33, 21, 7, 6, 19, 3, 28, 14, 30]
TOKENS = 256
"""Room of a stage."""

GREEDY = SamplingParams(max_tokens=9, temperature=0.0)


def nothing() -> None:
    pass


def load(directory, layers: tuple[int, int], dtype: str = "float32") -> LoadStage:
    return LoadStage(str(directory), StageWork(layers, "cpu", dtype, TOKENS), "127.0.0.1")


def prepared(directory, start: int, stop: int, dtype: str = "float32") -> LocalEngine:
    engine = LocalEngine()
    engine.prepare(load(directory, (start, stop), dtype), lambda fraction: None)
    return engine


def prompt(request_id: int, start: int = 0, **more) -> Batch:
    admission = Admission(request_id, len(PROMPT), 64, GREEDY, **more)
    span = Span(request_id, start, len(PROMPT), samples=True)
    return Batch(0, PREFILL, -1, (span,), (admission,))


@dataclass
class Ring:
    """Engines one behind the other, and the rows that the first has sent."""

    engines: list[Engine]
    sent: list[np.ndarray] = field(default_factory=list)

    def step(self, batch: Batch, ids: list[int]):
        pieces: list[np.ndarray] = []
        for engine in self.engines:
            for _ in engine.admit(batch, nothing, nothing):
                pass
            result = engine.step(StepInputs(batch, ids, pieces), nothing, nothing)
            if result.rows_TD is not None:
                self.sent.append(result.rows_TD)
                half = len(result.rows_TD) // 2  # As two messages bring them.
                pieces = [one for one in (result.rows_TD[:half], result.rows_TD[half:]) if len(one)]
        return result

    def generate(self, tokens: int) -> list[int]:
        (token,) = self.step(prompt(1), PROMPT).drawn
        known = [*PROMPT, token.token_id]
        while len(known) < len(PROMPT) + tokens:
            span = Span(1, len(known) - 1, len(known), samples=True)
            (token,) = self.step(Batch(0, DECODE, 0, (span,)), known[-1:]).drawn
            known.append(token.token_id)
        return known[len(PROMPT) :]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    return directory, save_tiny("llama", directory)


@pytest.mark.parametrize("cuts", [(0, LAYERS), (0, 2, LAYERS)])
def test_engines_compute_what_the_library_does(tiny, cuts):
    directory, model = tiny
    ring = Ring([prepared(directory, *ends) for ends in pairwise(cuts)])
    assert ring.generate(9) == generate(model, PROMPT, 9)


@pytest.mark.parametrize("dtype, held", [("float32", np.float32), ("bfloat16", np.uint16)])
def test_rows_are_those_of_its_executor_bit_by_bit(tiny, dtype, held):
    engine = prepared(tiny[0], 0, 2, dtype)
    rows_TD = engine.step(StepInputs(prompt(1), PROMPT), nothing, nothing).rows_TD
    wanted_TD = engine.executor.step(prompt(2), PROMPT).hidden_TD
    assert rows_TD.dtype == held and rows_TD.tobytes() == bytes_of(wanted_TD)


def bytes_of(rows_TD: torch.Tensor) -> bytes:
    return rows_TD.contiguous().view(torch.uint8).numpy().tobytes()


def test_what_is_prepared_is_told(tiny):
    engine, told = LocalEngine(), []
    layers = engine.prepare(load(tiny[0], (5, LAYERS)), told.append)
    assert layers.layers == range(5, LAYERS) and layers.is_tail and not layers.is_head
    assert layers.dtype == "float32" and layers.kv_blocks * 16 == layers.loaded.kv_tokens_capacity
    assert layers.block_bytes == 16 * engine.executor.kv_token_bytes
    assert told[-1] == 1.0


def test_blocks_leave_and_come_back_as_they_were(tiny):
    engine = prepared(tiny[0], 0, 2)
    wanted_TD = engine.step(StepInputs(prompt(1), PROMPT), nothing, nothing).rows_TD
    keep = KeepBlocks((KeptBlocks(1, 0, 70, 1),))
    assert not engine.blocks_out(keep)
    engine.release(Release(1), wiped=False)
    assert engine.report(watched=False).kv_tokens_cached == 16
    out = engine.blocks_out(LowerBlocks(HOST, ((70, 2),)))
    assert out.numbers == (70,), "the other one is in a tier already"
    assert engine.report(watched=False).kv_tokens_cached == 0
    for request_id in range(3, 3 + TOKENS // 32):  # Others write in every block of the pool.
        engine.step(StepInputs(prompt(request_id), PROMPT[::-1]), nothing, nothing)
    packed_BW = out.memory(1)
    assert not out.copy(packed_BW)
    for request_id in range(3, 3 + TOKENS // 32):
        engine.release(Release(request_id), wiped=False)
    arriving = engine.blocks_in((70,))
    assert arriving.only(1) and not arriving.is_there
    arriving.fill(list(packed_BW))
    arriving.check()
    behind = prompt(2, 16, cached=((70, 1),))
    rows_TD = engine.step(StepInputs(behind, PROMPT[16:]), nothing, nothing).rows_TD
    assert np.allclose(rows_TD, wanted_TD[16:], rtol=1e-5, atol=1e-6)
    engine.blocks_out(RetainBlocks(()))
    assert engine.report(watched=False).kv_tokens_cached == 0


def test_memory_of_blocks_is_not_given_back_before_they_are_copied(tiny, monkeypatch):
    engine = prepared(tiny[0], 0, 2)
    engine.step(StepInputs(prompt(1), PROMPT), nothing, nothing)
    engine.blocks_out(KeepBlocks((KeptBlocks(1, 0, 70, 1),)))
    engine.release(Release(1), wiped=False)
    monkeypatch.setattr(local_engine, "host_is_short", lambda: True)
    given = []
    monkeypatch.setattr(KvPool, "give_back", lambda pool, runs: given.append(list(runs)))
    out = engine.blocks_out(LowerBlocks(HOST, ((70, 1),)))
    engine.report(watched=False)
    assert not given
    out.give_up()
    engine.report(watched=False)
    assert given == [[(0, TOKENS // 16)]]


def test_in_the_next_epoch_it_keeps_what_goes_on(tiny):
    engine = prepared(tiny[0], 0, 2)
    for request_id in (1, 2, 3):
        engine.step(StepInputs(prompt(request_id), PROMPT), nothing, nothing)
    computed = dict.fromkeys((1, 2, 3), len(PROMPT))
    resume = Resume(((1, 5), (2, len(PROMPT) + 1)), chains_stay=True)
    kept = engine.rows_kept(resume, computed, lambda *given: True)
    assert (kept.missing, kept.gone, kept.chains_stay) == ((2,), {2, 3}, True)
    assert engine.report(watched=False).kv_tokens_used == 16 + 2 * 32


def test_what_lay_at_a_lost_lender_is_named_missing_and_offered_no_more(tiny):
    """Two requests, each with a cached block; the blocks of the second are gone."""
    engine = prepared(tiny[0], 0, 2)
    for request_id in (1, 2):
        engine.step(StepInputs(prompt(request_id), PROMPT), nothing, nothing)
        engine.blocks_out(KeepBlocks((KeptBlocks(request_id, 0, 70 + request_id, 1),)))
    kv = engine.executor.kv
    at_home, lent = (kv.table(one) for one in (1, 2))
    assert max(at_home) < min(lent)
    kv.lose(range(min(lent), max(lent) + 1))
    tokens = len(PROMPT)
    resume = Resume(((1, tokens), (2, tokens)), chains_stay=True)
    kept = engine.rows_kept(resume, dict.fromkeys((1, 2), tokens), lambda *given: True)
    assert (kept.missing, kept.gone, kept.cached) == ((2,), {2}, {71})


def test_places_are_given_back_and_come_again(tiny):
    engine = prepared(tiny[0], 0, 2)
    blocks = engine.executor.kv.blocks_total
    (one,) = (engine.step(StepInputs(prompt(1), PROMPT), nothing, nothing).rows_TD,)
    engine.hold(3)
    assert engine.executor.kv.blocks_total == 3
    engine.hold(blocks)
    (again,) = (engine.step(StepInputs(prompt(2), PROMPT), nothing, nothing).rows_TD,)
    assert np.array_equal(one, again)


def test_layers_taken_beside_others_are_fed_before_their_step(tiny):
    """What the rest of the ring computes is as if it had held all of them from the start."""
    directory, model = tiny
    first, rest = prepared(directory, 0, 2), prepared(directory, 4, LAYERS)
    lost = prepared(directory, 2, 4)
    (token,) = Ring([first, lost, rest]).step(prompt(1), PROMPT).drawn
    first.blocks_out(KeepBlocks((KeptBlocks(1, 0, 70, 1),)))
    log = ReplayLog(1e9)
    log.admit(prompt(1).admissions)
    rows = engine_rows(first, len(PROMPT))
    log.add(1, SentRows(0, len(PROMPT), rows))
    layers = first.prepare(load(directory, (2, 4)), lambda fraction: None, Held(log, {}))
    assert layers.layers == range(4) and layers.is_head
    resume = Resume(((1, len(PROMPT)),))
    kept = first.rows_kept(resume, {1: len(PROMPT)}, lambda *given: True)
    assert kept.missing == () and not kept.chains_stay
    first.blocks_out(RetainBlocks(()))
    assert first.report(watched=False).kv_tokens_cached == 0, "though new layers cached nothing"
    known = [*PROMPT, token.token_id]
    span = Span(1, len(PROMPT), len(known), samples=True)
    again = replace(prompt(1).admissions[0], kept_tokens=len(PROMPT), output=(token.token_id,))
    batch = Batch(1, PREFILL, -1, (span,), (again,))
    fed = list(first.admit(batch, nothing, nothing))
    assert [(one.batch.spans[0].end, len(one.rows_TD)) for one in fed] == [(len(PROMPT),) * 2]
    assert not list(first.admit(batch, nothing, nothing)), "once is enough"
    (token,) = Ring([first, rest]).step(batch, known[-1:]).drawn
    assert [*known[len(PROMPT) :], token.token_id] == generate(model, PROMPT, 2)


def engine_rows(engine: LocalEngine, tokens: int) -> bytes:
    """Rows that it has sent of the prompt, computed once more."""
    result = engine.step(StepInputs(prompt(9), PROMPT), nothing, nothing)
    engine.release(Release(9), wiped=False)
    return result.rows_TD[:tokens].tobytes()


def test_layers_that_are_not_beside_its_own_are_refused(tiny):
    engine = prepared(tiny[0], 0, 2)
    with pytest.raises(StageError, match="not beside its own"):
        engine.prepare(load(tiny[0], (3, 4)), lambda fraction: None, Held(ReplayLog(1e9), {}))


def test_a_pc_that_is_short_of_memory_gets_back_what_nothing_is_in(tiny, monkeypatch):
    engine, given_back = prepared(tiny[0], 0, 2), []
    pool = type(engine.executor.kv_memory)
    monkeypatch.setattr(pool, "give_back", lambda pool, runs: given_back.append(runs))
    assert not engine.report(watched=False).host_is_short and not given_back
    monkeypatch.setattr(local_engine, "host_is_short", lambda: True)
    assert engine.report(watched=False).host_is_short
    assert given_back == [[(0, engine.executor.kv.blocks_total)]]


def test_rows_are_sketched_from_the_first_report_that_wants_it(tiny):
    """Decode between two layers of a prompt changes nothing."""
    engine = prepared(tiny[0], 0, 2)
    engine.step(StepInputs(prompt(1), PROMPT), nothing, nothing)
    assert engine.report(watched=False).sketches == ()
    assert engine.report(watched=True).sketches == []
    engine.step(StepInputs(prompt(2), PROMPT), nothing, nothing)
    decoded = Batch(0, DECODE, 0, (Span(1, len(PROMPT), len(PROMPT) + 1, True),))
    waiting = [decoded]

    def interrupt() -> None:
        if waiting:
            engine.step(StepInputs(waiting.pop(), [5]), nothing, nothing)

    engine.step(StepInputs(prompt(3), PROMPT), interrupt, nothing)
    third, second = engine.report(watched=True).sketches
    assert not waiting and (second[1:3], third[1:3]) == ((2, len(PROMPT)), (3, len(PROMPT)))
    assert third[3] == pytest.approx(second[3], abs=1e-3)


def test_what_left_its_range_is_in_nobodys_way(tiny):
    engine = prepared(tiny[0], 0, 2)
    engine.step(StepInputs(prompt(1), PROMPT), nothing, nothing)
    blocks = list(engine.executor.kv.table(1))
    engine.release(Release(1), wiped=True)
    assert not any(rows[blocks].any() for rows in engine.executor.kv_memory.block_rows())
