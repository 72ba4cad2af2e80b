"""Headers with the ring that served a request, and what waiting, prefill and decode took.

An answer's headers say what is known when they leave: of a whole answer everything, of a stream
what came before its first event. A stream carries the rest as `molink` in its last event. All of it
is read from the timelines of the request's sequences; where there are several, times are those of
the slowest.
"""

import re
from collections.abc import Iterable, Sequence
from contextvars import ContextVar

from molink.api.openapi.answers import RingPart, ServedBy
from molink.serving.timeline import RequestTimeline, RingAttempt
from molink_scheduler.kv.blocks import BLOCK_TOKENS

SERVED: ContextVar[list[RequestTimeline] | None] = ContextVar("served", default=None)
"""Timelines of the sequences of the HTTP request that the running task serves; None: outside."""

NODES_SHOWN_MAX = 64
"""Nodes in a header: as many as the longest ring has."""

NODE_CHARS_SHOWN = 40

_UNSHOWN = re.compile(r"[^ -+\--~]")
"""Characters that no name in a header's list may hold: commas, and all that is not ASCII."""


def note_sequences(timelines: Iterable[RequestTimeline | None]) -> None:
    """Note the sequences that are generated for the request."""
    served = SERVED.get()
    if served is not None:
        served += [one for one in timelines if one is not None]


def cached_tokens(prompt_tokens: int) -> int:
    """How many of the request's `prompt_tokens` were cached. Choices of one prompt find what the
    first has computed, so only the first counts."""
    timelines = SERVED.get() or []
    is_one = bool(timelines) and timelines[0].prompt_tokens == prompt_tokens
    cached = sum(one.cached_tokens for one in (timelines[:1] if is_one else timelines))
    return min(prompt_tokens, cached)


def wished_tokens() -> list[tuple[int, int]]:
    """First tokens of the request's prompts that its last rings keep, in whole blocks, and for how
    many seconds."""
    last = [one.attempts[-1] for one in SERVED.get() or () if one.attempts]
    wishes = [wish for attempt in last for wish in attempt.wishes]
    return [(tokens - tokens % BLOCK_TOKENS, keep_s) for tokens, keep_s in wishes]


def served_by() -> ServedBy:
    """Report that a stream's last event gives of the request: rings and nodes in the order in which
    they served, times in milliseconds (null: it did not come so far), and under `attempts` what
    each ring did for a request of one sequence: more than one where a ring was lost meanwhile;
    `audited` of a request that was chosen for an audit."""
    timelines = SERVED.get() or []
    told: ServedBy = {
        "request_id": timelines[0].arrival.request_id if timelines else None,
        "rings": _rings(timelines),
        "nodes": _nodes(timelines),
        "queue_ms": _slowest_ms(one.queue_s for one in timelines),
        "prefill_ms": _slowest_ms(one.prefill_s for one in timelines),
        "decode_ms": _slowest_ms(one.decode_s for one in timelines),
        "attempts": [_attempt(part) for part in timelines[0].attempts]
        if len(timelines) == 1
        else [],
    }
    if audited := _audited(timelines):
        told["audited"] = audited
    return told


def _attempt(part: RingAttempt) -> RingPart:
    return {
        "ring": part.ring,
        "stages": [{"node": stage.node, "layers": list(stage.layers)} for stage in part.stages],
        "tokens": part.tokens,
        "moved_because": part.moved_because,
    }


def serving_headers(timelines: Sequence[RequestTimeline]) -> dict[str, str]:
    """Headers with what is known now of a request's sequences."""
    is_over = all(one.finished_at is not None for one in timelines)
    times = {
        "X-MoLink-Queue-Ms": _slowest_ms(one.queue_s for one in timelines),
        "X-MoLink-Prefill-Ms": _slowest_ms(one.prefill_s for one in timelines),
        "X-MoLink-Decode-Ms": _slowest_ms(one.decode_s for one in timelines) if is_over else None,
    }
    headers = {name: f"{ms:g}" for name, ms in times.items() if ms is not None}
    if audited := _audited(timelines):
        headers["X-MoLink-Audited"] = audited
    if rings := _rings(timelines):
        headers["X-MoLink-Ring"] = ", ".join(map(str, rings))
    if nodes := _nodes(timelines):
        shown = [_UNSHOWN.sub("?", name)[:NODE_CHARS_SHOWN] for name in nodes[:NODES_SHOWN_MAX]]
        headers["X-MoLink-Nodes"] = ", ".join(shown)
    return headers


def _audited(timelines: Iterable[RequestTimeline]) -> str:
    """How far the audit of one of them is; empty: none was chosen. An audit begins when the answer
    has ended, so while answers are on their way it is only known that there will be one."""
    return next((one.audited for one in timelines if one.audited), "")


def _rings(timelines: Iterable[RequestTimeline]) -> list[int]:
    return list(dict.fromkeys(part.ring for one in timelines for part in one.attempts))


def _nodes(timelines: Iterable[RequestTimeline]) -> list[str]:
    parts = [part for one in timelines for part in one.attempts]
    return list(dict.fromkeys(stage.node for part in parts for stage in part.stages))


def _slowest_ms(seconds: Iterable[float | None]) -> float | None:
    known = [one for one in seconds if one is not None]
    return round(max(known) * 1000, 1) if known else None
