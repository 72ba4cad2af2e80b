"""A ring in one process: plans batches as simply as possible and hands them from stage to stage."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_output import StepOutput
from molink.engine_protocol.drawn import DrawnToken
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)


def load_stages(
    directory: Path,
    cuts: tuple[int, ...],
    dtype: str = "float32",
    *,
    self_test: bool = False,
    kv_dtype: str = "auto",
    device: str = "cpu",
) -> list[StageExecutor]:
    options = {"dtype": dtype, "kv_tokens": 1024, "self_test": self_test, "kv_dtype": kv_dtype}
    options |= {"device": device}
    return [cpu_stage(directory, range(start, end), **options) for start, end in pairwise(cuts)]


@dataclass
class Job:
    """One request on its way through the ring."""

    request_id: int
    prompt: list[int]
    tokens: int
    sampling: SamplingParams = GREEDY
    scattered: bool = False
    """Whether the stages are told nothing of its size, so that its KV ends up in pieces."""
    known: list[int] = field(init=False)
    computed: int = 0
    drawn: list[DrawnToken] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = list(self.prompt)

    @property
    def output(self) -> list[int]:
        return self.known[len(self.prompt) :]

    @property
    def is_done(self) -> bool:
        return len(self.output) >= self.tokens

    def admission(self) -> Admission:
        expected = 1 if self.scattered else len(self.prompt) + self.tokens
        prompt = tuple(self.prompt) if self.sampling.needs_prompt else ()
        return Admission(self.request_id, len(self.prompt), expected, self.sampling, prompt)

    def next_span(self, tokens_max: int) -> Span:
        end = min(len(self.known), self.computed + tokens_max)
        return Span(self.request_id, self.computed, end, end == len(self.known))


@dataclass
class RingDriver:
    stages: list[StageExecutor]
    span_tokens: int = 7
    join_every: int = 2
    """Rounds between arrivals, so that prompts and decodes share batches."""
    batches: int = 0

    def run(self, jobs: list[Job]) -> list[list[int]]:
        waiting, active, turn = list(jobs), [], 0
        while waiting or active:
            if waiting and turn % self.join_every == 0:
                active.append(waiting.pop(0))
            turn += 1
            if active:
                self._round(active)
            for job in [job for job in active if job.is_done]:
                active.remove(job)
                for stage in self.stages:
                    stage.release(Release(job.request_id))
        return [job.output for job in jobs]

    def _round(self, active: list[Job]) -> None:
        spans = [job.next_span(self.span_tokens) for job in active]
        new = tuple(job.admission() for job in active if job.computed == 0)
        batch = Batch(self.batches, BatchClass.PREFILL, -1, tuple(spans), new)
        self.batches += 1
        ids = [
            token
            for job, span in zip(active, spans, strict=True)
            for token in job.known[span.start : span.end]
        ]
        drawn = {token.request_id: token for token in step_all(self.stages, batch, ids)}
        for job, span in zip(active, spans, strict=True):
            job.computed = span.end
            if job.request_id in drawn:
                job.drawn.append(drawn[job.request_id])
                job.known.append(drawn[job.request_id].token_id)


def step_all(
    stages: list[StageExecutor], batch: Batch, token_ids: list[int]
) -> tuple[DrawnToken, ...]:
    return step_output(stages, batch, token_ids).drawn


def step_output(stages: list[StageExecutor], batch: Batch, token_ids: list[int]) -> StepOutput:
    output = stages[0].step(batch, token_ids)
    for stage in stages[1:]:
        output = stage.step(batch, output.token_ids, output.hidden_TD)
    return output
