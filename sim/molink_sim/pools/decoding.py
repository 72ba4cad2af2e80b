"""A node that decodes: answers join its batch, wait for room, and end."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from molink_sim.clock import Clock
from molink_sim.pools.node import DecodeBatch
from molink_sim.pools.setting import PooledRequest


@dataclass(slots=True)
class DecodeNode:
    """A decode node; `ended` is told each answer that has its last token, and how long it took."""

    clock: Clock
    ended: Callable[[PooledRequest, float], None]
    batch: DecodeBatch = field(default_factory=DecodeBatch)
    line_free_s: float = 0.0
    """Moment from which its line takes more KV."""
    coming_s: dict[int, float] = field(default_factory=dict)
    """Requests on their way to it, and when their prompts are computed."""
    _waiting: deque[PooledRequest] = field(default_factory=deque)
    _plan: int = 0

    @property
    def load(self) -> int:
        """Answers that decode, wait, or come."""
        return self.batch.rows + len(self._waiting) + len(self.coming_s)

    def step_with(self, tokens: float) -> float:
        """Seconds of a step that begins now, with one more answer behind so many tokens."""
        self.batch.advance(self.clock.now)
        return self.batch.with_one(tokens)

    def join(self, served: PooledRequest) -> None:
        """Decode an answer from now on, or as soon as there is room."""
        self._waiting.append(served)
        self._go_on()

    def _go_on(self) -> None:
        self.batch.advance(self.clock.now)
        self._let_in()
        self._plan += 1
        self.clock.at(self.batch.next_end(), self._due, self._plan)

    def _let_in(self) -> None:
        while self._waiting:
            request = self._waiting[0].request
            tokens = request.input_tokens + request.output_tokens
            if self.batch.rows and tokens > self.batch.room_tokens:
                return
            served = self._waiting.popleft()
            self.batch.join(served.number, request.input_tokens, request.output_tokens, served)

    def _due(self, plan: int) -> None:
        if plan != self._plan:
            return
        self.batch.advance(self.clock.now)
        for served, begun_s in self.batch.pop_ended():
            served.end_s = self.clock.now
            self.ended(served, self.clock.now - begun_s)
        self._go_on()
