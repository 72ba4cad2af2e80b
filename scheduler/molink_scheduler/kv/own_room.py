"""Room of its own that a stage needs beside a lender, where all that is written lies: what requests
and rows it leaves room for. Pure.

A quarter of it is for the rows of a step, a quarter for cached blocks on their way in, and a half
holds three blocks of each request, so a stage never lacks a block where it writes.
"""

BLOCKS_HERE_MIN = 16
"""Fewest blocks of its own of a stage that has a lender: two requests, and steps of 64 rows."""

PASSING_SHARE = 4
"""Part of its own memory that is for the rows of a step, and for cached blocks on their way in."""

REQUEST_BLOCKS = 3
"""Blocks of each request in the other half: the last two, which never go, and one that a step
needs which interrupts another."""


def requests_beside_lender(blocks_here: int) -> int:
    """Requests that may hold blocks at a time, of a stage with so many blocks of its own."""
    return max(1, blocks_here // (2 * REQUEST_BLOCKS))
