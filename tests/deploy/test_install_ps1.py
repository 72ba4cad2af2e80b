"""What can be known of install.ps1 without a PowerShell: a parser reads it, and it fits its Python.

It was never run by these tests; `windows/README.md` says what was not tried on Windows. No build of
PowerShell for Linux is in the indexes that the tests install from; a grammar of it is.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest
import tree_sitter_powershell
from tree_sitter import Language, Node, Parser

from molink_agent.windows.__main__ import parser
from molink_agent.windows.logon_task import TASK_NAME
from molink_agent.windows.ports import ANY, DATA_PORT
from molink_agent.windows.steps import BUILD_WSL2_MIN, Do
from tests.agent.doctor.test_windows import TOLD

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "windows" / "install.ps1").read_text()
POWERSHELL = Language(tree_sitter_powershell.language())

CMDLETS = {
    *("Get-CimInstance", "Get-Command", "Get-ScheduledTask", "ForEach-Object", "New-Object"),
    *("Select-Object", "Where-Object", "Write-Host", "Read-Host", "Resolve-Path", "Join-Path"),
    *("Split-Path", "ConvertFrom-Json", "Register-ScheduledTask", "Stop-ScheduledTask"),
    *("Unregister-ScheduledTask", "Out-Null", "Set-StrictMode", "New-Item", "Copy-Item"),
    *("Remove-Item", "Test-Path", "Write-Output", "ConvertTo-Json"),
    *(f"{verb}-NetFirewallHyperVRule" for verb in ("Get", "New", "Remove")),
}
"""Commands of Windows PowerShell 5.1, and of Windows 11's module for its firewall."""

ASKS_IN_VAIN_WITHOUT_HARM = {
    *("Get-Distributions", "Get-WslVersion", "Get-DistributionWsl"),
    *("Get-NvidiaDriver", "Get-SleepSeconds"),
}
"""They read words of a program, and have an answer of their own where it says none."""


def nodes(source: str) -> list[Node]:
    """Every node of the script's tree."""
    waiting = [Parser(POWERSHELL).parse(source.encode()).root_node]
    found = []
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].children
    return found


def text(node: Node) -> str:
    return node.text.decode()


def of_kind(kind: str, source: str = SCRIPT) -> list[Node]:
    return [node for node in nodes(source) if node.type == kind]


def function_around(node: Node) -> str:
    """Name of the function in which a node stands; empty: in none."""
    while node is not None and node.type != "function_statement":
        node = node.parent
    return "" if node is None else text(child(node, "function_name"))


def child(node: Node, kind: str) -> Node:
    return next(one for one in node.children if one.type == kind)


def called(source: str = SCRIPT) -> set[str]:
    """Names of commands and functions that are called."""
    return {text(one) for one in of_kind("command_name", source)}


def functions() -> dict[str, Node]:
    return {text(child(one, "function_name")): one for one in of_kind("function_statement")}


def faults(source: str) -> list[Node]:
    return [node for node in nodes(source) if node.is_error or node.is_missing]


def test_a_parser_reads_every_line():
    assert not faults(SCRIPT)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("function Show-Next {", "function Show-Next"),
        ("if ($Check) { return }", "if ($Check { return }"),
        ("$TaskName = 'MoLink agent'", "$TaskName = 'MoLink agent"),
        ("switch ($Step.do) {", "switch $Step.do {"),
    ],
)
def test_a_parser_notices_what_is_no_powershell(good, bad):
    assert good in SCRIPT and faults(SCRIPT.replace(good, bad))


def test_windows_powershell_reads_it_in_any_code_page():
    assert SCRIPT.isascii()


def test_nothing_of_newer_powershells_is_used():
    """Windows comes with 5.1: no ternary, no `??`, no `&&` between commands."""

    def newer(source: str) -> list[str]:
        signs = {"ternary_expression", "null_coalesce_expression", "&&", "||", "??", "??=", "?."}
        return [text(node) for node in nodes(source) if node.type in signs]

    assert not newer(SCRIPT)
    assert newer("Get-Item a && Get-Item b")
    outside = "".join(text(one) for one in nodes(SCRIPT) if not one.children and is_code(one))
    assert not re.search(r"\?\?|\?\.|\?\[|\s\?\s", outside)


def is_code(leaf: Node) -> bool:
    kinds = ("comment", "string", "verbatim", "expandable", "regex")
    return not any(kind in leaf.type for kind in kinds)


def test_every_function_that_is_called_exists():
    defined, names = set(functions()), called()
    assert {one for one in names if "-" in one} - defined <= CMDLETS
    assert defined <= names


@pytest.mark.parametrize("name", sorted(functions()))
def test_a_function_is_given_no_more_than_it_takes(name):
    """PowerShell leaves what is too much in `$args`, without a word."""
    takes = len(parameters(functions()[name]))
    for call in of_kind("command"):
        if text(child(call, "command_name") if has(call, "command_name") else call) != name:
            continue
        elements = child(call, "command_elements").children if has(call, "command_elements") else []
        given = [one for one in elements if one.type != "command_argument_sep"]
        assert len(given) <= takes, text(call)


def parameters(function: Node) -> list[Node]:
    declared = [one for one in function.children if one.type == "function_parameter_declaration"]
    return [node for one in declared for node in below(one) if node.type == "script_parameter"]


def below(node: Node) -> list[Node]:
    return [node, *(one for part in node.children for one in below(part))]


def has(node: Node, kind: str) -> bool:
    return any(one.type == kind for one in node.children)


def test_the_exit_code_of_every_program_is_looked_at():
    """Programs are called by `&`; what only reads their words has an answer of its own."""
    callers = {function_around(one) for one in of_kind("command_invokation_operator")}
    assert callers == {"Get-OutputOf", "Invoke-Wsl", "Install-Distribution", "Update-Wsl"}
    for name in callers - {"Get-OutputOf"}:
        body = text(functions()[name])
        looked = re.search(r"if \(\$(LASTEXITCODE|code) -(eq|ne) 0\)", body)
        assert looked and body.index("& wsl.exe") < looked.start(), name
        assert looked[1] == "LASTEXITCODE" or "$code = $LASTEXITCODE" in body, name
    readers = {
        function_around(one) for one in of_kind("command_name") if text(one) == "Get-OutputOf"
    }
    checked = {name for name in readers if "$LASTEXITCODE" in text(functions()[name])}
    assert readers - checked == ASKS_IN_VAIN_WITHOUT_HARM
    plain = [one for one in of_kind("command") if not has(one, "command_invokation_operator")]
    assert all("-" in text(child(one, "command_name")) for one in plain), "called without `&`"


def test_no_variable_is_read_that_nothing_sets():
    """StrictMode ends the script there."""
    automatic = {
        *("_", "true", "false", "null", "Matches", "LASTEXITCODE", "PSScriptRoot"),
        *("ErrorActionPreference",),
    }
    parameter = {text(one) for one in of_kind("script_parameter_name")} or set()
    top = set(re.findall(r"(?m)^\$(\w+) = ", SCRIPT))
    options = set(re.findall(r"(?m)^    \[(?:string|switch)\]\$(\w+)", SCRIPT))
    for name, function in functions().items():
        body = text(function)
        own = set(re.findall(r"\$(\w+) \+?= |foreach \(\$(\w+) in|\]\$(\w+)|\(\$(\w+)\) ?\{", body))
        known = {one for group in own for one in group if one} | top | options | automatic
        read = {one for one in re.findall(r"\$\{?(\w+)\}?(?!\w*:)", body) if one != "env"}
        assert read - parameter <= known, name


def test_the_firewall_s_rule_names_the_ports_that_python_tells():
    """Older Windows has no such commands, and none is needed there."""
    body = text(functions()["Request-Inbound"])
    order = ["Get-AskCommand @('ports')", "Remove-FirewallRule", "Read-Host"]
    order += ["New-NetFirewallHyperVRule"]
    assert [body.rindex(one) for one in order] == sorted(body.rindex(one) for one in order)
    assert "-LocalPorts $ports" in body and "-Name $FirewallRule" in body
    assert "Get-Command Get-NetFirewallHyperVRule" in text(functions()["Get-FirewallPorts"])
    assert "Remove-FirewallRule" in text(functions()["Uninstall-All"])


def test_no_rule_is_made_for_an_agent_that_takes_any_port():
    """It would let in what is not the agent's; a rule of before is taken back."""
    body = text(functions()["Request-Inbound"])
    [any_port] = [text(one) for one in of_kind("if_statement") if "$AnyPorts" in text(one)]
    assert "Remove-FirewallRule" in any_port and any_port.rstrip("} \n").endswith("return")
    assert body.index(any_port) < body.index("$Yes") and "--data-port $DataPort" in any_port


def test_the_kept_folder_installs_no_agent_and_mends_the_rest():
    """`install.sh --from` it would end before task and firewall."""
    body = text(functions()["Install-Agent"])
    assert "-not $From -and" in body and "-eq $KeptFolder" in body
    assert body.index("return") < body.index("Invoke-InLinux")


@pytest.mark.parametrize("do", list(Do))
def test_it_carries_out_every_step(do):
    conditions = {text(one).strip().strip("'") for one in of_kind("switch_clause_condition")}
    assert do.value in conditions


def test_it_asks_only_what_python_answers():
    commands = parser()._subparsers._group_actions[0].choices
    asked = set(re.findall(r"@\('(plan|wslconfig|ports|task-xml)'", SCRIPT))
    assert asked == set(commands)
    options = {name for command in commands.values() for name in command._option_string_actions}
    required = {action.option_strings[0] for action in commands["plan"]._actions if action.required}
    told = {f"--{name}" for name in facts()}
    assert required <= told | {"--wslconfig"} and told <= options
    assert {"--user-sid", "--remove"} <= options


def facts() -> list[str]:
    """Names of the facts that Get-Facts tells."""
    entries = [one for one in below(functions()["Get-Facts"]) if one.type == "hash_entry"]
    return [text(child(one, "key_expression")).strip("'") for one in entries]


def test_the_doctor_reads_the_facts_that_it_shows():
    shown = set(re.findall(r"\$known\['([a-z-]+)'\]", text(functions()["Show-Facts"])))
    assert set(facts()) | shown == set(TOLD)


def kept() -> list[str]:
    found = re.search(r"(?s)\$KeptFiles = (@\(.*?\))\n", SCRIPT)[1]
    return [
        PureWindowsPath(one).as_posix() for one in ast.literal_eval(found[1:].replace("\\", "\\\\"))
    ]


def test_what_it_keeps_is_enough_to_take_all_of_it_back(tmp_path):
    """The folder that it was installed from may have gone."""
    for name in kept():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    file = tmp_path / ".wslconfig"
    for words in ([str(file)], [str(file), "--remove"]):
        done = subprocess.run(
            [sys.executable, "-S", "-m", "molink_agent.windows", "wslconfig", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,  # Python looks there, too.
            env={
                "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'agent'}",
                "HOME": str(tmp_path),
            },
            check=False,
        )
        assert "is changed" in done.stdout, done.stderr
    removed = subprocess.run(
        ["sh", str(tmp_path / "deploy" / "install.sh"), "--uninstall"],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        check=False,
    )
    assert removed.returncode == 0 and "MoLink is removed." in removed.stdout


def test_what_is_kept_is_asked_while_it_is_there_and_removed_last():
    body = text(functions()["Uninstall-All"])
    order = ["Remove-FirewallRule", "'--remove'", "Get-LinuxInstaller", "Remove-Item -Path $KeptF"]
    assert [body.index(one) for one in order] == sorted(body.index(one) for one in order)
    install = text(functions()["Install-All"])
    assert install.index("Save-KeptFiles") < install.index("Request-Inbound")


def test_names_and_numbers_are_those_of_python():
    assert f"$TaskName = '{TASK_NAME}'" in SCRIPT
    assert f"$BuildMin = {BUILD_WSL2_MIN}\n" in SCRIPT
    assert f"$AnyPorts = '{ANY}'\n$DataPort = {DATA_PORT}\n" in SCRIPT
