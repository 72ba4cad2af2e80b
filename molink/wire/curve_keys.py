"""The keys of encrypted links, as processes hand them to one another."""

from collections.abc import Iterable
from dataclasses import dataclass, field

KEY_CHARACTERS = 40
"""Length of a CURVE key in Z85."""

KEYS_MAX = 2
"""A process listens at two ports at most: a ring's head for its tail and for the coordinator."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Key pair of a process and the keys that it accepts, one for each port at which it listens, in
    Z85. Raises ValueError for what is no key."""

    public: str
    secret: str = field(repr=False)
    allowed: tuple[str, ...] = ()
    """Keys that are accepted: by a stage the previous stage's (by the head the tail's) and the
    coordinator's; by the coordinator the tail's."""

    def __post_init__(self) -> None:
        check_keys((self.public, self.secret))
        check_keys(self.allowed)


def check_keys(keys: Iterable[str]) -> None:
    """Raise ValueError when these are more than KEYS_MAX, or one is no key in Z85."""
    listed = list(keys)
    if len(listed) > KEYS_MAX:
        raise ValueError(f"at most {KEYS_MAX} keys may be allowed")
    for key in listed:
        if not isinstance(key, str) or len(key) != KEY_CHARACTERS or not key.isascii():
            raise ValueError("a CURVE key has 40 characters of Z85")
