"""Sessions of agents, as lengths and shared beginnings, read from a file.

A coding agent sends its whole history again with every turn: instructions that all of its sessions
share, then what tools and the user said and what the model answered. So almost all of a prompt was
seen before. One JSON object a line is one session:

    {"prefix": "coder", "prefix_tokens": 8000, "turns": [
        {"new_tokens": 2100, "answer_tokens": 340, "wait_s": 1.5}, ...]}

`prefix` names the shared beginning (left out: none), of which a session has the first
`prefix_tokens`. A turn's prompt is all before it and `new_tokens` more, sent `wait_s` seconds (0)
after the answer before it has ended; its answer has `answer_tokens`. Texts are no part of the file:
whoever replays it draws them. `python -m tools.agent_sessions` writes files of published lengths.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink.json_object import JsonObject

SESSIONS_MAX = 100_000
"""Sessions of a file: more than any ring replays in a week."""

TURNS_MAX = 10_000
"""Turns of a session; agents give up or compact their history long before."""

CONTEXT_TOKENS_MAX = 10_000_000
"""Tokens of a session with its last answer: ten times the longest context of any model."""

WAIT_S_MAX = 24 * 3600.0

LATE_FROM = 5
"""Turn from which on a session counts as warm: its first ones read instructions and files."""

_FORM = (
    'must be a JSON object such as {"prefix": "a", "prefix_tokens": 0, "turns": [{"new_tokens": 9, '
    '"answer_tokens": 9, "wait_s": 0}]}, with whole numbers of tokens, at least one new and one '
    "answered in each turn"
)


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """Turn of a session: what is new in its prompt, its answer, and the pause before it."""

    new_tokens: int
    answer_tokens: int
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentSession:
    """Turns of one agent, each of which goes on from the one before."""

    turns: Sequence[SessionTurn]
    prefix: str = ""
    """Name of the beginning that it shares; empty: it shares none."""
    prefix_tokens: int = 0

    @property
    def prompts(self) -> list[int]:
        """Tokens of each turn's prompt."""
        said = list(accumulate(turn.new_tokens for turn in self.turns))
        answered = accumulate((turn.answer_tokens for turn in self.turns), initial=0)
        return [self.prefix_tokens + new + old for new, old in zip(said, answered, strict=False)]

    @property
    def context_tokens(self) -> int:
        """Tokens of its last prompt and answer."""
        return self.prompts[-1] + self.turns[-1].answer_tokens


def read_sessions(path: Path) -> list[AgentSession]:
    """All sessions of a file. Raises UserError, with the number of the line that is wrong."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = list(islice(file, SESSIONS_MAX + 1))
    except OSError as error:
        raise UserError(f"cannot read the sessions {path} ({error.strerror})") from error
    except UnicodeDecodeError:
        raise UserError(f"{path} is no JSONL file: give one JSON object a line") from None
    if len(lines) > SESSIONS_MAX:
        raise UserError(f"{path} has over {SESSIONS_MAX} lines: cut it")
    if not (found := list(_sessions(lines, path))):
        raise UserError(f"{path} holds no sessions")
    return found


def _sessions(lines: Sequence[str], path: Path) -> Iterator[AgentSession]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _session(json.loads(line))
            except (KeyError, TypeError, ValueError, RecursionError):
                raise UserError(f"{path}, line {number}: {_FORM}") from None


def _session(row: JsonObject) -> AgentSession:
    """The session of a row. Raises KeyError, TypeError or ValueError when it is none."""
    prefix, turns = row.get("prefix", "") if isinstance(row, dict) else None, row["turns"]
    prefix_tokens = _whole(row.get("prefix_tokens", 0), least=0)
    if not (isinstance(prefix, str) and isinstance(turns, list) and 1 <= len(turns) <= TURNS_MAX):
        raise ValueError(prefix)
    session = AgentSession([_turn(turn) for turn in turns], prefix, prefix_tokens)
    if session.context_tokens > CONTEXT_TOKENS_MAX or (prefix_tokens and not prefix):
        raise ValueError(prefix_tokens)
    return session


def _turn(row: JsonObject) -> SessionTurn:
    wait_s = row.get("wait_s", 0) if isinstance(row, dict) else None
    if type(wait_s) not in (int, float) or not 0 <= wait_s <= WAIT_S_MAX or math.isnan(wait_s):
        raise ValueError(wait_s)
    return SessionTurn(_whole(row["new_tokens"]), _whole(row["answer_tokens"]), float(wait_s))


def _whole(value: Any, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= CONTEXT_TOKENS_MAX:
        raise ValueError(value)
    return value
