"""The tail decides when a sequence ends: a stop token, a stop string, its grammar's end, or its
length. Of the tokens of a batch that are one sequence's, what follows its end is void."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from molink.engine_protocol.drawn import DrawnToken, GrammarState
from molink.engine_protocol.values import Drafts
from molink.serving.model_card import ChatTokenizer
from molink.serving.text_stream import TextStream
from molink.wire.frames import SAMPLES_MAX, FinishReason, PromptScore, Sampled, TokenSample
from molink_scheduler.batch import PREFILL, Admission, Batch, RowFault

_FINISHES = {
    RowFault.RECEIVED: FinishReason.REFUSED,
    RowFault.OVERFLOWN: FinishReason.OVERFLOWN,
}


@dataclass(slots=True)
class _Ending:
    """Conditions by which one sequence ends, and how far it is."""

    admission: Admission
    generated_tokens: int
    text: TextStream | None


@dataclass(slots=True)
class EndRules:
    """Judge of the drawn tokens: keeps the endings of all sequences on the ring."""

    tokenizer: ChatTokenizer | None
    _endings: dict[int, _Ending] = field(default_factory=dict)

    def sampled(
        self,
        batch: Batch,
        drawn: Iterable[DrawnToken],
        scores: Sequence[PromptScore] = (),
        drafts: Drafts = (),
        forced: Drafts = (),
    ) -> tuple[Sampled, list[Sampled]]:
        """Message to the head about a batch, with drafts of those that go on, before others those
        that are `forced`; and those to the coordinator: the scores of prompts, then each token with
        its log-probabilities, in as many messages as that takes."""
        self.admit(batch.admissions)
        refused = _refused(batch, scores)
        drawn = tuple(token for token in drawn if token.request_id not in refused)
        scores = [score for score in scores if score.request_id not in refused]
        waits = self._waits(drawn) if batch.batch_class is PREFILL else {}
        samples = tuple(self._judged(drawn))
        samples += tuple(TokenSample(one, 0, finish) for one, finish in refused.items())
        bare = tuple(TokenSample(s.request_id, s.token_id, s.finish) for s in samples)
        guessed = dict(drafts)
        # A guess that begins with what is forced, and goes on, is the better one.
        sure = {one: ids for one, ids in forced if guessed.get(one, ())[: len(ids)] != ids}
        home = _of_those_that_go_on(guessed | sure, samples)
        returned = Sampled(
            *(batch.batch_class, batch.micro_batch, batch.spans, bare, batch.stamps),
            drafts=home,
            forced=tuple(one for one, _ in home if one in sure),
        )
        empty = Sampled(batch.batch_class, batch.micro_batch, (), ())
        copies = [
            replace(empty, scores=tuple(scores[start : start + SAMPLES_MAX]))
            for start in range(0, len(scores), SAMPLES_MAX)
        ]
        told = _without_redone(batch, samples)
        copies += [_copy(batch, some, waits) for some in _in_messages(told)]
        return returned, copies

    def _judged(self, drawn: Iterable[DrawnToken]) -> Iterator[TokenSample]:
        """Each token of a request, up to the one with which it ends."""
        ended = set[int]()
        for token in drawn:
            request_id, token_id = token.request_id, token.token_id
            if request_id in ended:
                continue
            finish = FinishReason.OVERFLOWN  # Of what is no number.
            if not token.is_lost:
                finish = self.judge(request_id, token_id, token.grammar)
            if finish is not FinishReason.NONE:
                ended.add(request_id)
            yield TokenSample(request_id, token_id, finish, token.logprob, token.top)

    def _waits(self, drawn: Iterable[DrawnToken]) -> dict[int, tuple[float, int]]:
        """Waits of the requests whose first tokens these are, and how many tokens of each were
        cached; before they are judged."""
        own = (token.request_id for token in drawn if not token.is_lost)
        endings = {request_id: self._endings[request_id] for request_id in own}
        return {
            request_id: (ending.admission.waited_s, ending.admission.cached_tokens)
            for request_id, ending in endings.items()
            if ending.generated_tokens == len(ending.admission.output)
        }

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Start to watch sequences, from what they have generated before."""
        for admission in admissions:
            self._endings[admission.request_id] = _Ending(
                admission, len(admission.output), self._text_stream(admission)
            )

    def forget(self, request_id: int) -> None:
        """Stop watching; an unknown id is fine."""
        self._endings.pop(request_id, None)

    def judge(
        self, request_id: int, token_id: int, grammar: GrammarState = GrammarState.OPEN
    ) -> FinishReason:
        """Whether the sequence ends with this token."""
        ending = self._endings[request_id]
        ending.generated_tokens += 1
        sampling = ending.admission.sampling
        if grammar is GrammarState.FAILED:
            return FinishReason.GRAMMAR_FAILED
        if grammar is GrammarState.ENDED or token_id in sampling.stop_token_ids:
            return FinishReason.STOP
        if ending.text is not None:
            ending.text.push((token_id,))
            if ending.text.stopped_at is not None:
                return FinishReason.STOP
        if ending.generated_tokens >= sampling.max_tokens:
            return FinishReason.LENGTH
        return FinishReason.NONE

    def _text_stream(self, admission: Admission) -> TextStream | None:
        sampling = admission.sampling
        if not sampling.stop or self.tokenizer is None:
            return None
        stream = TextStream.of(self.tokenizer, sampling)
        stream.push(admission.output)
        return stream


def _refused(batch: Batch, scores: Iterable[PromptScore]) -> dict[int, FinishReason]:
    """Requests that get no token, and why: a stage has refused their rows, or the score of their
    prompts is no number."""
    lost = [score.request_id for score in scores if math.isnan(score.logprob)]
    refused = dict.fromkeys(lost, FinishReason.OVERFLOWN)
    return refused | {one.request_id: _FINISHES[one.fault] for one in batch.refused}


def _of_those_that_go_on(
    drafts: Mapping[int, tuple[int, ...]], samples: Iterable[TokenSample]
) -> Drafts:
    """Drafts of requests that have a token, and no end."""
    ends = {sample.request_id: sample.finish for sample in samples}
    go_on = (one for one in drafts.items() if ends.get(one[0]) is FinishReason.NONE)
    return tuple(go_on)


def _without_redone(batch: Batch, samples: Iterable[TokenSample]) -> list[TokenSample]:
    """Tokens that the coordinator is told. Where rows of a span with drafts went beyond their
    format it may have been a draft's: the head has such a request computed anew, without drafts,
    and if its own rows do the same, it ends then."""
    drafted = {span.request_id for span in batch.spans if span.drafts}
    return [
        one
        for one in samples
        if one.finish is not FinishReason.OVERFLOWN or one.request_id not in drafted
    ]


def _in_messages(samples: Iterable[TokenSample]) -> list[list[TokenSample]]:
    """The tokens of each message to the coordinator: all of a request's are in one."""
    messages = list[list[TokenSample]]()
    for _, own in groupby(samples, lambda one: one.request_id):
        some = list(own)
        if not messages or len(messages[-1]) + len(some) > SAMPLES_MAX:
            messages.append([])
        messages[-1] += some
    return messages


def _copy(
    batch: Batch, samples: Iterable[TokenSample], waits: Mapping[int, tuple[float, int]]
) -> Sampled:
    """Message to the coordinator about some tokens."""
    own = dict.fromkeys(one.request_id for one in samples)
    told = tuple((one, *waits[one]) for one in own if one in waits)
    drafts = ((span.request_id, len(span.drafts)) for span in batch.spans if span.drafts)
    drafted = tuple((one, count) for one, count in drafts if one in own)
    tokens = tuple(samples)
    return Sampled(batch.batch_class, batch.micro_batch, (), tokens, waits=told, drafted=drafted)
