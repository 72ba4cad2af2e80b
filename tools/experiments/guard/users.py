"""Users who watch their answers come, in a process of their own: what do they see?

    python -m tools.experiments.guard.users URL COUNT TOKENS

Each asks again as soon as an answer ends, and half a second after a refusal. The order `window`
on standard input is answered with a line of JSON about the time since the last one, see `Seen`.
"""

import asyncio
import json
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from molink.client.api_client import ApiClient
from molink.errors import UserError

__all__ = ["MODULE", "Seen", "percentile"]

MODULE = "tools.experiments.guard.users"

PROMPT_TOKENS = 16
AFTER_REFUSAL_S = 0.5


@dataclass(slots=True)
class Seen:
    """What users saw in a window of time."""

    tokens: int = 0
    answers: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Sentences of answers that broke off."""
    refused: dict[str, int] = field(default_factory=dict)
    """Sentences of requests that were not begun, as while a ring is built; they are asked again."""
    gap_p50_ms: float = 0.0
    gap_p99_ms: float = 0.0
    """Between neighbouring tokens of an answer."""
    silence_s: float = 0.0
    """The longest time in which somebody who had asked saw nothing."""


@dataclass(slots=True)
class Window:
    """The window that is open."""

    seen: Seen = field(default_factory=Seen)
    gaps_s: list[float] = field(default_factory=list)
    waiting_since: dict[int, float] = field(default_factory=dict)
    """Of each user who waits: since when."""

    def came(self, user: int, *, first: bool) -> None:
        """A token, the first of its answer or a further one."""
        now, since = time.monotonic(), self.waiting_since[user]
        self.seen.tokens += 1
        self.seen.silence_s = max(self.seen.silence_s, now - since)
        if not first:
            self.gaps_s.append(now - since)
        self.waiting_since[user] = now

    def failed(self, sentence: str, *, begun: bool) -> None:
        """A request that was not answered to its end; its user waits on."""
        kind = self.seen.failures if begun else self.seen.refused
        kind[sentence] = kind.get(sentence, 0) + 1

    def close(self) -> Seen:
        """What was seen; the next window begins."""
        now = time.monotonic()
        seen, self.seen = self.seen, Seen()
        seen.gap_p50_ms = percentile(self.gaps_s, 0.5) * 1000
        seen.gap_p99_ms = percentile(self.gaps_s, 0.99) * 1000
        open_s = [now - since for since in self.waiting_since.values()]
        seen.silence_s = max(seen.silence_s, *open_s, 0.0)
        self.gaps_s.clear()
        return seen


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so many are not above; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


async def _watch(user: int, client: ApiClient, tokens: int, window: Window) -> None:
    random = Random(user)
    while True:
        prompt = [random.randrange(5, 200) for _ in range(PROMPT_TOKENS)]
        body = {"prompt_token_ids": prompt, "max_tokens": tokens, "ignore_eos": True}
        window.waiting_since.setdefault(user, time.monotonic())
        first = True
        try:
            async for event in client.stream("/generate", body):
                if event.get("token_ids"):
                    window.came(user, first=first)
                    first = False
            window.seen.answers += 1
            window.waiting_since.pop(user)
        except UserError as error:
            window.failed(str(error)[:200], begun=not first)
            await asyncio.sleep(AFTER_REFUSAL_S)


async def _main(url: str, count: int, tokens: int) -> None:
    window = Window()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with ApiClient(url) as client, asyncio.TaskGroup() as group:
        users: list[asyncio.Task[Any]] = [
            group.create_task(_watch(user, client, tokens, window)) for user in range(count)
        ]
        while await reader.readline():
            print(json.dumps(asdict(window.close())), flush=True)
        for user in users:
            user.cancel()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
