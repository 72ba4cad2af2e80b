"""A user's own deadline for an answer, waiting included.

An answer that has begun ends there as one that has its length: what came is the user's. One that
has not begun is an error, so that its client asks elsewhere.
"""

import asyncio
from collections.abc import AsyncGenerator

from molink.errors import DeadlineError
from molink.serving.token_events import TokenEvent

DEADLINE = "deadline"
"""Why such an answer has stopped."""


def at_deadline(event: TokenEvent) -> bool:
    """Whether an event is the last of an answer that its deadline has ended."""
    return event.finish_reason == "length" and event.stop_reason == DEADLINE


async def until_deadline(
    events: AsyncGenerator[TokenEvent, None], deadline_at: float | None
) -> AsyncGenerator[TokenEvent, None]:
    """The events of one sequence up to `deadline_at`, by the event loop's clock; None: all.

    Raises DeadlineError where none has come till then.
    """
    if deadline_at is None:
        async for event in events:
            yield event
        return
    has_begun = False
    while (got := await _next(events, deadline_at, has_begun=has_begun)) is not None:
        has_begun = True
        yield got
        if got.finish_reason is not None:
            return


async def _next(
    events: AsyncGenerator[TokenEvent, None], deadline_at: float, *, has_begun: bool
) -> TokenEvent | None:
    """The next event, or at the deadline the last one."""
    try:
        async with asyncio.timeout_at(deadline_at) as timeout:
            return await anext(events, None)
    except TimeoutError:
        if not timeout.expired():
            raise
    if has_begun:
        return TokenEvent((), "", finish_reason="length", stop_reason=DEADLINE)
    raise DeadlineError(
        "The request's 'timeout_s' ran out before its first token: give it more time, or ask again "
        "when less is asked of the server."
    )
