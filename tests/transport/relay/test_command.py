"""`molink relay`: one ready line, one sentence for what is wrong, an orderly end."""

import asyncio
import signal
import sys

import pytest

from molink.transport.relay.protocol import read_secret
from tests.transport.relay.nodes import ANNA, SECRET, WITHIN_S, caller_of


@pytest.fixture
def secret_file(tmp_path):
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    return file


async def start(*options):
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "molink.cli.main", "relay", *map(str, options)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_where_it_listens_and_ends_in_order(secret_file, stop):
    relay = await start("--host", "127.0.0.1", "--port", 0, "--secret-file", secret_file)
    async with asyncio.timeout(WITHIN_S):
        ready = (await relay.stdout.readline()).decode().split()
        assert ready[:2] == ["ready", "relay"]
        registration = await caller_of(ANNA, ready[2]).register()
        relay.send_signal(stop)
        assert await relay.wait() == 0
    assert await relay.stderr.read() == b""
    assert await asyncio.get_running_loop().sock_recv(registration, 1) == b""
    registration.close()


async def test_a_missing_secret_is_one_sentence(tmp_path):
    relay = await start("--port", 0, "--secret-file", tmp_path / "none")
    async with asyncio.timeout(WITHIN_S):
        out, error = await relay.communicate()
    assert relay.returncode == 2 and not out
    assert error.decode().count("\n") == 1 and "openssl rand" in error.decode()


async def test_a_port_that_is_taken_is_one_sentence(secret_file):
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    relay = await start("--host", "127.0.0.1", "--port", port, "--secret-file", secret_file)
    async with asyncio.timeout(WITHIN_S):
        _, error = await relay.communicate()
    assert relay.returncode == 2
    assert "free port" in error.decode() and error.decode().count("\n") == 1
    taken.close()


@pytest.mark.parametrize("content", [b"", b"short", b" \n" * 40, b"x" * 5000])
def test_what_is_no_secret_is_refused(tmp_path, content):
    from molink.errors import UserError

    file = tmp_path / "secret"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(UserError, match="holds no secret"):
        read_secret(str(file))
    with pytest.raises(UserError, match="Cannot read"):
        read_secret(str(tmp_path))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
def test_a_secret_that_every_user_may_read_is_refused(secret_file, mode):
    from molink.errors import UserError

    secret_file.chmod(mode)
    with pytest.raises(UserError, match="umask 077"):
        read_secret(str(secret_file))
    secret_file.chmod(0o640)  # As Kubernetes mounts it.
    assert read_secret(str(secret_file)) == SECRET


def test_white_space_around_a_secret_does_not_count(secret_file):
    assert read_secret(str(secret_file)) == SECRET
