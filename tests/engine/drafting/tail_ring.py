"""A ring in one process whose tail drafts: its drafts and tokens are held against the library's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from random import Random

from molink.engine.loading import load_stage
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_output import StepOutput
from molink.stage_protocol.messages import StageWork
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.request import SamplingParams
from tests.engine.drafting.tail_checkpoints import Oracle

EXPECTED_TOKENS = 100
WANTS_MAX = 6


def drafting_stages(
    directory: Path,
    cuts: Sequence[int],
    drafts: bool = True,
    assistant: Path | None = None,
    **options,
) -> list[StageExecutor]:
    options = {"device": "cpu", "dtype": "float32", "kv_tokens": 512, "drafts": drafts} | options
    works = [StageWork(cut, **options) for cut in pairwise(cuts)]
    named = None if assistant is None else str(assistant)
    return [load_stage(str(directory), one, self_test=False, assistant=named) for one in works]


@dataclass
class Request:
    """Request on its way; its next span begins at `start`."""

    request_id: int
    known: list[int]
    prompt: int
    params: SamplingParams
    start: int = 0
    guessed: list[int] = field(default_factory=list)
    """Drafts that the tail sent for what comes next."""
    strange: dict[int, int] = field(default_factory=dict)
    """Rows in cached blocks that another request's next token was given to."""

    @property
    def output(self) -> list[int]:
        return self.known[self.prompt :]


@dataclass
class TailRing:
    stages: list[StageExecutor]
    oracle: Oracle
    random: Random
    requests: dict[int, Request] = field(default_factory=dict)
    drafted: int = 0
    right: int = 0
    ids = count(1)

    @property
    def tail(self) -> StageExecutor:
        return self.stages[-1]

    def admission(self, one: Request, **cached) -> Admission:
        prompt = tuple(one.known[: one.prompt]) if one.params.needs_prompt else ()
        given = (one.request_id, one.prompt, EXPECTED_TOKENS, one.params, prompt)
        return Admission(*given, tuple(one.output), **cached)

    def prompts(self, *pieces: tuple[Request, int, int], **cached) -> None:
        """Compute a piece of each of these requests' tokens: up to a position; and so many drafts
        are wanted behind the last."""
        spans, ids, admissions = [], list[int](), []
        for one, end, wants in pieces:
            if one.request_id not in self.requests:
                self.requests[one.request_id] = one
                admissions.append(self.admission(one, **cached))
            samples = end == len(one.known)
            spans.append(Span(one.request_id, one.start, end, samples, wants=wants * samples))
            ids += one.known[one.start : end]
        self._step(PREFILL, spans, ids, admissions)

    def decode(self, *turns: tuple[Request, list[int], int]) -> None:
        """Compute the next token of each of these requests and drafts behind it."""
        spans, ids = [], list[int]()
        for one, drafts, wants in turns:
            end = one.start + 1 + len(drafts)
            spans.append(Span(one.request_id, one.start, end, True, tuple(drafts), wants))
            ids += [one.known[-1], *drafts]
        self._step(DECODE, spans, ids, [])

    def release(self, one: Request) -> None:
        del self.requests[one.request_id]
        for stage in self.stages:
            stage.release(Release(one.request_id))

    def _step(self, kind: BatchClass, spans, ids, admissions) -> None:
        micro_batch = 0 if kind is DECODE else -1
        batch = Batch(next(self.ids), kind, micro_batch, tuple(spans), tuple(admissions))
        output = StepOutput(None, token_ids=tuple(ids))
        for stage in self.stages:
            output = stage.step(batch, output.token_ids, output.hidden_TD)
        drafts = dict(output.drafts)
        assert len(drafts) == len(output.drafts) and drafts.keys() <= {s.request_id for s in spans}
        for span in spans:
            one = self.requests[span.request_id]
            tokens = [t.token_id for t in output.drawn if t.request_id == span.request_id]
            assert bool(tokens) == span.samples
            for token in tokens:
                assert token == self.oracle.next_token(one.known, one.prompt, one.params)
                one.known.append(token)
            one.start = len(one.known) - 1 if tokens else span.end
            one.guessed = list(drafts.get(span.request_id, ()))
            assert one.guessed == self.due(one, span.wants)
            self.drafted += len(one.guessed)

    def due(self, one: Request, wants: int) -> list[int]:
        """Drafts that the library gives, as many as the request has blocks for."""
        held = BLOCK_TOKENS * len(self.tail.kv.table(one.request_id))
        wants = max(0, min(wants, held - len(one.known) + 2))
        return self.oracle.drafts(one.known, one.prompt, one.params, wants, one.strange)

    def turn(self, one: Request) -> tuple[Request, list[int], int]:
        """A decode turn of random drafts: the tail's own, the truth, wrong from some depth on."""
        source = self.random.choice(["none", "tail", "truth", "truth"])
        drafts = one.guessed if source == "tail" else []
        known = list(one.known)
        for _ in range(self.random.randint(0, 4) if source == "truth" else 0):
            known.append(self.oracle.next_token(known, one.prompt, one.params))
        drafts = [*drafts, *known[len(one.known) :]]
        if drafts and self.random.random() < 0.5:
            at = self.random.randrange(len(drafts))
            drafts[at] = (drafts[at] + 1) % 160
        return one, drafts, self.random.randint(0, WANTS_MAX)

    def play(self, requests: Sequence[Request], tokens: int, preempts: bool = True) -> None:
        """Answer requests to so many tokens each, in steps of any of them and any size."""
        live = list(requests)
        while live:
            chosen = self.random.sample(live, self.random.randint(1, len(live)))
            in_prompt = [one for one in chosen if one.start < len(one.known) - 1 or not one.output]
            if in_prompt and self.random.random() < 0.6:
                pieces = [
                    (one, self.random.randint(one.start + 1, len(one.known)), WANTS_MAX)
                    for one in in_prompt
                ]
                self.prompts(*pieces)
            elif ready := [one for one in chosen if one not in in_prompt]:
                self.decode(*map(self.turn, ready))
                if preempts and self.random.random() < 0.1:
                    self.release(ready[0])
                    ready[0].start = 0
            for one in [one for one in live if len(one.output) >= tokens]:
                live.remove(one)
                if one.request_id in self.requests:
                    self.release(one)
