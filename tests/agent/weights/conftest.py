import pytest

from tests.agent.weights.weights_server import ShelfServer, write_model


@pytest.fixture
async def serve(tmp_path):
    """`await serve(...)` starts a shelf of a made-up model, or of the one given."""
    servers = []

    async def start(model=None, *, options=None, ready=True, block_bytes=1024, **shape):
        number = len(servers)
        model = model or write_model(tmp_path / f"model-{number}", **shape)
        server = ShelfServer(model, tmp_path / "hashes", block_bytes, options or {})
        servers.append(server)
        await server.start(ready=ready)
        return server

    yield start
    for server in servers:
        await server.stop()


@pytest.fixture
def home(tmp_path):
    """The directory that the agent keeps weights in."""
    return tmp_path / "weights"
