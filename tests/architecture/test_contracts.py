"""What the shape of the code and the command line promise, as checks."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import grimp
import pytest

from molink.cli.main import cli
from tools.docs_site.python_page import ROOMS as REFERENCE
from tools.structure.files import imports

ROOT = Path(__file__).parents[2]
PACKAGES = ("molink", "scheduler/molink_scheduler", "agent/molink_agent", "sim/molink_sim")

OPTIONS = {
    "serve": (
        "--model --host --port --link --nodes --roles --standby --no-shadow --layers --dtype "
        "--device --threads --max-model-len --kv-tokens --kv-host-tokens --attention-device --kv "
        "--micro-batches "
        "--upload-mbps --wire "
        "--span-tokens --replay-log-gb --no-prefix-cache --drafter --draft-width-max --event-log "
        "--no-keys --allowed-host "
        "--api-tls --api-tls-cert --api-tls-key "
        "--tool-parser --cache-ram-gb --cache-disk-gb "
        "--reasoning-parser --log-format --otlp --quiet --cors-origin --strict "
        "--shared-cache --queue-s --routing --ttft-target-s --tpot-target-ms "
        "--tbt-target-ms --tbt-percentile --served-model-name "
        "--generation-config"
    ),
    "status": "--url --key --data-dir --json",
    "upgrade": "--check --back",
    "up": (
        "--model --host --port --public-host --broker --broker-port --relay-port --relay "
        "--relay-secret-file --agents-port --broker-users --tls-cert --tls-key --tls-ca "
        "--min-nodes --wait --roles "
        "--tpot-ms --context-tokens --prompt-tokens --answer-tokens --split "
        "--audit-share --weights-mbps --data-dir --replaces --dtype --kv-host-tokens --kv "
        "--max-model-len --micro-batches "
        "--wire --span-tokens --replay-log-gb --no-prefix-cache --drafter --draft-width-max "
        "--standby --no-shadow "
        "--no-keys --api-tls --api-tls-cert --api-tls-key "
        "--allowed-host --tool-parser "
        "--reasoning-parser --log-format --otlp --quiet "
        "--cors-origin --strict --shared-cache --queue-s --routing --ttft-target-s "
        "--tpot-target-ms --tbt-target-ms --tbt-percentile --served-model-name "
        "--generation-config"
    ),
    "dashboard": "--url --key --read-only --record --replay --data-dir",
    "demo": "--chat --prompt --quiet --json",
    "import": "--out --weights --group --config --quiet --json",
    "models": "--for --line --url --key --json --data-dir",
    "plan": (
        "--model --nodes --url --tpot-ms --context-tokens --prompt-tokens --answer-tokens --split "
        "--rings --json --key --kv --kv-host-tokens --lender-ms --weights --drafter --data-dir"
    ),
    "generate": "--url --key --max-tokens --temperature --top-p --top-k --seed --stop",
    "pull": "--quiet",
    "relay": "--host --port --secret-file",
    "cache": "",
    "cache clear": "--url --key --data-dir",
    "cell": "",
    "cell list": "--url --key --data-dir --json",
    "cell confirm": "--url --key --data-dir",
    "cell forget": "--url --key --data-dir",
    "chat": "--url --key --system --max-tokens --temperature --top-p --top-k --seed --stop",
    "bench": (
        "--model --url --concurrency --requests --input-tokens --output-tokens --seed "
        "--temperature --quiet --warmup --json --trace --rate --duration-s --scale --sessions "
        "--profile --key "
        "--ttft-target-s --tpot-target-ms --tbt-target-ms --tbt-percentile"
    ),
    "invite": "--expires --uses --name --url --qr --data-dir",
    "invite list": "--json --data-dir",
    "invite revoke": "--data-dir",
    "key": "",
    "key create": (
        "--name --rate --tokens-per-day --concurrency --expires --scope --admin --priority --url "
        "--data-dir"
    ),
    "key list": "--json --data-dir",
    "key usage": "--since --csv --json --data-dir",
    "key revoke": "--data-dir",
    "key rotate": "--data-dir",
    "node": "",
    "node list": "--json --data-dir",
    "node move": "--back --data-dir --json",
    "node remove": "--data-dir",
    "node forget": "--data-dir",
    "backup": "--data-dir",
    "restore": "--data-dir",
    "service": "",
    "service install": "",
    "service remove": "--data-dir",
    "service status": "--data-dir",
    "logs": "--follow --lines --data-dir",
    "agent": "",
    "agent join": (
        "--data-dir --name --device --memory-gb --threads --upload-mbps --relay-only --listen "
        "--data-port --map-ports --run"
    ),
    "agent run": "--data-dir",
    "agent report": "--data-dir --json --nights",
    "agent status": "--data-dir --json",
    "agent pause": "--data-dir --json",
    "agent resume": "--data-dir --json",
    "agent drain": "--data-dir --timeout-s",
    "agent leave": "--data-dir",
    "agent logs": "--data-dir --lines --follow",
    "agent page": "--open --data-dir",
    "agent tray": "--at-login --data-dir",
    "agent set": "--data-dir",
    "agent doctor": "--data-dir --json",
    "agent service": "",
    "agent service install": "--data-dir",
    "agent service remove": "--data-dir",
    "agent service status": "--data-dir",
    "sim": "",
    "sim cache": (
        "--quiet --trace --show --shape --rings --model --gpu --stages --bandwidth-mbps "
        "--latency-ms --capacity-tokens --routing --admission --rate --ttft-times "
        "--tpot-times --tbt-times --tbt-percentile --prompt-order --seed --out"
    ),
    "sim cell": "--paper --json",
    "sim compare": "--quiet --scenario --model --profile --rounds --json",
    "sim micro-batches": (
        "--quiet --model --gpu --stages --bandwidth-mbps --latency-ms --slowdown --users "
        "--micro-batches-max --json --curves --heat-map"
    ),
    "sim paper": "--quiet --table --section --assume --trace --seed --json --pictures",
    "sim plan": "--model --nodes --target-rate --tpot-bound-s --ttft-bound-s --seed --json",
    "sim pools": "--quiet --paper --trace --seeds --decode --rate --gap-ms --json",
    "sim replay": "--json",
    "sim run": (
        "--quiet --system --policy --model --gpu --stages --rings --bandwidth-mbps --latency-ms "
        "--jitter-ms --loss --upload-mbps --rate --duration-s --warmup-s --drain-s --trace --seed "
        "--wire --micro-batches --span-tokens --kv-tokens --link-model --json --page"
    ),
    "sim sessions": (
        "--quiet --sessions --concurrency --rings --model --gpu --stages --bandwidth-mbps "
        "--latency-ms --kv-tokens --host-gb --routing --seed --json"
    ),
    "sim swarm": "--quiet --seeds --first-seed --faults --json",
}
"""Frozen: scripts rely on these. An option may be added here with a line in CHANGELOG.md. Types and
defaults are frozen with all else that others rely on, in tests/golden."""


def sources() -> list[Path]:
    return [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]


def options_of(command: click.Command) -> set[str]:
    return {name for option in command.params for name in option.opts if name.startswith("--")}


def commands_of(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """All commands below a group, by the words with which they are called; those that other
    packages bring, too."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        found[before + name] = command
        if isinstance(command, click.Group):
            found |= commands_of(command, f"{before}{name} ")
    return found


COMMANDS = commands_of(cli)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_options_of_commands_are_frozen(name):
    assert options_of(COMMANDS[name]) == set(OPTIONS[name].split())


def test_no_command_is_missing_from_the_frozen_list():
    assert set(COMMANDS) == set(OPTIONS)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_says_what_it_does(name):
    command = COMMANDS[name]
    assert command.help
    for option in command.params:
        assert isinstance(option, click.Argument) or option.help, option.name


def test_help_needs_no_torch():
    """`molink --help` is quick because heavy modules are imported when a command runs."""
    code = (
        "import sys\n"
        "from molink.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'aiohttp', 'zmq'} & set(sys.modules)\n"
        "sys.exit(1 if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_module_says_what_it_is_for():
    bare = [file for file in sources() if ast.get_docstring(ast.parse(file.read_text())) is None]
    assert not bare


def test_files_stay_small():
    long = {file.name: n for file in sources() if (n := len(file.read_text().splitlines())) > 400}
    assert not long


def test_folders_stay_small():
    """A folder is a room, not a warehouse; `__init__.py` does not count."""
    counts = Counter(file.parent for file in sources() if file.name != "__init__.py")
    assert not {str(folder): n for folder, n in counts.items() if n > 16}


def test_the_page_on_architecture_names_every_folder_once():
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.split("## The folders")[1].split("Imports point one way")[0]
    rooms = re.findall(r"^\| \**`([^`]+)/`", table, re.MULTILINE)
    twice = {room for room in rooms if rooms.count(room) > 1}
    assert twice == {"stage"}  # One in the core, one in the product.
    children = {file.parent.relative_to(ROOT).parts for file in (ROOT / "molink").glob("*/*.py")}
    assert {parts[1] for parts in children} <= set(rooms)


def test_the_core_never_reads_a_clock():
    clocks = {"time", "datetime", "random", "os", "threading", "asyncio", "socket"}
    for file in (ROOT / "scheduler").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in getattr(node, "names", [])]
            if isinstance(node, ast.Import):
                assert not clocks & set(names), file
            if isinstance(node, ast.ImportFrom):
                assert node.module not in clocks, file


def test_only_faces_of_packages_list_their_names():
    """And modules whose reference is a page; others begin a name that is theirs alone with `_`."""
    shown = {name.replace(".", "/") for names in REFERENCE.values() for name in names}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            own = str(file.relative_to(ROOT).with_suffix(""))
            if file.name != "__init__.py" and not own.endswith(tuple(shown)):
                assert "\n__all__ = " not in file.read_text(encoding="utf-8"), own


def commands_taken(graph: grimp.ImportGraph) -> list[str]:
    """Modules of the agent and the simulator that import the product's commands."""
    return sorted(
        module
        for module in graph.modules
        if module.startswith(("molink_agent", "molink_sim"))
        and any(
            f"{one}.".startswith("molink.cli.")
            for one in graph.find_modules_directly_imported_by(module)
        )
    )


def test_agent_and_simulator_take_no_commands_of_the_product():
    """import-linter holds it too (`pyproject.toml`); here it can be seen to fail."""
    assert commands_taken(imports()) == []


def test_a_command_that_is_taken_is_found():
    graph = grimp.ImportGraph()
    graph.add_import(importer="molink_sim.cli", imported="molink.cli.options")
    graph.add_import(importer="molink_agent.cli", imported="molink.client")
    graph.add_import(importer="molink.bench", imported="molink.cli")
    assert commands_taken(graph) == ["molink_sim.cli"]
