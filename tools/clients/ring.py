"""A real ring that writes the script's words, and loses a stage while it does.

Each answer of the script is asked of `molink serve` as the one choice that a grammar allows, so
that a real ring computes and streams it token by token. In the middle of one answer a stage is
killed. The client must notice nothing but a pause: the ring goes on with the same answer.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

__all__ = ["Ring", "served", "served_ring"]

STAGES = 3
KILLED_STAGE = 1

KILLED_ANSWER, KILLED_AFTER_PIECES = 6, 5
"""In the first answer behind so many that has more pieces than these."""

TOKENS_MAX = 1500
"""More than the longest answer has."""

ANSWER_S_MAX = 600


@dataclass
class Ring:
    """Ring that is asked for the script's words."""

    url: str
    answers: int = 0
    pause_s: float = 0.0
    """Longest time between two pieces of the answer in which a stage was killed; 0: none was."""
    _killed_in: int | None = None

    def begin(self) -> None:
        """Begin another session, in which a stage is killed again."""
        self.answers, self.pause_s, self._killed_in = 0, 0.0, None

    async def write(self, text: str) -> AsyncIterator[str]:
        """The pieces of a text, as the ring generates them."""
        number, self.answers = self.answers, self.answers + 1
        body = {"prompt": "Once", "stream": True, "max_tokens": TOKENS_MAX, "guided_choice": [text]}
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{self.url}/generate", json=body) as response,
        ):
            response.raise_for_status()
            count, came_at = 0, time.monotonic()
            async for piece in _pieces(response):
                now = time.monotonic()
                if number == self._killed_in:
                    self.pause_s = max(self.pause_s, now - came_at)
                count, came_at = count + 1, now
                yield piece
                is_due = number >= KILLED_ANSWER and count == KILLED_AFTER_PIECES
                if is_due and self._killed_in is None:
                    self._killed_in = number
                    await self._kill(session)

    async def _kill(self, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{self.url}/cluster") as response:
            stage = (await response.json())["stages"][KILLED_STAGE]
        os.kill(stage["pid"], signal.SIGKILL)


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            event: dict[str, Any] = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"the ring failed: {event['error']['message']}")
            if event["text"]:
                yield event["text"]


@contextmanager
def served_ring() -> Iterator[Ring]:
    """A ring of the demo model in the block."""
    with served("demo") as url:
        yield Ring(url)


@contextmanager
def served(*words: str) -> Iterator[str]:
    """The address of `molink serve` with these words, on a ring of one thread a stage."""
    command = [sys.executable, "-m", "molink.cli.main", "serve", *words, "--port", "0"]
    command += ["--nodes", str(STAGES), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready "):
                raise RuntimeError("the ring did not start: what it said stands above")
            yield line.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
