"""Objections of a head to what it is told and cannot be true; a stage's book has its own.

The head keeps the ring's books, so it knows what it may be told: the coordinator submits requests
that fit the model and the ring, and a batch comes back from the tail as it left, with one token for
each sequence that was to sample, and one more for each draft that came true. What is anything else
would be planned with all the same, and what comes of it is refused, or fails, at another stage,
whose node would be blamed.

Pure: says what is wrong, drops nothing itself.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Several
from itertools import chain

from molink_scheduler.batch import DECODE, Span
from molink_scheduler.events import BatchReturned, SampledToken
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import HeadSettings
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.prompt_cut import PromptCut
from molink_scheduler.request import ModelLimits, Request
from molink_scheduler.timing.round_tracker import stamps_objection


def request_objection(request: Request, kv: KvLedger, settings: HeadSettings) -> str | None:
    """Why a request cannot be computed on this ring; None: it can, when there is room."""
    name, tokens = f"request {request.request_id}", request.tokens_max
    if blocks_for(tokens) > kv.blocks_most:
        return f"{name} may grow to {tokens} tokens, the ring holds {kv.blocks_most * BLOCK_TOKENS}"
    if len(request.output) >= request.sampling.max_tokens:
        return f"{name} has all of its {request.sampling.max_tokens} tokens"
    is_cut = PromptCut.of(request.prompt_tokens, request.sampling.kv_budget).is_cut
    if is_cut and settings.ring.requests_max is not None:
        return f"{name} is to be cut, and no KV is where some of it lies at lenders"
    limits = settings.limits
    if limits is None:
        return None
    if tokens > limits.sequence_tokens_max:
        return f"{name} may grow to {tokens} tokens, the model takes {limits.sequence_tokens_max}"
    others = chain(request.output, request.prediction, request.sampling.named)
    if max(request.prompt_ids) >= limits.vocabulary_size or not limits.has_token_ids(others):
        return f"{name} has a token that is not in the vocabulary"
    return None


def is_awaited(event: BatchReturned, sequences: Mapping[int, Sequence]) -> bool:
    """Whether anything of it is under way: the copy of a return ends nothing."""
    known = ((sequences.get(span.request_id), span) for span in event.spans)
    return any(one is not None and one.awaits(span) for one, span in known)


def return_objection(
    event: BatchReturned,
    sequences: Mapping[int, Sequence],
    departed: Several[Span] | None,
    limits: ModelLimits | None,
    wanted: Callable[[int], int],
) -> str | None:
    """Why an awaited batch cannot have come back so; None: it can. `departed`: the spans that left
    with its slot, if it is a micro-batch; `wanted`: the drafts that the tail may send home with a
    request's span under way."""
    is_decode = event.batch_class is DECODE
    if is_decode and event.spans != tuple(departed or ()):
        return f"micro-batch {event.micro_batch} left with other spans"
    if (objection := stamps_objection(event.stamps)) is not None:
        return objection
    tokens = tokens_by_request(event.sampled)
    for span in event.spans:
        sequence = sequences.get(span.request_id)
        if sequence is None or sequence.decoding != is_decode or not sequence.awaits(span):
            return f"tokens {span.start} to {span.end} of request {span.request_id} are not awaited"
        drawn = tokens.pop(span.request_id, [])
        is_last = span.known_end == len(sequence.known)
        if not drawn and is_last and not sequence.request.sampling.grammar:
            return f"request {span.request_id} lacks a token"
        if not drawn or (len(drawn) == 1 and drawn[0].refused):
            continue
        if len(drawn) > is_last * (1 + len(span.drafts)):
            return f"request {span.request_id} has a token too many"
        if (objection := _run_objection(drawn, span, sequence, limits)) is not None:
            return objection
    if tokens:
        return "it has a token of a request that it did not compute"
    return _home_objection(event, wanted, limits) if event.drafts else None


def _home_objection(
    event: BatchReturned, wanted: Callable[[int], int], limits: ModelLimits | None
) -> str | None:
    """Why the tail cannot have sent these drafts home; None: it can."""
    of_batch = {span.request_id for span in event.spans if span.samples}
    for request_id, token_ids in event.drafts:
        if request_id not in of_batch:
            return f"it has drafts of request {request_id}, of which it drew no token"
        of_batch.remove(request_id)
        most = wanted(request_id)
        if (objection := drafts_objection(request_id, token_ids, most, limits)) is not None:
            return objection
    return None


def drafts_objection(
    request_id: int, token_ids: Several[int], most: int, limits: ModelLimits | None
) -> str | None:
    """Why drafts are not those that were asked for; None: they are."""
    name = f"drafts of request {request_id}"
    if len(token_ids) > most:
        return f"{len(token_ids)} {name} came, {most} were asked for"
    if any(one < 0 for one in token_ids):
        return f"{name} are no ids of tokens"
    if limits is not None and not limits.has_token_ids(token_ids):
        return f"{name} are not in the vocabulary"
    return None


def tokens_by_request(sampled: Iterable[SampledToken]) -> dict[int, list[SampledToken]]:
    """Tokens of each request, in order."""
    tokens: dict[int, list[SampledToken]] = {}
    for token in sampled:
        tokens.setdefault(token.request_id, []).append(token)
    return tokens


def _run_objection(
    drawn: Several[SampledToken], span: Span, sequence: Sequence, limits: ModelLimits | None
) -> str | None:
    """Why tokens cannot be those behind a span: one follows only a draft that came true."""
    if len(drawn) == 1:
        return token_objection(drawn[0], sequence, limits)
    for before, token in enumerate(drawn):
        if (objection := token_objection(token, sequence, limits, before)) is not None:
            return objection
    run = drawn[:-1]
    if any(one.finished for one in run):
        return f"request {span.request_id} goes on behind its end"
    if tuple(one.token_id for one in run) != span.drafts[: len(run)]:
        return f"request {span.request_id} goes on behind a draft that did not come true"
    return None


def token_objection(
    token: SampledToken, sequence: Sequence, limits: ModelLimits | None, before: int = 0
) -> str | None:
    """Why a token cannot be the sequence's next one, behind `before` others; None: it can."""
    if limits is not None and not 0 <= token.token_id < limits.vocabulary_size:
        return f"token {token.token_id} of request {token.request_id} is not in the vocabulary"
    request = sequence.request
    left = request.sampling.max_tokens - sequence.generated_tokens - before
    if left < 1 or (left == 1 and not token.finished):
        return f"request {token.request_id} goes on beyond its {request.sampling.max_tokens} tokens"
    return None
