"""All findings, in the order in which a person would mend them, as a table or as JSON."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from molink.printable import printable
from molink_agent.doctor import hardware, network, windows
from molink_agent.doctor.facts import DoctorFacts, Finding, Result

CHECKS: tuple[Callable[[DoctorFacts], Finding], ...] = (
    hardware.molink,
    hardware.driver,
    hardware.torch,
    hardware.vram,
    hardware.wsl,
    hardware.disk,
    hardware.limits,
    hardware.idle,
    hardware.swaps,
    network.clock,
    network.broker,
    network.packets,
    network.data_port,
    network.nat,
    network.upload,
    hardware.contribution,
)

STYLES = {
    Result.OK: "green",
    Result.WARN: "yellow",
    Result.FAIL: "bold red",
    Result.SKIP: "dim",
}


def examine(facts: DoctorFacts) -> tuple[Finding, ...]:
    """Run every check; one finding for each, and some more inside of WSL."""
    return tuple(check(facts) for check in CHECKS) + windows.findings(facts)


def as_json(findings: tuple[Finding, ...]) -> dict[str, Any]:
    """The findings for programs; `ok` is whether nothing failed."""
    failed = any(finding.result is Result.FAIL for finding in findings)
    return {"ok": not failed, "checks": [asdict(finding) for finding in findings]}


def print_findings(findings: tuple[Finding, ...], console: Console) -> None:
    """Print a table as wide as the terminal; remedies stand under what they mend."""
    table = Table("check", "result", "what was found, and what to do", show_lines=True)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for finding in findings:
        text = Text(printable(finding.found))
        if finding.remedy:
            text.append(f"\n{printable(finding.remedy)}", style="bold")
        result = Text(finding.result.value, style=STYLES[finding.result])
        table.add_row(Text(finding.check), result, text)
    console.print(table)
