"""Every command with its arguments, options and defaults, and the names of what is kept where."""

import argparse
import json
from typing import Any

import click

from molink.agents_api.app import JOIN_PATH
from molink.api.cluster_routes import PLAN_PATH
from molink.cli.main import cli
from molink.control.messages.topics import ROOT
from molink.control.registry.registry import FILE_NAME as REGISTRY_FILE
from molink.coordinator.reports.ledger import LEDGER_FILE
from molink.coordinator.services import PROBE_SECRET, RELAY_SECRET
from molink.terminal.tables import DATA_FOLDER
from molink.transport.peer.protocol import PEER_PORT_NAME
from molink_agent.cli.join import KEY_FILE
from molink_agent.cli.options import directory
from molink_agent.daemon.agent_log import LOG_FILE
from molink_agent.daemon.membership import DEVICES_DIR, EARLIER_DEVICES_DIR
from molink_agent.daemon.step_times import STEPS_FILE
from molink_agent.daemon.this_pc import STARTED_FILE
from molink_agent.data_files import KNOWN_FILE, MEMBERSHIP_FILE, OPTIONS_FILE, WEIGHTS_DIR
from molink_agent.limits.limits_file import LIMITS_FILE
from molink_agent.limits.owner_policy import PAUSED_FILE
from molink_agent.local_socket import SOCKET_NAME
from molink_agent.windows.__main__ import parser
from molink_agent.windows.logon_task import TASK_NAME
from tests.architecture.test_contracts import commands_of
from tests.golden.codec import Codec, itself


def described(command: click.Command) -> str:
    """A line for each parameter; what help says may be worded anew, but must be there."""
    assert command.help, command.name
    flags = [
        "invokable" if getattr(command, "invoke_without_command", False) else "",
        "hidden" if command.hidden else "",
    ]
    lines = [" ".join(["command", *filter(None, flags)])]
    return "\n".join(lines + [parameter(one) for one in command.params])


def parameter(one: click.Parameter) -> str:
    facts: dict[str, Any] = {
        "names": "/".join(one.opts),
        "off": "/".join(one.secondary_opts) or None,
        "type": type_of(one.type),
        "default": shown(one.default),
        "required": one.required,
        "nargs": one.nargs if one.nargs != 1 else None,
        "multiple": one.multiple,
        "envvar": one.envvar,
    }
    if isinstance(one, click.Option):
        assert one.help or one.hidden, one.name
        facts |= {"flag": one.is_flag, "hidden": one.hidden}
    kept = {name: fact for name, fact in facts.items() if fact is not None and fact is not False}
    return f"{one.param_type_name} {json.dumps(kept, ensure_ascii=False)}"


def shown(default: object) -> object:
    """None where there is none, however click says so."""
    if default is None or type(default).__name__ == "Sentinel" or "UNSET" in repr(default):
        return None
    return default if isinstance(default, str | int | float | bool) else repr(default)


def type_of(kind: click.ParamType) -> str:
    match kind:
        case click.Choice():
            return f"one of {', '.join(map(str, kind.choices))}"
        case click.IntRange() | click.FloatRange():
            return f"{kind.name} {kind._describe_range()}"
        case click.Path():
            return f"path {kind.exists} {kind.file_okay} {kind.dir_okay}"
        case _:
            return kind.name


COMMANDS = Codec("cli-commands", described)
COMMANDS.add(molink=lambda: cli)
for words, one_command in commands_of(cli, "molink ").items():
    COMMANDS.add(**{words.replace(" ", "_"): lambda command=one_command: command})


def windows_help(_: None) -> str:
    """What install.ps1 may ask."""
    (groups,) = [one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)]
    lines = []
    for name, command in groups.choices.items():
        for action in command._actions:
            names = "/".join(action.option_strings) or action.dest
            choices = "" if action.choices is None else f" of {action.choices}"
            lines.append(f"{name} {names}{choices} required={action.required}")
    return "\n".join(lines)


WINDOWS = Codec("windows-questions", windows_help)
WINDOWS.add(all_of_them=lambda: None)

# -- names ----------------------------------------------------------------------------------------


def agent_folder() -> str:
    return directory(None).name


NAMES = Codec("names", itself)
NAMES.add(
    topics=lambda: ROOT,
    path_to_join=lambda: JOIN_PATH,
    path_of_the_plan=lambda: PLAN_PATH,
    port_of_the_peer_service=lambda: PEER_PORT_NAME,
    coordinator_folder=lambda: DATA_FOLDER,
    coordinator_registry=lambda: REGISTRY_FILE,
    coordinator_ledger=lambda: LEDGER_FILE,
    coordinator_setting_relay=lambda: RELAY_SECRET,
    coordinator_setting_probe=lambda: PROBE_SECRET,
    agent_folder=agent_folder,
    agent_key=lambda: KEY_FILE,
    agent_known=lambda: KNOWN_FILE,
    agent_limits=lambda: LIMITS_FILE,
    agent_log=lambda: LOG_FILE,
    agent_membership=lambda: MEMBERSHIP_FILE,
    agent_options=lambda: OPTIONS_FILE,
    agent_paused=lambda: PAUSED_FILE,
    agent_devices=lambda: DEVICES_DIR,
    agent_devices_earlier=lambda: EARLIER_DEVICES_DIR,
    agent_socket=lambda: SOCKET_NAME,
    agent_started=lambda: STARTED_FILE,
    agent_steps=lambda: STEPS_FILE,
    agent_weights=lambda: WEIGHTS_DIR,
    windows_task=lambda: TASK_NAME,
)

CODECS = (COMMANDS, WINDOWS, NAMES)
