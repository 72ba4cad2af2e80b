"""What is read of an agent's own files, whoever has written to them."""

import json

import pytest

from molink.errors import UserError
from molink_agent.data_files import OPTIONS_FILE, AgentOptions


@pytest.mark.parametrize(
    "options",
    [
        {"data_port": 70000},
        {"data_port": "7000"},
        {"data_port": True},
        {"listen": ["0.0.0.0"]},
        {"listen": ""},
        {"listen": "0.0.0.0\x1b[2J"},
        {"listen": "unix:/run/x"},
        {"map_ports": "no"},
        {"unknown": 1},
        [],
        7,
        None,
    ],
)
def test_options_that_cannot_be_ours_are_refused(tmp_path, options):
    (tmp_path / OPTIONS_FILE).write_text(json.dumps(options))
    with pytest.raises(UserError, match="is damaged"):
        AgentOptions.load(tmp_path)


def test_options_that_are_typed_wrongly_are_one_sentence():
    assert AgentOptions(data_port=65472).data_port == 65472
    with pytest.raises(UserError, match="--data-port takes a port from 0 to 65472"):
        AgentOptions(data_port=65473)


def test_options_come_back_as_they_were(tmp_path):
    options = AgentOptions(7000, "192.168.1.7", map_ports=False)
    options.save(tmp_path)
    assert AgentOptions.load(tmp_path) == options
