"""What can be known of install.ps1 without a PowerShell: it is well formed, and it fits its Python.

It was never run by these tests; `windows/README.md` says what was not tried on Windows.
"""

import re
from pathlib import Path

import pytest

from molink_agent.windows.__main__ import parser
from molink_agent.windows.logon_task import TASK_NAME
from molink_agent.windows.steps import BUILD_WSL2_MIN, Do

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "windows" / "install.ps1").read_text()

TOKENS = re.compile(
    r"""(?P<comment><\#.*?\#>|\#[^\n]*)"""
    r"""|(?P<single>'(?:[^']|'')*')"""
    r"""|(?P<double>"(?:[^"`]|`.)*")"""
    r"""|(?P<open>[\(\{\[])|(?P<close>[\)\}\]])""",
    re.DOTALL | re.VERBOSE,
)
PAIRS = {")": "(", "}": "{", "]": "["}


def code() -> str:
    """The script without comments."""
    return TOKENS.sub(lambda found: "" if found["comment"] else found[0], SCRIPT)


def unclosed(text: str) -> list[str]:
    """Brackets, outside of strings and comments, that have no partner."""
    waiting: list[str] = []
    for found in TOKENS.finditer(text):
        if found["open"]:
            waiting.append(found["open"])
        elif found["close"]:
            if not waiting or waiting[-1] != PAIRS[found["close"]]:
                return [*waiting, found["close"]]
            waiting.pop()
    return waiting


def test_brackets_and_strings_close():
    assert not unclosed(SCRIPT)
    assert unclosed(SCRIPT.replace("function Show-Next {", "function Show-Next"))


def test_windows_powershell_reads_it_in_any_code_page():
    assert SCRIPT.isascii()


def test_nothing_of_newer_powershells_is_used():
    """Windows comes with 5.1: no ternary, no `??`, no `&&` between commands."""
    assert not re.search(r"\?\?|&&|\|\||\s\?\s[^|]*\s:\s", code())


def test_every_function_that_is_called_exists():
    defined = set(re.findall(r"^function ([A-Z][A-Za-z]+-[A-Za-z]+)", SCRIPT, re.MULTILINE))
    outside_strings = TOKENS.sub(
        lambda found: found[0] if found["open"] or found["close"] else "", SCRIPT
    )
    called = set(re.findall(r"(?<![-$\w])([A-Z][a-z]+-[A-Z][A-Za-z]+)\b", outside_strings))
    cmdlets = {
        *("Get-CimInstance", "Get-Command", "Get-ScheduledTask", "ForEach-Object", "New-Object"),
        *("Select-Object", "Where-Object", "Write-Host", "Read-Host", "Resolve-Path"),
        *("Split-Path", "ConvertFrom-Json", "Register-ScheduledTask", "Stop-ScheduledTask"),
        *("Unregister-ScheduledTask", "Out-Null", "Set-StrictMode"),
        *(f"{verb}-NetFirewallHyperVRule" for verb in ("Get", "New", "Remove")),
    }
    assert called - defined <= cmdlets
    assert defined <= called


def test_a_rule_of_the_firewall_of_wsl_is_asked_for_once_and_taken_back():
    """Older Windows has no such commands, and none is needed there."""
    assert "Get-Command New-NetFirewallHyperVRule" in code()
    asked, made = code().index("Read-Host 'Let other PCs"), code().index("    New-NetFirewall")
    assert asked < made < code().index("    Request-Inbound\n")
    assert "Remove-NetFirewallHyperVRule -Name $FirewallRule" in code()


@pytest.mark.parametrize("do", list(Do))
def test_it_carries_out_every_step(do):
    assert re.search(rf"(?m)^        '{do.value}' {{", SCRIPT)


def test_it_asks_only_what_python_answers():
    commands = parser()._subparsers._group_actions[0].choices
    asked = set(re.findall(r"@\('(plan|wslconfig|task-xml)'", SCRIPT))
    assert asked == set(commands)
    options = {name for command in commands.values() for name in command._option_string_actions}
    question = SCRIPT[SCRIPT.index("@('plan'") : SCRIPT.index("ConvertFrom-Json")]
    required = {action.option_strings[0] for action in commands["plan"]._actions if action.required}
    assert required <= set(re.findall(r"'(--[a-z-]+)'", question)) <= options
    assert {"--user-sid", "--remove"} <= options


def test_names_and_numbers_are_those_of_python():
    assert f"$TaskName = '{TASK_NAME}'" in SCRIPT
    assert f"$BuildMin = {BUILD_WSL2_MIN}\n" in SCRIPT
