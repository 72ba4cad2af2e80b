"""What a tail's message tells of each request: tokens for its user, or the end of its answer.

A message brings one token of a request, or several where drafts of it came true. A user is told
them as one event; what could be told of them one by one is in it (`TokenEvent.by_token`). All that
a message says is checked before anything of it is told, so what users have, and from where a
request goes on when its ring loses a stage, are always whole messages.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from molink.coordinator.ring.live_sequence import LiveSequence
from molink.coordinator.ring.prompt_scores import untrue
from molink.errors import InvalidRequestError, MolinkError, RowsRefusedError
from molink.serving.token_events import TokenEvent, TokenLogprob
from molink.wire.frames import FinishReason, Sampled, TokenSample
from molink_scheduler.batch import DRAFTS_MAX

_FINISH_REASONS = {
    FinishReason.NONE: None,
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}
"""By the tail's reason, but for a grammar that failed: that is an error."""


REFUSALS = {
    FinishReason.REFUSED: "A PC was sent numbers of this request that are none: send it again.",
    FinishReason.OVERFLOWN: "Numbers of this request grow beyond the number format in which PCs "
    "compute it: shorten it, or have the model served with --dtype float32.",
}
"""What users are told where a request ends for its rows' sake."""


@dataclass(frozen=True, slots=True)
class RoundTokens:
    """Tokens that one message brings of one request."""

    request_id: int
    samples: Sequence[TokenSample]
    """Its tokens in their order, at least one."""
    drafts: int
    """Drafts of it that were verified; those right are tokens before the last."""

    @property
    def is_end(self) -> bool:
        """Whether the answer has ended."""
        return bool(self.samples[-1].finish)

    @property
    def rows(self) -> int:
        """Rows of which it tells, those of drafts in vain among them."""
        return 1 + self.drafts


def tokens_of(message: Sampled) -> list[RoundTokens]:
    """The tokens of each request in a message, in the order in which they stand there; one that is
    refused twice is refused."""
    samples: dict[int, list[TokenSample]] = {}
    for one in message.tokens:
        own = samples.setdefault(one.request_id, [])
        if not (own and one.finish in REFUSALS and own[-1].finish in REFUSALS):
            own.append(one)
    drafts = dict(message.drafted)
    return [
        RoundTokens(request_id, some, max(drafts.get(request_id, 0), len(some) - 1))
        for request_id, some in samples.items()
    ]


def take_prompt_tokens(
    message: Sampled,
    all_live: Mapping[int, LiveSequence],
    next_request_id: int,
    vocabulary_size: int,
) -> str | None:
    """Take what a message says of prompts' tokens; why it cannot be honest, else None."""
    for said in message.scores:
        why = untrue(said, next_request_id, vocabulary_size)
        if why is None and (live := all_live.get(said.request_id)) is not None:
            why = live.take_of_prompt(said)
        if why is not None:
            return why
    return None


def objection(
    rounds: Iterable[RoundTokens],
    all_live: Mapping[int, LiveSequence],
    next_request_id: int,
    vocabulary_size: int,
) -> str | None:
    """Why a message's tokens cannot be the honest next ones of their requests; None: they can."""
    for tokens in rounds:
        untruths = (untrue(one, next_request_id, vocabulary_size) for one in tokens.samples)
        live = all_live.get(tokens.request_id)
        if (why := next(filter(None, untruths), None) or _objection(tokens, live)) is not None:
            return why
    return None


def _objection(tokens: RoundTokens, live: LiveSequence | None) -> str | None:
    if tokens.drafts > DRAFTS_MAX:
        return "more tokens or drafts of a request than a span has"
    if any(one.finish for one in tokens.samples[:-1]):
        return "tokens behind the end of an answer"
    if live is None:
        return None
    if tokens.samples[0].finish not in REFUSALS and _lacks_scores(live):
        return "a token before the log-probabilities of its prompt"
    left = live.sampling.max_tokens - live.generated_tokens
    objections = (_unasked(one, left - at, live) for at, one in enumerate(tokens.samples))
    return next(filter(None, objections), None)


def _lacks_scores(live: LiveSequence) -> bool:
    return live.scores is not None and not live.has_token and not live.scores.is_complete


def _unasked(token: TokenSample, left: int, live: LiveSequence) -> str | None:
    """`left`: tokens that the answer may still have, this one among them."""
    if token.finish in REFUSALS:
        return None
    if token.finish is FinishReason.GRAMMAR_FAILED and not live.sampling.grammar:
        return "the end of a grammar that nobody has asked for"
    if left < 1 or (left == 1 and token.finish is FinishReason.NONE):
        return "more tokens than were asked for"
    return None


def events_for(
    tokens: RoundTokens, live: LiveSequence, eos_token_ids: Collection[int], now: float
) -> list[TokenEvent | MolinkError]:
    """Tokens of a sequence have come, or its end without one: what its user is told of it."""
    finish = tokens.samples[-1].finish
    drawn = tokens.samples[:-1] if finish in REFUSALS else tokens.samples
    sent = drawn[:-1] if finish is FinishReason.GRAMMAR_FAILED else drawn
    if drawn:
        live.take([one.token_id for one in drawn], now)
    found: list[TokenEvent | MolinkError] = []
    if sent:
        found.append(_event(sent, tokens.drafts, live, eos_token_ids))
    if (why := REFUSALS.get(finish)) is not None:
        found.append(RowsRefusedError(why))
    elif finish is FinishReason.GRAMMAR_FAILED:
        found.append(
            InvalidRequestError(
                f"The grammar could not be followed beyond {live.generated_tokens - 1} tokens of "
                "the answer: simplify it; if all grammars end so, this model's tokenizer suits "
                "none."
            )
        )
    return found


def _event(
    samples: Sequence[TokenSample], drafts: int, live: LiveSequence, eos_token_ids: Collection[int]
) -> TokenEvent:
    texts = tuple(_text_of(one, live) for one in samples)
    last, scores = samples[-1], live.scores
    return TokenEvent(
        tuple(one.token_id for one in samples),
        "".join(texts),
        tuple(
            TokenLogprob(one.token_id, one.logprob, one.top)
            for one in samples
            if one.logprob is not None
        ),
        _FINISH_REASONS[last.finish],
        _stop_reason(last, live, eos_token_ids),
        () if scores is None or live.has_token else scores.all(),
        texts if len(texts) > 1 else (),
        drafts,
    )


def _text_of(token: TokenSample, live: LiveSequence) -> str:
    """Text that became final."""
    if live.text is None:
        return ""
    is_last = token.finish is not FinishReason.NONE
    return live.text.of_token(token.token_id, live.sampling, is_last=is_last)


def _stop_reason(
    token: TokenSample, live: LiveSequence, eos_token_ids: Collection[int]
) -> str | int | None:
    """The stop string or token of the request with which it ends."""
    if token.finish is not FinishReason.STOP:
        return None
    if live.text is not None and live.text.stopped_at is not None:
        return live.text.stopped_at
    asked = set(live.sampling.stop_token_ids) - set(eos_token_ids)
    return token.token_id if token.token_id in asked else None
