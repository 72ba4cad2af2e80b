"""Users whose answers are compared, token by token, with what the same requests get undisturbed.

Half of them are greedy, half seeded. Most read a stream of `/generate`, some ask it for the answer
as a whole, some read a stream of `/v1/completions`: an answer of status 200 is whole, or says that
it is not, in each of the three.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from molink.client.api_client import ApiClient, RefusedError
from molink.errors import UserError

__all__ = ["Answer", "Request", "Verdict", "all_answered", "ask_until_taken", "requests"]

PROMPT_TOKENS = 32
STREAM, WHOLE, COMPLETION = "stream", "whole", "completion"
KINDS = (STREAM, STREAM, STREAM, STREAM, WHOLE, WHOLE, COMPLETION, COMPLETION)
"""Of eight users, of which each second one is greedy."""

READ_AGAIN_S = 0.5
READ_WITHIN_S = 180.0


@dataclass(frozen=True, slots=True)
class Request:
    """What one user asks, each time the same."""

    kind: str
    body: dict[str, Any]
    tokens: int


@dataclass(slots=True)
class Answer:
    """What one user got."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    at_s: list[float] = field(default_factory=list)
    """When each token of a stream came."""
    finish_reason: str | None = None
    error: str | None = None
    """The sentence with which it failed..."""
    is_refused: bool = False
    """...and whether that came with a status, in place of an answer."""
    answer_id: str | None = None
    read_again: bool = False
    """Whether the stream broke, and the answer was read by its id."""

    def pause_s(self, since_s: float) -> float:
        """The longest time between two tokens that does not end before then."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return max((after - before for before, after in pairs if after > since_s), default=0.0)


@dataclass(slots=True)
class Verdict:
    """What became of many answers."""

    exact: int = 0
    read_again: int = 0
    """Of the exact ones."""
    failed: dict[str, int] = field(default_factory=dict)
    """Sentences of those that failed."""
    wrong: list[str] = field(default_factory=list)
    """What must not be: an answer of status 200 that is another one, or only a part of it."""

    def add(self, request: Request, answer: Answer, expected: Answer) -> None:
        """Count one answer as exact, failed or wrong, beside the same one undisturbed."""
        same = (answer.tokens, answer.text) == (expected.tokens, expected.text)
        if answer.error is not None:
            self.failed[answer.error] = self.failed.get(answer.error, 0) + 1
            if not _is_beginning(answer, expected):
                self.wrong.append(f"{request.kind}: other tokens before it failed")
        elif same and answer.finish_reason == expected.finish_reason:
            self.exact += 1
            self.read_again += answer.read_again
        elif _is_beginning(answer, expected):
            self.wrong.append(f"{request.kind}: ended with {answer.finish_reason} before its end")
        else:
            self.wrong.append(f"{request.kind}: another answer")


def requests(count: int, tokens: int, vocabulary_size: int) -> list[Request]:
    """What so many users ask."""
    random = Random(0)
    return [_request(user, tokens, random, vocabulary_size) for user in range(count)]


def _request(user: int, tokens: int, random: Random, vocabulary_size: int) -> Request:
    kind = KINDS[user % len(KINDS)]
    chosen = {"temperature": 0.8, "seed": user} if user % 2 else {"temperature": 0.0}
    prompt = [random.randrange(5, vocabulary_size) for _ in range(PROMPT_TOKENS)]
    named = "prompt" if kind == COMPLETION else "prompt_token_ids"
    return Request(kind, {named: prompt, "max_tokens": tokens, "ignore_eos": True} | chosen, tokens)


async def ask(client: ApiClient, request: Request, answer: Answer) -> None:
    """Ask once and read what comes; a failure is kept as its sentence."""
    try:
        if request.kind == WHOLE:
            _take(await client.post("/generate", request.body), answer)
            return
        path = "/v1/completions" if request.kind == COMPLETION else "/generate"
        async for event in client.stream(path, request.body):
            _take(
                event["choices"][0] | {"id": event["id"]} if "choices" in event else event, answer
            )
    except UserError as error:
        answer.error, answer.is_refused = str(error), isinstance(error, RefusedError)


def _take(event: dict[str, Any], answer: Answer) -> None:
    tokens = event.get("token_ids") or []
    answer.tokens += tokens
    answer.text += event.get("text") or ""
    answer.at_s += [time.perf_counter()] * (len(tokens) or 1)
    answer.finish_reason = event.get("finish_reason") or answer.finish_reason
    answer.answer_id = event.get("id") or answer.answer_id


async def ask_until_taken(client: ApiClient, request: Request, refused: Counter[str]) -> Answer:
    """Ask, again after half a second when refused; sentences of refusals are counted."""
    while True:
        answer = Answer()
        await ask(client, request, answer)
        if not answer.is_refused:
            return answer
        refused[answer.error or ""] += 1
        await asyncio.sleep(READ_AGAIN_S)


async def all_answered(
    client: ApiClient, asked: Sequence[Request], answers: Sequence[Answer]
) -> None:
    """Ask all at once, and read them to their ends; broken streams of `/generate` by their ids."""
    async with asyncio.TaskGroup() as group:
        for request, answer in zip(asked, answers, strict=True):
            group.create_task(_answered(client, request, answer))


async def _answered(client: ApiClient, request: Request, answer: Answer) -> None:
    await ask(client, request, answer)
    if answer.error is not None and answer.answer_id is not None and request.kind == STREAM:
        await _read_again(client, answer)


async def _read_again(client: ApiClient, answer: Answer) -> None:
    """Read an answer by its id until it has ended; what had come must be its beginning."""
    deadline_s, seen = time.perf_counter() + READ_WITHIN_S, list(answer.tokens)
    while time.perf_counter() < deadline_s:
        try:
            found = await client.get(f"/generate/{answer.answer_id}")
        except UserError:
            found = {"status": "in_progress"}
        if found["status"] != "in_progress":
            _take_whole(found, seen, answer)
            return
        await asyncio.sleep(READ_AGAIN_S)


def _take_whole(found: dict[str, Any], seen: list[int], answer: Answer) -> None:
    answer.tokens, answer.text = found["token_ids"], found["text"]
    answer.finish_reason, answer.read_again = found["finish_reason"], True
    answer.error = found.get("error", {}).get("message")
    if answer.tokens[: len(seen)] != seen:
        answer.finish_reason = "other tokens than were streamed"


def _is_beginning(answer: Answer, expected: Answer) -> bool:
    return expected.tokens[: len(answer.tokens)] == answer.tokens and expected.text.startswith(
        answer.text
    )
