"""A ring in one process whose decode batches carry drafts, and whose tail judges what it draws."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from molink.engine.step.stage import StageExecutor
from molink.stage.tail import EndRules
from molink.wire.frames import FinishReason, TokenSample
from molink_scheduler.batch import (
    DECODE,
    DRAFTS_MAX,
    PREFILL,
    Admission,
    Batch,
    Release,
    Span,
)
from molink_scheduler.request import SamplingParams
from tests.engine.ring_driver import step_output

Drafter = Callable[[int, Sequence[int]], Sequence[int]]
"""Drafts of a request behind so many of its output's tokens."""

EXPECTED_TOKENS = 300

OPEN = FinishReason.NONE


def nothing(request_id: int, output: Sequence[int]) -> Sequence[int]:
    return ()


@dataclass
class DraftingRing:
    """Requests that begin together; each decode batch has some of them."""

    stages: list[StageExecutor]
    tokenizer: object = None
    drafter: Drafter = nothing
    random: Random = field(default_factory=lambda: Random(0))
    wants: int = 0
    """Drafts that each span wants of its grammar."""
    forced: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Those that came home with the last tokens of a request."""
    forced_drafts: int = 0
    rounds: int = 0
    ids = itertools.count(1)

    def answers(
        self, prompts: Sequence[list[int]], params: Sequence[SamplingParams]
    ) -> list[list[TokenSample]]:
        """Tokens of each prompt's answer, with their log-probabilities and finishes."""
        rules, drawn = (
            EndRules(self.tokenizer),
            {n: list[TokenSample]() for n in range(len(prompts))},
        )
        admissions = tuple(
            Admission(
                n, len(prompt), EXPECTED_TOKENS, own, tuple(prompt if own.needs_prompt else ())
            )
            for n, (prompt, own) in enumerate(zip(prompts, params, strict=True))
        )
        spans = tuple(
            Span(n, 0, len(prompt), True, wants=self.wants) for n, prompt in enumerate(prompts)
        )
        self._step(PREFILL, spans, list(itertools.chain(*prompts)), rules, drawn, admissions)
        while live := [n for n, own in drawn.items() if own[-1].finish is OPEN]:
            chosen = sorted(self.random.sample(live, self.random.randint(1, len(live))))
            spans, ids = [], list[int]()
            for n in chosen:
                known, output = len(prompts[n]) + len(drawn[n]), [one.token_id for one in drawn[n]]
                left = params[n].max_tokens - len(output) - 1
                drafts = self.forced.pop(n, ()) or tuple(self.drafter(n, output))
                drafts = drafts[: min(DRAFTS_MAX, left)]
                spans.append(Span(n, known - 1, known + len(drafts), True, drafts, self.wants))
                ids += [output[-1], *drafts]
            self.rounds += len(spans)
            self._step(DECODE, tuple(spans), ids, rules, drawn)
        for n in drawn:
            for stage in self.stages:
                stage.release(Release(n))
        return list(drawn.values())

    def _step(self, kind, spans, ids, rules, drawn, admissions=()):
        batch = Batch(next(self.ids), kind, -1, spans, admissions)
        output = step_output(self.stages, batch, ids)
        returned, copies = rules.sampled(batch, output.drawn, forced=output.forced)
        assert all(len(own) <= self.wants for _, own in returned.drafts)
        self.forced |= returned.drafts
        self.forced_drafts += sum(len(own) for _, own in returned.drafts)
        for copy in copies:
            for sample in copy.tokens:
                drawn[sample.request_id].append(sample)
        check_returned(spans, returned.tokens)


def check_returned(spans: Sequence[Span], tokens: Sequence[TokenSample]) -> None:
    """What a head relies on: at least a token of each span, and all but the last are its drafts."""
    for span in spans:
        own = [one for one in tokens if one.request_id == span.request_id]
        assert own and [one.token_id for one in own[:-1]] == list(span.drafts[: len(own) - 1])
        assert all(one.finish is OPEN for one in own[:-1])


@dataclass
class Adversary:
    """Drafts that are right to a random depth; wrong ones are taken from the answer itself."""

    answers: list[list[int]]
    random: Random
    width: int = DRAFTS_MAX

    def __call__(self, request_id: int, output: Sequence[int]) -> Sequence[int]:
        whole, at = self.answers[request_id], len(output)
        count, right = self.random.randint(0, self.width), self.random.randint(0, self.width)
        wrong = [self.random.choice(whole) for _ in range(count)]
        return [*whole[at:][:right], *wrong][:count]


def ids_of(answers: Sequence[Sequence[TokenSample]]) -> list[list[int]]:
    return [[one.token_id for one in answer] for answer in answers]
