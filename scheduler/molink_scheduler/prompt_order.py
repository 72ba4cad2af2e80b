"""In which order a ring computes the prompts that wait: short ones first, and none waits for ever.

A prompt's place is the prompt tokens that came before it plus OWN_WORK_TIMES its own, not counting
what is cached. The least goes first, so a short prompt passes long ones that wait. Who comes later
has all that came in between before it, so those that pass a prompt have together fewer tokens than
OWN_WORK_TIMES - 1 times its own, however many come: it is delayed by what it costs others.

Rejected: the shortest first without a bound, under which long prompts of a busy ring never begin.
Time in place of tokens: it needs a pace, and a flood may come within a moment.

Pure: no times.
"""

from dataclasses import dataclass

OWN_WORK_TIMES = 10
"""Weight of own tokens: more gains little, less passes less (docs/benchmarks/prefix-cache.md)."""


@dataclass(slots=True)
class PromptOrder:
    """Gives the prompts of one ring their places."""

    times: int = OWN_WORK_TIMES
    """Weight of a prompt's own tokens in its place; 0: prompts go in order of arrival."""
    arrived_tokens: int = 0
    """Tokens to be computed of all prompts that have come."""

    def place(self, tokens: int) -> int:
        """Place that a prompt with so many tokens to compute would have if it came now."""
        return self.arrived_tokens + self.times * tokens

    def join(self, tokens: int) -> int:
        """Place of a prompt that comes now; of equal places the older goes first."""
        place = self.place(tokens)
        self.arrived_tokens += tokens
        return place
