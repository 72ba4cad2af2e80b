"""Run the sequences of one HTTP request side by side, and cancel all of them together.

When the client goes away aiohttp cancels the handler; the cancellation reaches every sequence's
loop, and leaving the loop closes the service's generator, which is how the ring learns of it. A
single sequence runs in the handler's own task: most requests have one, and a task and a queue for
each would cost as much as the rest of the way out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from molink.errors import RingError
from molink.serving.service import (
    GenerationRequest,
    GenerationService,
    TokenEvent,
    TokenLogprob,
)

__all__ = ["Answer", "collect", "run_sequences"]

Receive = Callable[[int, TokenEvent], Awaitable[None]]
"""What to do with an event of the sequence with this index."""


@dataclass(slots=True)
class Answer:
    """One sequence's events put together."""

    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, event: TokenEvent) -> None:
        """Take the next event into account."""
        self.token_ids.extend(event.token_ids)
        self.texts.append(event.text)
        self.logprobs.extend(event.logprobs)
        self.finish_reason = event.finish_reason or self.finish_reason

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.texts)


async def run_sequences(
    service: GenerationService, requests: Sequence[GenerationRequest], receive: Receive
) -> None:
    """Generate all `requests` at once, each event going to `receive`; the first failure ends all
    of them."""
    if service.unready_reason is not None:
        raise RingError(service.unready_reason)
    if len(requests) == 1:
        await _run_one(service, 0, requests[0], receive)
        return
    try:
        async with asyncio.TaskGroup() as group:
            for index, request in enumerate(requests):
                group.create_task(_run_one(service, index, request, receive))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _run_one(
    service: GenerationService, index: int, request: GenerationRequest, receive: Receive
) -> None:
    async with aclosing(service.generate(request)) as events:
        async for event in events:
            await receive(index, event)


async def collect(
    service: GenerationService, requests: Sequence[GenerationRequest]
) -> list[Answer]:
    """The whole answers of all `requests`."""
    answers = [Answer() for _ in requests]

    async def receive(index: int, event: TokenEvent) -> None:
        answers[index].add(event)

    await run_sequences(service, requests, receive)
    return answers
