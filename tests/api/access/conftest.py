"""Servers that want keys and that want none."""

import pytest

from tests.api.access.keyed_server import Server


@pytest.fixture
async def server(tmp_path, service):
    made = Server(tmp_path)
    await made.start(service)
    yield made
    await made.stop()


@pytest.fixture
async def keyless(tmp_path, service):
    """A server on loopback, which wants no key."""
    made = Server(tmp_path)
    await made.start(service, required=False)
    yield made
    await made.stop()
