"""Answers of the API: sequences are generated and written, whole or event by event.

When the client goes away aiohttp cancels the handler; the cancellation reaches the loop over each
sequence's events, and leaving that loop closes the service's generator, which is how the ring
learns of it.

A streamed answer is server-sent events: one JSON object for each, then `[DONE]`. The response
starts with the first event, or OPENS_AFTER_S after the request was taken: what is refused until
then still gets a proper status, and no client waits for its headers as long as a long prompt takes.
A failure after that is sent as an event with an error object, which OpenAI's clients raise, and the
stream ends without `[DONE]`. While nothing comes, because a prompt is computed or a ring is mended,
something that clients pass over is sent each SILENCE_S: proxies close connections that are silent
for a minute. Each event is one write, and asyncio's sockets send small writes at once (TCP_NODELAY
is on).

Of some endpoints an answer can be read again by its id. Kept are the request and its tokens, not
what was sent: it is written again from them, so that one whose stream broke, or that another
coordinator has ended, is the one that its client would have got. Only the key that asked may read
it, and another's id is answered as one that nobody knows.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeVar

from aiohttp import ClientConnectionResetError, web

from molink.api.callers import Caller, caller_of
from molink.api.errors import (
    NAME_CHARS_SHOWN,
    RETRY_AFTER_S,
    ApiError,
    answers_not_kept,
    as_api_error,
    error_body,
    is_anthropic,
)
from molink.api.headers.serving import cached_tokens, note_sequences
from molink.api.keys.store import KeyUsage
from molink.api.openapi.answers import Usage
from molink.errors import ControlError, MolinkError
from molink.serving.answers.kept_answer import KeptAnswer
from molink.serving.answers.live_state import LiveState
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest, GenerationService, cache_salt
from molink.serving.token_events import PromptLogprob, TokenEvent, TokenLogprob
from molink.tasks import cancel, gathered, spawn

Result = TypeVar("Result")

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""The last one asks nginx, which people put in front, not to hold events back."""

json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Made once: `json.dumps` with options builds an encoder on each call. Text stays readable."""


LOGPROB_MIN = -9999.0
"""OpenAI's value for "very unlikely"; minus infinity is not JSON."""


LIVE = web.AppKey("live", LiveState)
"""Store of kept answers; absent: no answer is kept."""

OPENS_AFTER_S = 0.5
"""Seconds from taking a request until its stream sends its headers, if no event comes before:
rings refuse within milliseconds."""

SILENCE_S = 9.0
"""Silence of a stream that a comment ends. Ten seconds are promised, and a busy PC is a second
late; proxies wait for 60 s, some of them for 30."""

COMMENT, PING = b": waiting\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'
"""Keep-alive messages that clients ignore: those of OpenAI's dialects, and of Anthropic's."""

EVENTS_AT_ONCE = 256
"""Events of a kept answer that are read in one go, a millisecond; others have their turn then."""


@dataclass(slots=True)
class Answer:
    """Events of one sequence put together."""

    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[PromptLogprob] = field(default_factory=list)
    """Log-probabilities of the prompt's tokens behind the first; empty unless asked for."""

    @classmethod
    async def of(cls, events: AsyncIterator[TokenEvent]) -> "Answer":
        """All events of a sequence."""
        answer = cls()
        async for event in events:
            answer.add(event)
        return answer

    def add(self, event: TokenEvent) -> None:
        """Take the next event into account."""
        self.token_ids.extend(event.token_ids)
        self.texts.append(event.text)
        self.logprobs.extend(event.logprobs)
        self.prompt_logprobs.extend(event.prompt_logprobs)
        self.finish_reason = event.finish_reason or self.finish_reason
        self.stop_reason = event.stop_reason

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.texts)


async def generate_all(
    request: web.Request,
    service: GenerationService,
    jobs: Sequence[GenerationRequest],
    consume: Callable[[int, AsyncIterator[TokenEvent]], Awaitable[Result]],
    prompt_tokens: int,
) -> list[Result]:
    """Generate all `jobs` of an HTTP request at once. So many tokens of prompts are counted for the
    caller's key; `consume` reads the events of the job with its index.

    The first failure ends all of them. Raises RingError while nothing can be served,
    OverloadedError when too many wait, and ApiError when the caller has too many under way or may
    not go first. A single sequence, as most requests have, needs no task of its own.
    """
    caller = caller_of(request)

    async def run(index: int, job: GenerationRequest) -> Result:
        salt = cache_salt(caller.key_id, job.cache_salt, is_shared=caller.shares_cache)
        asked = replace(job, key_id=caller.key_id, cache_salt=salt)
        if asked.timeline is not None:
            asked.timeline.key_id, asked.timeline.choice = caller.key_id, index
        async with aclosing(service.generate(asked)) as events:
            return await consume(index, _counted(events, caller.usage))

    with caller.generating(len(jobs)):
        await _until_taken(service, jobs, caller.key_id)
        _check_priority(caller, jobs)
        caller.usage.prompt_tokens += prompt_tokens
        note_sequences(job.timeline for job in jobs)
        runs = [run(index, job) for index, job in enumerate(jobs)]
        return [await runs[0]] if len(runs) == 1 else await gathered(runs)


def _check_priority(caller: Caller, jobs: Sequence[GenerationRequest]) -> None:
    """Raise ApiError (403) when the caller may not go first, and asks to."""
    best = caller.priority_best
    if best is not None and any(job.priority < best for job in jobs):
        raise ApiError(
            f"A 'priority' below {best} goes before others' requests: use an admin key, or {best} "
            "and more.",
            status=403,
            param="priority",
            code="insufficient_permissions",
        )


async def _until_taken(
    service: GenerationService, jobs: Sequence[GenerationRequest], key_id: str | None
) -> None:
    """Wait until the service takes requests; those that it refuses are noted as ended."""
    try:
        await service.until_taken()
    except MolinkError as error:
        for timeline in filter(None, (job.timeline for job in jobs)):
            timeline.key_id = key_id
            service.request_log.refused(timeline, error)
        raise


async def _counted(events: AsyncIterator[TokenEvent], usage: KeyUsage) -> AsyncIterator[TokenEvent]:
    """The same events; their tokens are counted for a key."""
    async for event in events:
        usage.answer_tokens += len(event.token_ids)
        yield event


class EventStream:
    """Context manager that writes the events of one response, and a keep-alive in between.

    A failure before the response has started is raised, a later one is sent to the client.
    """

    first: Sequence[Mapping[str, Any]] = ()
    """Events that are sent as soon as the response starts."""
    last = b"data: [DONE]\n\n"
    """Message that follows the events of an answer that did not fail."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._keep_alive = PING if is_anthropic(request.path) else COMMENT
        self._loop = asyncio.get_running_loop()
        self._starting = asyncio.Lock()
        self._sent_at = 0.0
        self._beat: asyncio.Task[None] | None = None
        self.response = web.StreamResponse(headers=HEADERS)

    def encode(self, event: Mapping[str, Any]) -> bytes:
        """An event as it is sent."""
        return b"data: " + json_text(event).encode() + b"\n\n"

    def failed(self, error: ApiError) -> Sequence[Mapping[str, Any]]:
        """The events of a failure."""
        return [error_body(error)]

    async def __aenter__(self) -> "EventStream":
        return self

    def taken(self) -> None:
        """The request was taken: from now on its client is told that it waits."""
        if self._beat is None:
            self._beat = spawn(self._until_ended())

    async def send(self, *events: Mapping[str, Any]) -> None:
        """Write events at once; the first ones start the response."""
        encoded = b"".join(map(self.encode, events))
        await self._start()
        await self._write(encoded)

    async def _start(self) -> None:
        async with self._starting:
            if not self.response.prepared:
                encoded = b"".join(map(self.encode, self.first))
                await self.response.prepare(self._request)
                if encoded:
                    await self._write(encoded)

    async def _write(self, encoded: bytes) -> None:
        self._sent_at = self._loop.time()
        await self.response.write(encoded)

    async def _until_ended(self) -> None:
        await asyncio.sleep(OPENS_AFTER_S)
        with suppress(ClientConnectionResetError):  # Its handler learns of it, too.
            if not self.response.prepared:
                self._sent_at = self._loop.time()
                await self._start()
            while True:
                silence_s = self._loop.time() - self._sent_at
                if silence_s >= SILENCE_S:
                    await self._write(self._keep_alive)
                else:
                    await asyncio.sleep(SILENCE_S - silence_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        async with self._starting:  # A response that starts has started when its beat ends.
            await cancel(self._beat)
        if error is None:
            await self.response.write_eof(self.last)
            return False
        if isinstance(error, ClientConnectionResetError) or not isinstance(error, Exception):
            return False
        if self.response.prepared:
            await self.send(*self.failed(as_api_error(error)))
            await self.response.write_eof()
        return self.response.prepared


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    """How many tokens a request cost, as OpenAI's object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens(prompt_tokens)},
    }


def finite(logprob: float) -> float:
    """`logprob`, at least LOGPROB_MIN and at most 0; LOGPROB_MIN for NaN, which a tail may send."""
    return min(logprob, 0.0) if logprob >= LOGPROB_MIN else LOGPROB_MIN


def logged(
    request: web.Request, job: GenerationRequest, answer_id: str, asked: str = ""
) -> GenerationRequest:
    """The job, to be kept under this id where answers are; `asked`: what its endpoint needs to
    write the answer again. Scores of a prompt are not kept, nor is an answer with them."""
    live = request.app.get(LIVE)
    if live is None or job.sampling.prompt_logprobs is not None:
        return job
    now = asyncio.get_running_loop().time()
    deadline = None if job.deadline_at is None else time.time() + job.deadline_at - now
    owner = caller_of(request).key_id or ""
    return replace(job, log=live.log(answer_id, owner, asked, job, deadline))


async def kept_answer(request: web.Request, answer_id: str = "") -> KeptAnswer:
    """The answer with this id, or of which the path names the id. Raises ApiError: 404 when the
    caller has none of this id, 503 when it cannot be read now."""
    live, answer_id = request.app.get(LIVE), answer_id or request.match_info["id"]
    if live is None:
        raise answers_not_kept()
    try:
        found = await live.find(caller_of(request).key_id or "", answer_id)
    except ControlError as error:
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        raise ApiError(str(error), status=503, code="answers_unreadable", headers=retry) from None
    if found is None:
        raise ApiError(
            f"There is no answer '{answer_id[:NAME_CHARS_SHOWN]}' of yours here: check its id and "
            "your key; an answer is kept for an hour after its end.",
            status=404,
            code="answer_not_found",
        )
    return found


def status_of(answer: KeptAnswer) -> str:
    """How far an answer is, in OpenAI's words."""
    if answer.ending is None:
        return "in_progress"
    if answer.ending.finish_reason is not None:
        return "incomplete" if answer.ending.finish_reason == "length" else "completed"
    return "failed" if answer.ending.error else "cancelled"


async def events_of(answer: KeptAnswer, card: ModelCard) -> AsyncIterator[TokenEvent]:
    """The events of an answer so far."""
    for count, event in enumerate(answer.events(card)):
        if count % EVENTS_AT_ONCE == EVENTS_AT_ONCE - 1:
            await asyncio.sleep(0)
        yield event
