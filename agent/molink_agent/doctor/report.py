"""All findings, in the order in which a person would mend them, as a table or as JSON."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from molink_agent.doctor import hardware, network
from molink_agent.doctor.contribution import contribution
from molink_agent.doctor.facts import DoctorFacts
from molink_agent.doctor.finding import Finding, Result

__all__ = ["CHECKS", "as_json", "examine", "print_findings"]

CHECKS: tuple[Callable[[DoctorFacts], Finding], ...] = (
    hardware.driver,
    hardware.torch,
    hardware.vram,
    hardware.wsl,
    hardware.disk,
    hardware.limits,
    hardware.idle,
    network.clock,
    network.broker,
    network.data_port,
    network.nat,
    network.upload,
    contribution,
)

STYLES = {
    Result.OK: "green",
    Result.WARN: "yellow",
    Result.FAIL: "bold red",
    Result.SKIP: "dim",
}


def examine(facts: DoctorFacts) -> tuple[Finding, ...]:
    """One finding for each check."""
    return tuple(check(facts) for check in CHECKS)


def as_json(findings: tuple[Finding, ...]) -> dict[str, Any]:
    """`ok` is whether nothing failed."""
    failed = any(one.result is Result.FAIL for one in findings)
    return {"ok": not failed, "checks": [asdict(one) for one in findings]}


def print_findings(findings: tuple[Finding, ...], console: Console) -> None:
    """A table as wide as the terminal; remedies stand under what they mend."""
    table = Table("check", "result", "what was found, and what to do", show_lines=True)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for one in findings:
        said = Text(one.found)
        if one.remedy:
            said.append(f"\n{one.remedy}", style="bold")
        table.add_row(Text(one.check), Text(one.result.value, style=STYLES[one.result]), said)
    console.print(table)
