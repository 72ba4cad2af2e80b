"""Times of a node of the paper's cluster, and the answers that it decodes.

A node has eight A800 and a model of the shape of Llama-2-70B (`molink_sim.cache.cluster`). Its
prompts take the operations of the paper's equation, its decode steps read all weights and the
batch's KV. What its cards say to each other within a step is not counted.

Answers of a batch advance together, so a node knows how many steps it has made and at which step
each answer ends. Nothing is planned for a token: between two events time is a quadratic function of
steps, as every step adds a token of KV for each answer.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

from molink.hardware.gpu import LAYER_OVERHEAD_S, MEMORY_EFFICIENCY, STEP_OVERHEAD_S
from molink_scheduler.batch import BatchClass
from molink_sim.cache.cluster import (
    ATTENTION_FACTOR,
    LAYERS,
    MATRIX_FACTOR,
    NODE_FLOPS_PER_S,
    WEIGHTS_S,
    WIDTH,
    PaperStage,
)

GROUP = 8
"""Query heads to one of keys and values."""

KV_TOKEN_BYTES = 80 * 2 * 8 * 128 * 2
"""KV of a token: 80 layers, keys and values of eight heads of 128 (320 KB, FAST'25)."""

NODE_BYTES, WEIGHTS_BYTES, ROOM_SHARE = 8 * 80e9, 138e9, 0.9
ROOM_TOKENS = int((ROOM_SHARE * NODE_BYTES - WEIGHTS_BYTES) / KV_TOKEN_BYTES)
"""Tokens whose KV a node's cards hold."""

KV_TOKEN_S = KV_TOKEN_BYTES / (8 * 2039e9 * MEMORY_EFFICIENCY)
"""Reading a token's KV."""

ROW_S = LAYERS * MATRIX_FACTOR * WIDTH**2 / NODE_FLOPS_PER_S
"""Multiplying one row with all weights."""

STEP_S = LAYERS * LAYER_OVERHEAD_S + STEP_OVERHEAD_S

WHOLE = PaperStage(1)


@lru_cache(maxsize=1024)
def prefill_s(tokens: int, cached_tokens: int) -> float:
    """Seconds to compute a prompt on one node; its last token always is."""
    rows = max(1, tokens - cached_tokens)
    return WHOLE.step_s(BatchClass.PREFILL, rows, tokens, 1)


def step_s(rows: float, kv_tokens: float) -> float:
    """Seconds of a decode step."""
    return STEP_S + math.hypot(WEIGHTS_S, rows * ROW_S) + kv_tokens * KV_TOKEN_S


def worth_fetching_bytes_per_s(prefix_tokens: int, peak_flops_per_s: float) -> float:
    """Rate of a line above which a cached prefix comes sooner than it is computed: FAST'25,
    equations 1 and 2, B/G > 2ds / (gqa (a p d + b d^2)), for two bytes a number and eight queries
    to a head of keys. What cards reach of their peak would lower it in proportion."""
    operations = GROUP * (ATTENTION_FACTOR * prefix_tokens * WIDTH + MATRIX_FACTOR * WIDTH**2)
    return peak_flops_per_s * 2 * WIDTH * 2 / operations


@dataclass(slots=True)
class DecodeBatch:
    """Answers that a node decodes together."""

    steps: float = 0.0
    """Steps that were made; a part of one counts as such."""
    now: float = 0.0
    kv_tokens: float = 0.0
    room_tokens: int = ROOM_TOKENS
    """Tokens that no answer has taken: each takes its prompt and all of its answer."""
    begun_s: dict[int, float] = field(default_factory=dict)
    """Moment at which each answer, by its number, joined."""
    _ends: list[tuple[float, int, Any]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of answers that decode here now."""
        return len(self._ends)

    def with_one(self, tokens: float) -> float:
        """Seconds of a step with one more answer behind so many tokens."""
        return step_s(self.rows + 1, self.kv_tokens + tokens)

    def join(self, number: int, tokens: int, answer_tokens: int, what: Any) -> None:
        """Let an answer, whose first token is there, decode from now on."""
        self.kv_tokens += tokens
        self.room_tokens -= tokens + answer_tokens
        self.begun_s[number] = self.now
        heappush(
            self._ends, (self.steps + answer_tokens - 1, number, (tokens, answer_tokens, what))
        )

    def advance(self, now: float) -> None:
        """Decode all answers from the last moment to this one."""
        if self._ends:
            steps = self._steps_in(now - self.now)
            self.steps += steps
            self.kv_tokens += self.rows * steps
        self.now = now

    def stand(self, now: float) -> None:
        """Let time pass without decoding."""
        self.now = now

    def step_once(self, now: float) -> None:
        """One token for each answer, however long it took."""
        self.steps += 1
        self.kv_tokens += self.rows
        self.now = now

    def pop_ended(self) -> list[tuple[Any, float]]:
        """Answers that have their last token, and when each joined."""
        ended = []
        while self._ends and self._ends[0][0] <= self.steps + 1e-6:
            _, number, (tokens, answer_tokens, what) = heappop(self._ends)
            self.kv_tokens = self.kv_tokens - tokens - answer_tokens + 1 if self._ends else 0.0
            self.room_tokens += tokens + answer_tokens
            ended.append((what, self.begun_s.pop(number)))
        return ended

    def next_end(self) -> float:
        """Moment at which the next answer ends if nothing changes; infinite: none decodes."""
        if not self._ends:
            return math.inf
        steps = max(0.0, self._ends[0][0] - self.steps)
        return self.now + steps * step_s(self.rows, self.kv_tokens + self.rows * steps / 2)

    def _steps_in(self, seconds: float) -> float:
        """Steps in so long: a x^2 + b x = seconds."""
        a, b = KV_TOKEN_S * self.rows / 2, step_s(self.rows, self.kv_tokens)
        return 2 * seconds / (b + math.sqrt(b * b + 4 * a * seconds))
