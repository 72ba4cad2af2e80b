"""Sessions that are replayed in virtual time, so many at once, each turn after an answer.

Tokens have no meaning here, only sameness: what is new in a turn is one number repeated that nobody
else has, a prefix the number of its name, and an answer the token that all answers are made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.workload.sessions import AgentSession
from molink_scheduler.token_ids import token_bytes
from molink_sim.ring.tail import TOKEN_ID
from molink_sim.scenario import RequestArrival


@dataclass(slots=True)
class SessionReplay:
    """Turns to come of all sessions."""

    sessions: Sequence[AgentSession]
    at_once: int
    asked_count: int = field(init=False, default=0)
    """Turns that were handed out."""
    _begun: int = field(init=False, default=0)
    _turns: dict[int, int] = field(init=False, default_factory=dict)
    """Index of the next turn of each session that is under way."""
    _histories: dict[int, bytes] = field(init=False, default_factory=dict)
    _words: dict[str, int] = field(init=False, default_factory=dict)
    """Token of each prefix and of each turn's new part."""

    def first(self) -> list[RequestArrival]:
        """The first turns of the sessions that begin at once."""
        begun = (self._begin(0.0) for _ in range(min(self.at_once, len(self.sessions))))
        return [one for one in begun if one is not None]

    def following(self, session: int, now: float, *, answered: bool) -> RequestArrival | None:
        """What is asked after a turn of a session has ended: its next turn, or the first one of
        another session. None: nothing is left."""
        if answered and self._turns[session] < len(self.sessions[session].turns):
            return self._next_turn(session, now)
        self._histories.pop(session)
        return self._begin(now)

    def _begin(self, now: float) -> RequestArrival | None:
        if self._begun == len(self.sessions):
            return None
        number, self._begun = self._begun, self._begun + 1
        session = self.sessions[number]
        self._turns[number] = 0
        self._histories[number] = self._text(f"prefix {session.prefix}", session.prefix_tokens)
        return self._next_turn(number, now)

    def _next_turn(self, number: int, now: float) -> RequestArrival:
        index = self._turns[number]
        turn = self.sessions[number].turns[index]
        prompt = self._histories[number] + self._text(f"turn {number} {index}", turn.new_tokens)
        self._turns[number] = index + 1
        self._histories[number] = prompt + token_bytes((TOKEN_ID,)) * turn.answer_tokens
        self.asked_count += 1
        tokens = self.sessions[number].prompts[index]
        at_s = now + turn.wait_s
        return RequestArrival(at_s, tokens, turn.answer_tokens, prompt, number)

    def _text(self, name: str, tokens: int) -> bytes:
        word = self._words.setdefault(name, TOKEN_ID + 1 + len(self._words))
        return token_bytes((word,)) * tokens
