"""Goodput of a load: how many answers came whole and within all of their targets, by its records.

As the server counts them (`molink.serving.goodput`), but with the times that the client saw.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from molink.bench.runner import RequestRecord
from molink.config.groups import ApiSettings
from molink.json_object import JsonObject
from molink.workload.figures import percentile
from molink_scheduler.routing.admission import Targets

TARGETS = ("ttft_target_s", "tpot_target_ms", "tbt_target_ms", "tbt_percentile")
"""Options of a load that say what answers are to keep."""


def targets_of(options: Mapping[str, Any]) -> Targets:
    """Targets by their options. Raises UserError for one that cannot be."""
    return ApiSettings(**options).targets


def gaps_of(times_s: Sequence[float]) -> list[float]:
    """Gaps between tokens that did not come together, in the order in which they came."""
    return [later - earlier for earlier, later in pairwise(times_s) if later > earlier]


def mean_gap_s(times_s: Sequence[float]) -> float:
    """Mean time between tokens of two or more, those that came together among them."""
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1)


def is_good(record: RequestRecord, targets: Targets) -> bool:
    """Whether an answer came whole and within all targets."""
    if record.error is not None or record.ttft_s is None:
        return False
    times_s, gaps_s = record.token_times_s, sorted(gaps_of(record.token_times_s))
    tpot_s = mean_gap_s(times_s) if len(times_s) > 1 else 0.0
    tbt_s = percentile(gaps_s, targets.tbt_percentile) if gaps_s else 0.0
    return targets.missed_by(record.ttft_s, tpot_s, tbt_s) <= 1


def goodput_of(records: Sequence[RequestRecord], targets: Targets, wall_s: float) -> JsonObject:
    """Figures of the goodput of a load that took so many seconds."""
    met = sum(is_good(record, targets) for record in records)
    return {
        "met": met,
        "requests": len(records),
        "per_s": met / wall_s if wall_s > 0 else 0.0,
        "ttft_target_s": targets.ttft_s,
        "tpot_target_s": targets.tpot_s,
        "tbt_target_s": targets.tbt_s,
        "tbt_percentile": targets.tbt_percentile,
    }


def goodput_line(goodput: JsonObject) -> str:
    """The figures as a line for people."""
    named = (
        ("first token within", goodput["ttft_target_s"]),
        ("time per token within", goodput["tpot_target_s"]),
        (f"{goodput['tbt_percentile']:g} % of gaps within", goodput["tbt_target_s"]),
    )
    wanted = ", ".join(f"{what} {1000 * most_s:g} ms" for what, most_s in named if most_s)
    met = f"{goodput['met']} of {goodput['requests']} requests"
    return f"goodput {goodput['per_s']:.2f} requests/s: {met} ({wanted})"
