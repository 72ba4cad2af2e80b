"""The unit's text: what systemd itself thinks of it, and paths that would change its meaning."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.engine.kernels.cpu.native_kernel import FOLDER_VARIABLE
from molink.errors import UserError
from molink.systemd.coordinator_unit import MADE_BY as COORDINATORS
from molink_agent.service.unit import MADE_BY, unit_name, unit_text

DATA = Path("/home/anna/.local/share/molink-agent")

ESCAPES = re.compile(r"\\(.)|%(%)|\$(\$)")

paths = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=30)

UNIT_NAME = "molink-agent.service"
"""Name of the unit of the agent with the usual data directory."""


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[A-Z]\w+=", line))


def read_back(command: str) -> list[str]:
    """How systemd splits a command line whose words are all in double quotes."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', command)
    return [ESCAPES.sub(lambda found: next(filter(None, found.groups())), word) for word in words]


@given(st.lists(paths.filter(str.isprintable), max_size=4))
def test_every_argument_arrives_as_it_was(arguments):
    command = ["/opt/molink", *arguments]
    assert read_back(settings(unit_text(command, DATA))["ExecStart"]) == command


@pytest.mark.parametrize("argument", ["a\nExecStartPre=/bin/false", "a\tb", "\x00", "a\u2028b"])
def test_nothing_breaks_out_of_the_command(argument):
    with pytest.raises(UserError, match="character codes"):
        unit_text(["/opt/molink", argument], DATA)


@pytest.mark.parametrize("program", ["molink", "./molink", "/opt/$HOME/molink"])
def test_programs_that_systemd_would_not_find_are_refused(program):
    with pytest.raises(UserError):
        unit_text([program], DATA)


def test_it_is_started_again_after_a_crash_but_not_after_its_owners_mistake():
    unit = settings(unit_text(["/opt/molink"], DATA))
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == "2"
    assert unit["StartLimitIntervalSec"] == "0"


def test_a_stage_that_the_kernel_took_does_not_end_the_agent():
    assert settings(unit_text(["/opt/molink"], DATA))["OOMPolicy"] == "continue"


def test_every_data_directory_has_a_unit_of_its_own():
    usual = Path("/home/a/.local/share/molink-agent")
    names = {unit_name(path, usual) for path in (usual, Path("/data/1"), Path("/data/2"))}
    assert UNIT_NAME in names
    assert len(names) == 3
    assert all(re.fullmatch(r"molink-agent(-[0-9a-f]{8})?\.service", name) for name in names)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_understands_every_line(tmp_path):
    unit = tmp_path / UNIT_NAME
    command = [shutil.which("true"), "agent", "run", "--data-dir", "/tmp/a b%c$d"]
    unit.write_text(unit_text(command, Path("/tmp/a b%c$d")))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        check=False,
    )
    assert UNIT_NAME not in done.stderr, done.stderr
    assert done.returncode == 0


def test_the_installer_knows_our_units():
    script = Path(__file__).parents[3] / "deploy" / "install.sh"
    (pattern,) = re.findall(r"'(\^# Made by .*)'", script.read_text())
    for made_by in (MADE_BY, COORDINATORS):
        assert not subprocess.run(["grep", "-q", pattern], input=made_by, text=True).returncode


SANDBOX = {
    "NoNewPrivileges": "yes",
    "RestrictSUIDSGID": "yes",
    "RestrictNamespaces": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
}
"""Of every unit; a user's manager needs no namespace for it."""


@pytest.mark.parametrize("isolated", [True, False])
def test_the_agent_is_shut_in(isolated):
    unit = settings(unit_text(["/opt/molink"], DATA, isolated=isolated))
    assert {name: unit[name] for name in SANDBOX} == SANDBOX
    families = set(unit["RestrictAddressFamilies"].split())
    assert {"AF_UNIX", "AF_INET", "AF_NETLINK"} <= families and "AF_PACKET" not in families
    assert "PrivateDevices" not in unit, "cards are devices"
    assert "PrivateNetwork" not in unit and "MemoryDenyWriteExecute" not in unit


def test_it_writes_to_its_own_folder_alone():
    unit = settings(unit_text(["/opt/molink"], DATA))
    assert (unit["ProtectSystem"], unit["ProtectHome"]) == ("strict", "read-only")
    assert unit["PrivateUsers"] == unit["PrivateTmp"] == "yes"
    assert f"{FOLDER_VARIABLE}={DATA}" in unit["Environment"], "where kernels are compiled"
    assert unit["ReadWritePaths"] == f'"{DATA}"'
    for word in re.findall(r'"([^"]*)"', unit["Environment"]):
        assert word.partition("=")[2].startswith(f"{DATA}/")


def test_where_users_have_no_namespaces_nothing_asks_for_one():
    unit = settings(unit_text(["/opt/molink"], DATA, isolated=False))
    assert not {"ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateUsers"} & set(unit)
