"""The scripted model: a test double of the service that the API calls.

It takes the place of the coordinator behind `create_app`, so that clients meet the API as it is,
and a model that does what the script says: it thinks, calls tools, streams token by token, is
silent for a while as a ring that is mended, and fails once. Its template writes a conversation as
JSON, from which the script reads it again.
"""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from molink.errors import RingError
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.answers.deadline import until_deadline
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.serving.request_log import RequestLog
from molink.serving.service import GenerationRequest
from molink.serving.token_events import PromptLogprob, TokenEvent, TokenLogprob
from tools.clients.script import Conversation, answer_to
from tools.clients.session import HALF

__all__ = ["MODEL_NAME", "PieceTokenizer", "ScriptedModel", "Trouble", "Writer", "at_once"]

MODEL_NAME = "molink"

VOCABULARY_SIZE = 2**20
"""Pieces that one run sees at most: a megabyte of text that is all different has a quarter."""

LENGTH_TOKENS = 32_768
"""As many models have that people run at home; less than some agents take for granted."""

TOKEN_CHARS = 4

TEMPLATE = "{{ tools }} <think></think> <tool_call></tool_call> {{ messages }}"
"""What the API looks for in a template: its marks tell how the model writes calls and thoughts."""


@dataclass
class PieceTokenizer:
    """One token for each four characters, numbered as they come."""

    chat_template: str | None = TEMPLATE
    _ids: dict[str, int] = field(default_factory=dict)
    _pieces: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of the pieces of a text."""
        with self._lock:
            return [self._id(piece) for piece in re.findall(f"(?s).{{1,{TOKEN_CHARS}}}", text)]

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces) % VOCABULARY_SIZE
            self._pieces.append(piece)
        return self._ids[piece]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The pieces put together; ids that stand for none are a word each."""
        known = len(self._pieces)
        return "".join(self._pieces[one] if one < known else " word" for one in token_ids)

    def get_vocab(self) -> dict[str, int]:
        """No marks: pieces are numbered only as they come."""
        return {}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """The text of each token, which has no other name."""
        return [self.decode([one]) for one in ids]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        **variables: Any,
    ) -> Any:
        """The conversation as JSON."""
        told = {"messages": conversation, "tools": variables.get("tools")}
        return json.dumps(told, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong once in a session, by the number of calls before."""

    fails_at: int | None = None
    """Its first request fails in the middle of its answer."""
    is_silent_at: int | None = None
    silence_s: float = 12.0
    """Longer than a stream may be without a byte."""


Writer = Callable[[str], AsyncIterator[str]]
"""Who writes an answer's text: its pieces, as they come."""


async def at_once(text: str) -> AsyncIterator[str]:
    """The pieces of a text, each at its turn."""
    for start in range(0, max(1, len(text)), TOKEN_CHARS):
        await asyncio.sleep(0)
        yield text[start : start + TOKEN_CHARS]


@dataclass
class ScriptedModel:
    """Service that answers as the script says."""

    root: Path
    """Where the session's files are."""
    trouble: Trouble = Trouble()
    write: Writer = at_once
    half: int | None = HALF
    """After so many steps the first prompt's work ends; None: there is one prompt for all."""
    unready_reason: str | None = None
    request_log: RequestLog = field(default_factory=RequestLog)
    events: EventLedger = field(default_factory=EventLedger)
    watch: ClusterWatch = field(default_factory=ClusterWatch)
    asked: list[Conversation] = field(default_factory=list)
    """All that was asked so far."""
    card: ModelCard = field(
        default_factory=lambda: ModelCard(
            MODEL_NAME, 1_700_000_000, VOCABULARY_SIZE, LENGTH_TOKENS, (), PieceTokenizer()
        )
    )
    _troubled: set[int] = field(default_factory=set)

    async def until_taken(self) -> None:
        """Return at once: a scripted model queues nothing."""

    def cluster(self) -> ClusterReport:
        """Report on a cluster without rings."""
        return from_plain(ClusterReport, {"model": self.card.name})

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """Stream the answer that the script gives to a request."""
        async with aclosing(self._tokens(request)) as events:
            async for event in until_deadline(events, request.deadline_at):
                yield event

    async def _tokens(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        assert self.card.tokenizer is not None and request.timeline is not None
        if request.log is not None:
            request.log.begin()
        asked = Conversation.of_prompt(self.card.tokenizer.decode(list(request.prompt_token_ids)))
        self.asked.append(asked)
        text = answer_to(asked, request.sampling.grammar, self.root, self.half)
        fails = await self._trouble(asked)
        with self.request_log.following(request.timeline):
            request.timeline.submitted(1, (), time.monotonic())
            async for event in self._events(request, text):
                request.timeline.tokens_came(len(event.token_ids), time.monotonic())
                if request.log is not None:
                    request.log.took(event)
                yield event
                if fails:
                    raise RingError("Stage 2 was lost: try again.")

    async def _trouble(self, asked: Conversation) -> bool:
        """Be silent where the script says so; whether this answer is to fail."""
        number = asked.calls
        if not asked.tools or number in self._troubled:
            return False
        if number == self.trouble.is_silent_at:
            self._troubled.add(number)
            await asyncio.sleep(self.trouble.silence_s)
        if number == self.trouble.fails_at:
            self._troubled.add(number)
            return True
        return False

    async def _events(
        self, request: GenerationRequest, text: str
    ) -> AsyncGenerator[TokenEvent, None]:
        assert self.card.tokenizer is not None
        left, held = request.sampling.max_tokens, None
        async for piece in self.write(text):
            if held is not None:
                yield held
            ids = tuple(self.card.tokenizer.encode(piece))
            held = _event(request, ids, piece, is_first=held is None)
            left -= len(ids)
            if left <= 0:
                break
        if held is not None:
            yield replace(held, finish_reason="stop" if left > 0 else "length")


def _event(
    request: GenerationRequest, ids: tuple[int, ...], text: str, *, is_first: bool
) -> TokenEvent:
    count = request.sampling.logprobs
    scores = () if count is None else tuple(_score(one, count) for one in ids)
    return TokenEvent(ids, text, scores, prompt_logprobs=_of_prompt(request) if is_first else ())


def _score(token_id: int, count: int) -> TokenLogprob:
    return TokenLogprob(token_id, -0.5, tuple((token_id + k, -0.5 - k) for k in range(count)))


def _of_prompt(request: GenerationRequest) -> tuple[PromptLogprob, ...]:
    """As if each token of a prompt were the likeliest."""
    count = request.sampling.prompt_logprobs
    if count is None:
        return ()
    return tuple(
        PromptLogprob(token, -1.0, tuple((token + k, -1.0 - k) for k in range(count)), rank=1)
        for token in request.prompt_token_ids[1:]
    )
