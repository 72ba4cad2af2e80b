"""Lender that is too far: each layer waits for a message and its answer, so a token waits for as
many round trips as its stage has layers. Within a LAN that is milliseconds, over a home link two
seconds (32 layers at 60 ms).
"""

TOKEN_SHARE_MAX = 0.2
"""Part of a token's time that a stage may wait for a lender: two stages of a ring that borrow
lengthen a token by less than half."""


def far_lender_sentence(layers: int, round_trip_s: float, tpot_s: float) -> str:
    """Why a stage of so many layers borrows nothing over a link with this round trip where a token
    may take `tpot_s`; empty: it may."""
    waits_s, bearable_s = layers * round_trip_s, TOKEN_SHARE_MAX * tpot_s
    if waits_s <= bearable_s:
        return ""
    return (
        f"{layers} layers x {1e3 * round_trip_s:.3g} ms are {1e3 * waits_s:,.0f} ms a token, and "
        f"{1e3 * bearable_s:.3g} ms of {1e3 * tpot_s:.3g} may be waited: memory is lent within a "
        "PC or a LAN."
    )
