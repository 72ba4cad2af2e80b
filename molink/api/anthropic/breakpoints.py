"""Blocks of a request to `/v1/messages` up to which its prompt is to stay cached (`cache_control`).

A block's place in the prompt is known to the chat template alone, so the conversation is written
once more as if it ended there: as far as both texts are alike, the prompt is meant. A mark on a
tool counts as one behind the system prompt, where templates show tools. One at the end of the
conversation, as agents send it with each turn, means the whole prompt and costs nothing. Anthropic
finds only what was marked; here everything is cached, and a mark says what is to stay.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from molink.api.anthropic.conversation import beginning_of
from molink.api.anthropic.schemas import (
    CacheControl,
    CountTokensBody,
    CustomTool,
    InputMessage,
    ThinkingBlock,
    ToolResultBlock,
)
from molink.api.chat.content import as_parts
from molink.api.chat.prompt import ChatPrompt, tokens_alike
from molink.api.errors import ApiError
from molink.serving.model_card import ModelCard
from molink_scheduler.request import WISHES_MAX, WishedTokens

KEEP_S = {"5m": 300, "1h": 3600}
"""Seconds of Anthropic's `ttl`, the usual one first."""

SOMETHING_ELSE = InputMessage.model_validate({"role": "user", "content": as_parts("~")})
"""First message of a conversation that goes on differently from here."""


class Breakpoint(NamedTuple):
    """Mark on one block."""

    where: str
    """Path of the block in the body; empty: the mark stands beside the conversation."""
    keep_s: int
    beginning: Callable[[], CountTokensBody] | None
    """Maker of the request as if it ended there; None: it is its end."""


async def wishes_of(body: CountTokensBody, prompt: ChatPrompt, card: ModelCard) -> WishedTokens:
    """Wishes to keep beginnings of a prompt, in the order in which the blocks stand. Raises
    ApiError for more than there may be, or in another order than Anthropic's."""
    marks = list(_marks(body))
    _check(marks)
    found: list[tuple[int, int]] = []
    for mark in marks:
        tokens = len(prompt.token_ids)
        if mark.beginning is not None:
            beginning = beginning_of(mark.beginning(), prompt.conversation)
            tokens = await tokens_alike(prompt, beginning, card)
        if tokens:
            found.append((tokens, mark.keep_s))
    return tuple(found)


def _marks(body: CountTokensBody) -> Iterator[Breakpoint]:
    """All marks in Anthropic's order: tools, system, messages."""
    for place, tool in enumerate(body.tools or ()):
        if isinstance(tool, CustomTool) and tool.cache_control:
            whole = partial(_up_to_system, body, len(body.system or ()))
            yield _mark(f"tools.{place}", tool.cache_control, whole)
    for place, part in enumerate(body.system or ()):
        if part.cache_control:
            beginning = partial(_up_to_system, body, place + 1)
            yield _mark(f"system.{place}", part.cache_control, beginning)
    yield from _marks_of_messages(body)
    if body.cache_control:
        yield _mark("", body.cache_control, None)


def _marks_of_messages(body: CountTokensBody) -> Iterator[Breakpoint]:
    last = len(body.messages) - 1, len(body.messages[-1].content) - 1
    for number, message in enumerate(body.messages):
        for place, block in enumerate(message.content):
            if isinstance(block, ThinkingBlock):
                continue
            where, is_last = f"messages.{number}.content.{place}", (number, place) == last
            if isinstance(block, ToolResultBlock):
                yield from _marks_of_result(body, number, place, where, is_last=is_last)
            if block.cache_control:
                beginning = partial(_up_to_block, body, number, place)
                yield _mark(where, block.cache_control, None if is_last else beginning)


def _marks_of_result(
    body: CountTokensBody, number: int, place: int, where: str, *, is_last: bool
) -> Iterator[Breakpoint]:
    """Marks on the parts of a tool's result, each in front of one on the result itself."""
    result = body.messages[number].content[place]
    assert isinstance(result, ToolResultBlock), "others have no parts"
    for part, content in enumerate(result.content):
        if content.cache_control:
            is_end = is_last and part == len(result.content) - 1
            beginning = partial(_up_to_part, body, number, place, part)
            path = f"{where}.content.{part}"
            yield _mark(path, content.cache_control, None if is_end else beginning)


def _mark(
    where: str, control: CacheControl, beginning: Callable[[], CountTokensBody] | None
) -> Breakpoint:
    return Breakpoint(where, KEEP_S[control.ttl or "5m"], beginning)


def _up_to_system(body: CountTokensBody, parts: int) -> CountTokensBody:
    system = (body.system or [])[:parts]
    return body.model_copy(update={"system": system, "messages": [SOMETHING_ELSE]})


def _up_to_block(body: CountTokensBody, number: int, place: int) -> CountTokensBody:
    message = body.messages[number]
    cut = message.model_copy(update={"content": message.content[: place + 1]})
    return body.model_copy(update={"messages": [*body.messages[:number], cut]})


def _up_to_part(body: CountTokensBody, number: int, place: int, part: int) -> CountTokensBody:
    cut = _up_to_block(body, number, place)
    blocks = cut.messages[-1].content
    result = blocks[-1]
    assert isinstance(result, ToolResultBlock), "others have no parts"
    shorter = result.model_copy(update={"content": result.content[: part + 1]})
    message = cut.messages[-1].model_copy(update={"content": [*blocks[:-1], shorter]})
    return cut.model_copy(update={"messages": [*cut.messages[:-1], message]})


def _check(marks: list[Breakpoint]) -> None:
    """Anthropic's two rules, in its own words."""
    if len(marks) > WISHES_MAX:
        raise ApiError(
            f"A maximum of {WISHES_MAX} blocks with cache_control may be provided. Found "
            f"{len(marks)}: leave it out of the others.",
            param="cache_control",
        )
    for earlier, later in pairwise(marks):
        if later.keep_s > earlier.keep_s:
            path = f"{later.where}.cache_control.ttl".lstrip(".")
            raise ApiError(
                f"{path}: a ttl='1h' cache_control block must not come after a ttl='5m' "
                "cache_control block. Note that blocks are processed in the following order: "
                "`tools`, `system`, `messages`.",
                param=path,
            )
