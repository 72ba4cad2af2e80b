"""Random numbers that depend on the request alone, never on what else is in the batch.

Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011): the number is a function of a key and a counter. With the request's seed as key and the
position of the generated token as counter there is no state to keep, to lose with a failed stage,
or to share between requests.
"""

import numpy as np

__all__ = ["uniform"]

FRACTION_BITS = 52
"""One less than a double holds, so that uniform * total stays below total after rounding."""


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that draws the generated token at `position`."""
    raw = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (raw >> (64 - FRACTION_BITS)) * 2.0**-FRACTION_BITS
