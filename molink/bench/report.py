"""From records to numbers, and to a table on the terminal.

Times are those that a user feels: `ttft_s` from sending to the first token, `tpot_s` the mean time
between one request's tokens after the first, `gap_s` every single gap between neighbouring tokens
of all requests that did not come together (its p99 shows the stutter that a mean hides),
`latency_s` from sending to the end. `tokens_per_round` is how many tokens after the first came
together, on average: more than one where the ring verifies drafts.
Only finished requests count; failed ones are counted apart by the server's status, and their
tokens are not in `tokens_per_s`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from molink.bench.goodput import gaps_of, goodput_line, mean_gap_s
from molink.bench.runner import RequestRecord
from molink.json_object import JsonObject
from molink.printable import printable
from molink.workload.figures import SPREAD, TIME_LABELS, spread

BROKEN_OFF = "broken off"
"""Failure of a request that the server did not refuse: it could not be reached, or its answer ended
too soon."""


def report(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """The figures of a load, from its records."""
    good = [record for record in records if record.error is None]
    errors = [record.error for record in records if record.error is not None]
    tokens = sum(len(record.token_times_s) for record in good)
    gaps_s = [gap_s for record in good for gap_s in gaps_of(record.token_times_s)]
    firsts = sum(bool(record.token_times_s) for record in good)
    wall_s = _wall_s(records)
    return {
        "ttft_s": spread([record.ttft_s for record in good if record.ttft_s is not None]),
        "tpot_s": spread(
            [mean_gap_s(record.token_times_s) for record in good if len(record.token_times_s) > 1]
        ),
        "gap_s": spread(gaps_s),
        "latency_s": spread([record.end_s - record.start_s for record in good]),
        "tokens_per_s": tokens / wall_s if wall_s > 0 else 0.0,
        "tokens_per_round": (tokens - firsts) / len(gaps_s) if gaps_s else 0.0,
        "finished": len(good),
        "failed": len(errors),
        "generated_tokens": tokens,
        "wall_s": wall_s,
        "failures": _failures(records),
        "first_error": errors[0] if errors else None,
    }


def _failures(records: Sequence[RequestRecord]) -> dict[str, int]:
    """How many failed, by HTTP status."""
    failed = (str(one.status or BROKEN_OFF) for one in records if one.error is not None)
    return dict(sorted(Counter(failed).items()))


def _wall_s(records: Sequence[RequestRecord]) -> float:
    """Seconds from the first start to the last end."""
    if not records:
        return 0.0
    return max(record.end_s for record in records) - min(record.start_s for record in records)


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the spreads as a table in milliseconds and the totals beneath."""
    table = Table("milliseconds", title=_title(report["settings"]))
    for column in SPREAD:
        table.add_column(column, justify="right")
    for key, label in TIME_LABELS.items():
        table.add_row(label, *(_milliseconds(value) for value in report[key].values()))
    console.print(table)
    if "turns" in report:
        _print_turns(report["turns"], console)
    console.print(
        f"{report['tokens_per_s']:.1f} tokens/s: {report['generated_tokens']} tokens in "
        f"{report['wall_s']:.2f} s, {report['finished']} requests finished, "
        f"{report['failed']} failed{_by_status(report['failures'])}"
    )
    if each_s := report["tpot_s"]["mean"]:  # 0: every answer came in one event.
        console.print(f"{1 / each_s:.1f} tokens/s for each user, on average")
    if "goodput" in report:
        console.print(goodput_line(report["goodput"]))
    if report["first_error"]:
        error = printable(str(report["first_error"]))
        console.print(f"first error: {error}", style="red", markup=False)


def _by_status(failures: dict[str, int]) -> str:
    found = (f"{count} {name}" for name, count in failures.items())
    return f" ({', '.join(found)})" if failures else ""


def _print_turns(turns: JsonObject, console: Console) -> None:
    table = Table("turns", title="seen before, and new tokens alone")
    columns = ("count", "hits", "TTFT p50", "alone p50", "p50 of times", "most times")
    for column in columns:
        table.add_column(column, justify="right")
    for name, found in turns.items():
        ttfts = (_milliseconds(found[key]) for key in ("ttft_p50_s", "control_ttft_p50_s"))
        shares = (_number(found[key]) for key in ("times_p50", "times_max"))
        table.add_row(name, str(found["count"]), _number(found["hit_rate"], 4), *ttfts, *shares)
    console.print(table)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _title(settings: dict[str, Any]) -> str:
    if "sessions" in settings:
        return f"sessions of {settings['sessions']}, {settings['concurrency']} at once"
    if "trace" in settings:
        return f"trace {settings['trace']} at {settings['rate']:g} requests/s"
    return (
        f"{settings['requests']} requests, {settings['concurrency']} at once, "
        f"{settings['input_tokens']} tokens in, {settings['output_tokens']} out"
    )


def _milliseconds(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1000:.1f}"
