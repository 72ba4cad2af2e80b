"""A stage whose weights lie in another process: the library's tokens, whatever happens to that."""

import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from molink.engine.local_engine import LocalEngine
from molink.engine_protocol.values import StepInputs
from molink.errors import StageError, UnsupportedModelError, UserError
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Span
from tests.compute.apart import (
    apart_engine,
    client,
    end,
    ended,
    kill_computing,
    weights_process,
)
from tests.engine.test_local_engine import GREEDY, PROMPT, Ring, load, nothing, prepared, prompt
from tests.engine.tiny_models import LAYERS, generate, save_tiny
from tests.sweeps import swept

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="weights are forked on Linux alone")

OTHER = PROMPT[::-1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    return directory, save_tiny("llama", directory)


@pytest.fixture(scope="module")
def ring(tiny):
    """Two stages, the second of which has its KV apart from its weights; and that stage."""
    apart = apart_engine(tiny[0], (2, LAYERS), threads=2)
    yield Ring([prepared(tiny[0], 0, 2), apart]), apart
    end(apart)


def decode(known: list[int]) -> Batch:
    return Batch(0, DECODE, 0, (Span(1, len(known) - 1, len(known), samples=True),))


def test_two_stages_with_weights_apart_say_what_the_library_says(ring, tiny):
    assert ring[0].generate(9) == generate(tiny[1], PROMPT, 9)


def test_this_process_holds_no_weights_and_the_other_one_no_kv(ring):
    apart, alone = ring[1].executor, ring[0].engines[0].executor
    assert apart.model is None and apart.weights_bytes > alone.weights_bytes > 0
    assert apart.kv_token_bytes == alone.kv_token_bytes // 2 * (LAYERS - 2)
    assert weights_process(ring[1]).num_threads() == 1, "a fork has no other thread than its own"


def test_a_killed_process_costs_no_token_and_no_row(ring, tiny, caplog):
    """Before a step and within one; each row is attended to once, but for the step under way."""
    apart, known = ring[1], list(PROMPT)
    (token,) = ring[0].step(prompt(1), PROMPT).drawn
    known.append(token.token_id)
    lost, before = [], client(apart).replaced
    while len(known) < len(PROMPT) + 12:
        if len(known) % 4 == 0:
            lost.append(kill_computing(apart))
        (token,) = ring[0].step(decode(known), known[-1:]).drawn
        known.append(token.token_id)
    assert known[len(PROMPT) :] == generate(tiny[1], PROMPT, 12)
    assert len(lost) == len(set(lost)) == client(apart).replaced - before == 3
    assert apart.executor.kv.tokens_used >= len(known) - 1, "what was computed is still there"
    assert caplog.text.count("computes a step of 1 rows again") == 3


def test_killed_between_two_layers_while_another_step_interrupts(ring, tiny):
    """The prompt's pass and the one within it are both made again by the same new process."""
    apart, first = ring[1], ring[0].engines[0]
    rows_TD = first.step(StepInputs(prompt(1), PROMPT), nothing, nothing).rows_TD
    (token,) = apart.step(StepInputs(prompt(1), PROMPT, [rows_TD]), nothing, nothing).drawn
    known, before, calls = [*PROMPT, token.token_id], client(apart).replaced, []
    second = Batch(1, PREFILL, -1, (Span(2, 0, len(OTHER), samples=True),), (of_second(),))
    others_TD = first.step(StepInputs(second, OTHER), nothing, nothing).rows_TD
    inner_TD = first.step(StepInputs(decode(known), known[-1:]), nothing, nothing).rows_TD

    def interrupt() -> None:
        calls.append(None)
        if len(calls) == 3:
            kill_computing(apart)
            inputs = StepInputs(decode(known), known[-1:], [inner_TD])
            (drawn,) = apart.step(inputs, nothing, nothing).drawn
            known.append(drawn.token_id)

    (drawn,) = apart.step(StepInputs(second, OTHER, [others_TD]), interrupt, nothing).drawn
    assert known[len(PROMPT) :] == generate(tiny[1], PROMPT, 2)
    assert [drawn.token_id] == generate(tiny[1], OTHER, 1)
    assert client(apart).replaced == before + 1
    assert len(calls) == 3 + LAYERS - 2, "all layers of the pass that was made again, and no other"


def of_second() -> Admission:
    return Admission(2, len(OTHER), 64, GREEDY)


def test_a_step_that_fails_here_leaves_a_stage_that_computes(ring, tiny):
    """Its pass waits in the other process, which therefore goes."""
    apart = ring[1]
    rows_TD = ring[0].engines[0].step(StepInputs(prompt(1), PROMPT), nothing, nothing).rows_TD

    def fail() -> None:
        raise StageError("somebody else's trouble")

    with pytest.raises(StageError, match="somebody else"):
        apart.step(StepInputs(prompt(1), PROMPT, [rows_TD]), fail, nothing)
    assert ring[0].generate(4) == generate(tiny[1], PROMPT, 4)


def test_a_process_that_stands_still_when_it_is_replaced_ends(ring):
    apart = ring[1]
    stopped = weights_process(apart).children()[-1]
    os.kill(stopped.pid, signal.SIGSTOP)
    client(apart)._link.close()
    ring[0].generate(2)
    deadline = time.monotonic() + 30
    while stopped.is_running() and stopped.status() != "zombie":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_both_processes_killed_cost_a_loading_and_no_kv(ring, tiny):
    apart, known = ring[1], list(PROMPT)
    (token,) = ring[0].step(prompt(1), PROMPT).drawn
    known.append(token.token_id)
    loaded = weights_process(apart)
    kill_computing(apart)
    loaded.kill()
    loaded.wait()
    (token,) = ring[0].step(decode(known), known[-1:]).drawn
    assert [*known, token.token_id][len(PROMPT) :] == generate(tiny[1], PROMPT, 2)


KINDS = ("gpt_oss", "gemma3_text", "qwen3", "gemma2", "gemma4_text", "mixtral", "opt", "phi3")


@pytest.mark.parametrize("kind", swept(KINDS, "gpt_oss", "gemma2"))
def test_attention_of_many_kinds(kind, tmp_path):
    """Sinks, windows, caps of scores, biases: what a layer calls its attention with all comes."""
    model = save_tiny(kind, tmp_path)
    engines = [apart_engine(tmp_path, ends) for ends in ((0, 3), (3, LAYERS))]
    with ended(*engines):
        assert Ring(engines).generate(9) == generate(model, PROMPT, 9)


def test_bfloat16_rows_are_those_of_a_whole_stage_to_the_bit(tiny):
    engine = apart_engine(tiny[0], (0, 2), "bfloat16")
    with ended(engine):
        rows_TD = engine.step(StepInputs(prompt(1), PROMPT), nothing, nothing).rows_TD
    wanted_TD = (
        prepared(tiny[0], 0, 2, "bfloat16")
        .step(StepInputs(prompt(1), PROMPT), nothing, nothing)
        .rows_TD
    )
    assert rows_TD.dtype == np.uint16 and rows_TD.tobytes() == wanted_TD.tobytes()


def test_layers_that_attend_with_their_weights_are_refused(tmp_path):
    save_tiny("deepseek_v3", tmp_path)
    with pytest.raises(UserError, match="latent attention"):
        apart_engine(tmp_path, (0, 2))


def test_refusals(tiny):
    with pytest.raises(UnsupportedModelError, match="drafts"):
        apart_engine(tiny[0], (2, LAYERS), drafts=True)
    with pytest.raises(UserError, match="cuda"):
        apart_engine(tiny[0], (0, 2), device="cuda:0")
    command = replace(load(tiny[0], (0, 2)), attention_device="host")
    with pytest.raises(UserError, match="Linux alone"):
        LocalEngine().prepare(command, lambda fraction: None)
