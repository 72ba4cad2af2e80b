"""Scripts, manifests and guides name only commands and options that molink has, or will have."""

import importlib
import re
from pathlib import Path

import click
import pytest
import yaml

from molink.cli.main import cli

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    *sorted((ROOT / "deploy").rglob("*.sh")),
    ROOT / "deploy" / "Containerfile",
    ROOT / "windows" / "install.ps1",
]
GUIDES = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "volunteering",
        "operating",
        "keys",
        "keeping",
        "deploying",
        "model-files",
        "limits",
    )
]

EXPECTED = {
    "agent doctor": {"--json", "--data-dir"},
    "agent drain": {"--data-dir"},
    "agent join": {"--data-dir", "--data-port", "--device", "--memory-gb", "--name", "--threads"},
    "agent leave": {"--data-dir"},
    "agent logs": {"--data-dir", "-f", "--follow"},
    "agent page": {"--data-dir"},
    "agent pause": {"--data-dir"},
    "agent report": {"--json", "--nights", "--data-dir"},
    "agent resume": {"--data-dir"},
    "agent run": {"--data-dir"},
    "agent service install": {"--data-dir"},
    "agent service remove": {"--data-dir"},
    "agent service status": {"--data-dir"},
    "agent set": {"--data-dir"},
    "agent status": {"--json", "--data-dir"},
    "agent tray": {"--data-dir", "--at-login"},
    "backup": set(),
    "bench": set(),
    "cache clear": {"--url", "--key"},
    "cell confirm": set(),
    "dashboard": {"--url"},
    "generate": {"--max-tokens"},
    "import": {"--config", "--group", "--weights"},
    "invite": {"--expires", "--uses", "--name"},
    "invite list": set(),
    "invite revoke": set(),
    "key create": {
        "--name",
        "--rate",
        "--expires",
        "--scope",
        "--admin",
        "--priority",
        "--tokens-per-day",
        "--concurrency",
        "--url",
    },
    "key list": set(),
    "key usage": {"--since", "--csv"},
    "key revoke": set(),
    "key rotate": set(),
    "logs": {"-f", "--follow"},
    "models": {"--for"},
    "node forget": set(),
    "node list": {"--json"},
    "node move": {"--back", "--json"},
    "node remove": set(),
    "plan": {"--json", "--kv", "--nodes", "--url"},
    "relay": {"--port", "--secret-file"},
    "serve": set(),
    "restore": {"--data-dir"},
    "service install": set(),
    "service remove": set(),
    "service status": set(),
    "status": {"--url"},
    "upgrade": {"--check", "--back"},
    "up": {
        "--host",
        "--port",
        "--public-host",
        "--broker",
        "--broker-port",
        "--relay",
        "--relay-port",
        "--relay-secret-file",
        "--min-nodes",
        "--audit-share",
        "--drafter",
        "--draft-width-max",
        "--no-keys",
        "--allowed-host",
        "--wait",
        "--data-dir",
        "--replaces",
        "--agents-port",
        "--api-tls",
        "--api-tls-cert",
        "--api-tls-key",
        "--tls-cert",
        "--tls-key",
    },
}
"""The one list of what may be named here. Where the command line has a command already, it must
have these options; where it has not yet, its test is skipped."""

ALWAYS = {"--help", "--version"}

INVOCATION = re.compile(r"(?<![\w./:=-])(?:\S*/)?molink((?: [a-z]+)+)([^`\n'\"|;]*)")

PROGRAM_OF_OTHERS = re.compile(r"^\s*(?:kubectl|docker (?!run))")
"""Whose words may be followed by a thing called molink; ours begin behind ` -- `."""


def code_of(page: str) -> str:
    """What stands in code blocks and between backticks, a line each."""
    fenced = r"```(?:\w+)?\n(.*?)```"
    blocks = re.findall(fenced, page, re.DOTALL)
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(fenced, "", page, flags=re.DOTALL))
    return "\n".join([*blocks, *(span.replace("\n", " ") for span in spans)])


def invocations(text: str) -> list[tuple[str, set[str]]]:
    """Commands, as the longest path that is expected, with the options that follow."""
    found = []
    for line in text.splitlines():
        own = line.partition(" -- ")[2] if PROGRAM_OF_OTHERS.match(line) else line
        for words, rest in INVOCATION.findall(own):
            found.append(parsed(words.split(), set(re.findall(r"--[a-z-]+", rest))))
    return found


def parsed(words: list[str], options: set[str]) -> tuple[str, set[str]]:
    for length in range(len(words), 0, -1):
        if (path := " ".join(words[:length])) in EXPECTED:
            return path, options
    return " ".join(words), options


def is_expected(path: str, options: set[str]) -> bool:
    group = any(known.startswith(path + " ") for known in EXPECTED)
    return (path in EXPECTED and options <= EXPECTED[path] | ALWAYS) or (group and not options)


def manifest_commands() -> list[str]:
    """What the pods run; start.sh gives the words to molink, or to `agent join` behind `agent`."""
    commands = []
    for file in (ROOT / "deploy" / "kubernetes").glob("*.yaml"):
        for resource in yaml.safe_load_all(file.read_text()):
            pod = resource["spec"].get("template", {}).get("spec", {}) if "spec" in resource else {}
            for container in pod.get("containers", ()):
                words = " ".join(container["args"])
                commands.append("molink " + re.sub(r"^agent(?= --|$)", "agent join", words))
    return commands


def find(path: str) -> click.Command | None:
    """The command of the present command line; None when it is not there yet."""
    command: click.Command | None = cli
    for word in path.split():
        if word == "agent" and command is cli:
            command = agent_group()
        elif isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word)
        else:
            return None
    return command


def agent_group() -> click.Command | None:
    try:
        return importlib.import_module("molink_agent.cli").main
    except ModuleNotFoundError as error:
        assert error.name == "molink_agent.cli", error
        return None


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_scripts_name_only_expected_commands(file):
    for path, options in invocations(file.read_text()):
        assert is_expected(path, options), f"{path} {options}"


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: file.name)
def test_guides_name_only_expected_commands(file):
    found = invocations(code_of(file.read_text()))
    assert found
    for path, options in found:
        assert is_expected(path, options), f"{path} {options}"


def test_between_them_the_guides_show_every_command():
    shown = {path for file in GUIDES for path, _ in invocations(code_of(file.read_text()))}
    assert set(EXPECTED) <= shown


def test_pods_run_only_expected_commands():
    commands = manifest_commands()
    assert len(commands) == 2
    for path, options in invocations("\n".join(commands)):
        assert path in ("up", "agent join")
        assert is_expected(path, options)


def test_a_wrong_command_would_be_noticed():
    assert invocations("exec molink agent jion X --data-dir d") == [("agent jion", {"--data-dir"})]
    assert not is_expected("agent jion", {"--data-dir"})
    assert not is_expected("agent join", {"--data-dri"})
    assert is_expected("agent", set())


@pytest.mark.parametrize("path", sorted(EXPECTED))
def test_the_command_line_has_what_is_expected(path):
    command = find(path)
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    assert EXPECTED[path] <= options
