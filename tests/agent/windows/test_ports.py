"""Ports that a rule of Windows' firewall names are those at which the agent listens."""

import json

import pytest

from molink.transport.link.inbound import LINK_PORTS
from molink_agent.daemon.routes import ListenAddress
from molink_agent.data_files import DATA_PORT_MAX, OPTIONS_FILE, AgentOptions
from molink_agent.limits.limits import DEVICES_MAX
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.windows.__main__ import main
from molink_agent.windows.ports import MEASURING_PORTS, PORT_MAX, PORTS, kept_data_port, ports_from


def test_each_device_and_each_link_has_one():
    assert MEASURING_PORTS == DEVICES_MAX
    assert PORTS == MEASURING_PORTS + LINK_PORTS
    assert DATA_PORT_MAX + PORTS - 1 == PORT_MAX


@pytest.mark.parametrize(
    ("port", "ports"), [(27600, "27600-27663"), (0, "1-65535"), (65530, "65530-65535")]
)
def test_ports_of_an_agent(port, ports):
    assert ports_from(port) == ports


def test_links_listen_behind_the_measurements(tmp_path):
    def first(port):
        return ListenAddress(AgentOptions(port), LimitsFile(tmp_path)).first_link_port

    assert (first(27600), first(0)) == (27616, 0)


def test_the_installer_is_told_those_of_the_agent_that_joined(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for options, ports in ((None, "27600-27663"), (9000, "9000-9063"), (0, "1-65535")):
        if options is not None:
            AgentOptions(options).save(tmp_path / "molink-agent")
        assert main(["ports"]) == 0
        assert capsys.readouterr().out == ports + "\n"


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"data_port": 70_000}), "[" * 9999])
def test_a_file_that_is_something_else_tells_nothing(tmp_path, content):
    (tmp_path / OPTIONS_FILE).write_text(content)
    assert kept_data_port(tmp_path) is None
