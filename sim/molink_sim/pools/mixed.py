"""A node that computes prompts and decodes, as vLLM does: the paper's comparison.

Prompts go first, whole, and decode stands meanwhile; or in chunks, each together with a decode step
of all answers (`chunk_tokens`), as later versions have it.
"""

from collections import deque
from dataclasses import dataclass, field

from molink_sim.clock import Clock
from molink_sim.pools.node import KV_TOKEN_S, DecodeBatch, prefill_s
from molink_sim.pools.setting import NodeCache, PooledRequest


@dataclass(slots=True)
class MixedNode:
    """A node of both roles."""

    clock: Clock
    cache: NodeCache
    rows_max: int | None = None
    chunk_tokens: int | None = None
    batch: DecodeBatch = field(default_factory=DecodeBatch)
    waiting_s: float = 0.0
    """Seconds of prefill of all prompts that are not computed, as forecast when they came."""
    _queue: deque[tuple[PooledRequest, float]] = field(default_factory=deque)
    _done: int = 0
    """Tokens of the first prompt that are computed or cached; 0: it has not begun."""
    _computes: bool = False
    _plan: int = 0

    def cost(self, served: PooledRequest) -> tuple[float, float, int]:
        """By what nodes are compared for a request: the soonest first token, then fewest answers;
        with bounded rows the fewest requests first, as each is in the way of all others."""
        own_s = prefill_s(served.request.input_tokens, self.cache.cached_tokens(served.request))
        outstanding = len(self._queue) + self.batch.rows
        return (outstanding if self.rows_max else 0, self.waiting_s + own_s, outstanding)

    def take(self, served: PooledRequest) -> None:
        """Serve a request that comes now."""
        own_s = prefill_s(served.request.input_tokens, self.cache.cached_tokens(served.request))
        self.waiting_s += own_s
        self._queue.append((served, own_s))
        if not self._computes:
            self._go_on()

    def _go_on(self) -> None:
        """Compute the next part of a prompt, or decode until something changes."""
        self._plan += 1
        if self._may_compute():
            self._compute()
        else:
            self.batch.advance(self.clock.now)
            self.clock.at(self.batch.next_end(), self._due, self._plan)

    def _may_compute(self) -> bool:
        if not self._queue:
            return False
        request = self._queue[0][0].request
        fits = request.input_tokens + request.output_tokens <= self.batch.room_tokens
        is_free = self.rows_max is None or self.batch.rows < self.rows_max
        return self._done > 0 or not self.batch.rows or (fits and is_free)

    def _compute(self) -> None:
        served, self._computes = self._queue[0][0], True
        if not self._done:
            self.batch.advance(self.clock.now)
            self._end_answers()
            served.cached_tokens = self._done = self.cache.cached_tokens(served.request)
        whole = served.request.input_tokens
        until = whole if self.chunk_tokens is None else min(whole, self._done + self.chunk_tokens)
        part_s = prefill_s(until, self._done)
        if self.chunk_tokens is not None:
            part_s += self.batch.kv_tokens * KV_TOKEN_S
        self._done = until
        self.clock.at(self.clock.now + part_s, self._computed, None)

    def _computed(self, _: None) -> None:
        now, self._computes = self.clock.now, False
        if self.chunk_tokens is None:
            self.batch.stand(now)
        else:
            self.batch.step_once(now)
            self._end_answers()
        served, own_s = self._queue[0]
        if self._done == served.request.input_tokens:
            self._queue.popleft()
            self._done, self.waiting_s = 0, self.waiting_s - own_s
            self.cache.keep(served.request)
            served.first_s = now
            tokens = served.request.input_tokens, served.request.output_tokens
            self.batch.join(served.number, *tokens, served)
        self._go_on()

    def _due(self, plan: int) -> None:
        if plan == self._plan:
            self.batch.advance(self.clock.now)
            self._end_answers()
            self._go_on()

    def _end_answers(self) -> None:
        for served, _ in self.batch.pop_ended():
            served.end_s = self.clock.now
