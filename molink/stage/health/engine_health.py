"""Health figures that a stage's engine adds to its reports."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from molink.engine_protocol.values import EngineReport, Sketch
from molink.stage.health.recent_work import REPORTED_S
from molink.stage_protocol.health import SKETCH_NUMBERS_MAX, SKETCHES_MAX, StageHealth


def with_engine(health: StageHealth, held: EngineReport, now: float) -> StageHealth:
    """A report with what the engine holds."""
    return replace(
        health,
        kv_tokens_used=held.kv_tokens_used,
        kv_tokens_cached=held.kv_tokens_cached,
        state_slots_used=held.state_slots_used,
        host_is_short=held.host_is_short,
        recent_sketches=recent_sketches(held.sketches, now),
        lender=held.lender,
    )


def recent_sketches(
    done: Iterable[Sketch], now: float
) -> tuple[tuple[int, int, tuple[float, ...]], ...]:
    """Value of `StageHealth.recent_sketches` as of now: of the newest as many as find room."""
    told = list[tuple[int, int, tuple[float, ...]]]()
    recent = (one for one in done if one[0] >= now - REPORTED_S)
    for _, request_id, tokens, numbers in islice(recent, SKETCHES_MAX):
        if sum(len(one[2]) for one in told) + len(numbers) > SKETCH_NUMBERS_MAX:
            break
        told.append((request_id, tokens, numbers))
    return tuple(told)
