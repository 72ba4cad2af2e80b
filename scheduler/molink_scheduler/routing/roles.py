"""Roles of rings: who computes prompts for others, and who answers.

Mooncake (FAST'25, section 3) has pools of machines for prefill and for decode, so that no answer
stands still while a prompt is computed. Here a ring has a role. One that only computes prompts is
paired with one that answers: their stages of the same layers stand in one place, and KV goes from
each to its pair, never over a home link. A ring that has no role does both, as ever.

Where no ring that answers is there, one that computes prompts answers, too: late is better than
never.

Pure.
"""

from collections.abc import Sequence
from enum import StrEnum

RINGS_MAX = 8
"""Rings that have roles, at most."""

HAND_OVER_TOKENS_MIN = 64
"""Least tokens of a prompt, beyond what the ring that answers has cached, that are computed
elsewhere: fewer fit into one step beside its decode."""


class Role(StrEnum):
    """What a ring does of a request."""

    PREFILL = "prefill"
    """Its prompt, for the ring that it is paired with."""
    DECODE = "decode"
    """Its answer, behind what its pair has computed."""
    BOTH = "both"
    """All of it."""

    @property
    def answers(self) -> bool:
        """Whether requests are given to such a ring."""
        return self is not Role.PREFILL


def roles_of(text: str) -> tuple[Role, ...]:
    """Roles of rings as they are typed, one for each, separated by commas; of nothing one ring that
    does both. Raises ValueError with a sentence that completes "--roles"."""
    if not text:
        return (Role.BOTH,)
    names = [one.strip() for one in text.split(",")]
    unknown = [name for name in names if name not in list(Role)]
    if unknown:
        raise ValueError(f"takes prefill, decode or both for each ring, got {unknown[0]!r:.40}")
    roles = tuple(map(Role, names))
    if len(roles) > RINGS_MAX:
        raise ValueError(f"takes at most {RINGS_MAX} rings, got {len(roles)}")
    if not any(role.answers for role in roles):
        raise ValueError("leaves no ring that answers: name a decode ring beside those of prefill")
    if Role.DECODE in roles and Role.PREFILL not in roles:
        raise ValueError("has a decode ring and none that computes prompts for it: name prefill")
    return roles


def pairs_of(roles: Sequence[Role]) -> dict[int, int]:
    """The ring that each prefill ring hands over to, by their places: decode rings in turn, where
    there are none those that do both."""
    decode = [place for place, role in enumerate(roles) if role is Role.DECODE]
    decode = decode or [place for place, role in enumerate(roles) if role.answers]
    prefill = [place for place, role in enumerate(roles) if role is Role.PREFILL]
    return {ring: decode[turn % len(decode)] for turn, ring in enumerate(prefill)}


def is_handed_over(prompt_tokens: int, cached_tokens: int) -> bool:
    """Whether a prompt is computed by another ring than the one that answers, which has cached so
    much of it."""
    return prompt_tokens - cached_tokens >= HAND_OVER_TOKENS_MIN
