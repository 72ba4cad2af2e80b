"""A live stage tells its link T_a in each of the paper's cases; without the call the link is wrong.

Steps take no time here: the engine says that they took `ROW_S` for each row, so T_d is known
without waiting. Every other step has three rows, so that the last result is due later than a
round could say.
"""

import queue
import time

import numpy as np
import pytest

from molink.engine_protocol.values import StepResult
from molink.stage.links import StageLinks
from molink.stage.packing import Packing
from molink.wire.frames import Activations, Forget
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.request import SamplingParams
from tests.stage.echo_engine import HIDDEN, LAST_REQUEST, EchoTail
from tests.stage.running_stage import ANSWERS_WITHIN_S, Neighbours, join

ROW_S = 0.5
ROWS = (1, 3, 1, 3)
"""Rows of the steps."""


class Middle(EchoTail):
    """Engine of a stage that passes rows on, and looks at its link while it computes."""

    def __init__(self):
        super().__init__()
        self.seen: queue.SimpleQueue = queue.SimpleQueue()
        self.due_at = lambda: None

    def step(self, inputs, interrupt, make_room):
        self.seen.put((time.monotonic(), self.due_at()))
        return StepResult(np.concatenate(inputs.rows), computed_s=ROW_S * inputs.batch.tokens)


@pytest.fixture
def due_times():
    """Runs a stage for some rounds: (t_c, t_c + T_a on its link) within each step, and afterwards
    the same once its last result has left."""

    def run():
        stage, peer = (StageLinks.bind(name, "127.0.0.1", False, lambda _: None) for name in "ab")
        stage.connect(join(peer.ports[0]))
        peer.connect(join(stage.ports[0]))
        engine = Middle()
        engine.due_at = lambda: stage._next.sender._next_decode_due_at
        neighbours = Neighbours(stage, peer, engine, is_tail=False)
        try:
            for number in range(len(ROWS)):
                peer.send_next(decode_step(number))
                peer.wait(ANSWERS_WITHIN_S)
                assert len(list(peer.receive())) == 1
            return [engine.seen.get() for _ in ROWS], engine.due_at()
        finally:
            peer.send_next(Forget(Release(LAST_REQUEST)))
            neighbours.thread.join(ANSWERS_WITHIN_S)
            for one in (stage, peer):
                one._links.close()

    return run


def decode_step(number):
    """One token of each of the first requests, which joined in the first two steps."""
    count, before = ROWS[number], [sum(rows > one for rows in ROWS[:number]) for one in range(3)]
    spans = tuple(Span(one, before[one], before[one] + 1, True) for one in range(count))
    sampling = SamplingParams(max_tokens=512)
    admitted = tuple(Admission(one, 1, 512, sampling) for one in range(count) if not before[one])
    batch = Batch(number, BatchClass.DECODE, 0, spans, admitted)
    rows = np.linspace(-1, 1, count * HIDDEN, dtype=np.float32).reshape(count, -1)
    return Activations(batch, *Packing(HIDDEN).pack(rows, "raw"))


def step_is_told(within):
    """Cases 1 and 2: within the last step T_a is T_d, less what has passed since it began."""
    now, due_at = within[-1]
    step_s = ROW_S * ROWS[-1]
    return due_at is not None and 0.9 * step_s < due_at - now < step_s + 0.1


def round_is_told(within, afterwards):
    """Case 3: once it has ended, decode is due a round and a step later than it came."""
    _, step_due_at = within[-1]
    return afterwards is not None and afterwards > step_due_at


def test_a_step_that_has_begun_and_a_round_are_told_to_the_link(due_times):
    within, afterwards = due_times()
    assert step_is_told(within) and round_is_told(within, afterwards)


CALLS = {"cases 1 and 2": "set_decode_result_due", "case 3": "set_next_decode_due"}


@pytest.mark.parametrize("case", CALLS)
def test_leaving_a_call_out_is_noticed(due_times, monkeypatch, case):
    monkeypatch.setattr(StageLinks, CALLS[case], lambda links, due_at: None)
    within, afterwards = due_times()
    told = {"cases 1 and 2": step_is_told(within), "case 3": round_is_told(within, afterwards)}
    assert not told[case]
