"""Who may open the agent's socket."""

import os
import stat
from pathlib import Path

import pytest

from molink.control import private_file
from molink_agent.local_socket import SOCKET_NAME, answering


async def nothing(question):
    return {}


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


async def test_nobody_else_may_open_it_from_its_first_moment(tmp_path, monkeypatch, no_umask):
    modes = []

    class Watched(private_file.socket.socket):
        def bind(self, address):
            super().bind(address)
            modes.append(stat.S_IMODE(Path(address).stat().st_mode))

    monkeypatch.setattr(private_file.socket, "socket", Watched)
    async with answering(tmp_path / SOCKET_NAME, nothing):
        assert modes == [0o600]
        assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600
