"""Figures of the control plane's benchmark as the documentation holds them. Pure."""

from typing import Any

from tools.experiments.harness.results import markdown_table, milliseconds

__all__ = ["table"]


def table(figures: list[dict[str, Any]]) -> str:
    """One row for each broker and number of agents."""
    head = (
        "broker",
        "agents",
        "joined",
        "joins/s",
        "messages/s",
        "CPU of a core",
        "coordinator's client",
        "memory, MB",
        "delay p50, ms",
        "p99, ms",
        "killed: will, s",
        "frozen: will, s",
        "frozen: silence, s",
    )
    return markdown_table(head, [_row(one) for one in figures])


def _row(one: dict[str, Any]) -> list[str]:
    return [
        one["broker"],
        f"{one['agents']:,}",
        f"{one['joined']:,}",
        f"{one['joins_per_s']:,.0f}",
        f"{one['messages_per_s']:,.0f}",
        f"{one['broker_cpu']:.1%}",
        f"{one['coordinator_cpu']:.1%}",
        f"{one['broker_memory_mb']:.0f}",
        milliseconds(one["delay_p50_s"]),
        milliseconds(one["delay_p99_s"]),
        _longest(one["kill_will_s"]),
        _longest(one["freeze_will_s"]),
        _longest(one["freeze_silence_s"]),
    ]


def _longest(times_s: list[float | None]) -> str:
    known = [one for one in times_s if one is not None]
    return f"{max(known):.2f}" if len(known) == len(times_s) else "never"
