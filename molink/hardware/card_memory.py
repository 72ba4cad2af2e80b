"""Memory of a graphics card that may be counted on.

A process that uses a card at all holds memory there beside its tensors, and a card that is full
does not say so everywhere: under Windows and WSL its driver moves pages to the main memory, and
each step takes ten times as long. So a part stays free, and is never offered to anybody.
"""

CONTEXT_BYTES = 2**29
"""Bytes of each process on a card, beside its tensors: the driver's context and the libraries' code
take 0.3 to 0.5 GB, as others report."""

STEP_BYTES = 2**29
"""Bytes that a step is counted to take before it has been measured: rows of a span, workspaces,
logits. The stage measures it when it loads, and takes less KV where this was too little."""

KEPT_FREE_SHARE = 0.05
KEPT_FREE_BYTES_MIN = 2**29
"""Bytes of a card's memory that stay free: what a window system takes for another screen, a browser
for another page, while a stage computes. At least half a GB: on a small card they need no less."""


def kept_free_bytes(total_bytes: int) -> int:
    """The part of a card's memory that is never offered."""
    return max(KEPT_FREE_BYTES_MIN, int(total_bytes * KEPT_FREE_SHARE))
