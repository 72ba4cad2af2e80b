"""The API behind a real reverse proxy, set up as the page for operators says; and its own TLS."""

import os
import re
import shutil
import ssl
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from molink.api.keys.store import KeyStore
from tests.certificates import Authority
from tests.end_to_end.clusters import free_ports
from tests.end_to_end.conftest import serving

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
PAGE = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()
SMALL = ("--nodes", "1", "--dtype", "float32", "--kv-tokens", "416")
PROMPT = {"prompt_token_ids": [5, 6, 7], "max_tokens": 8, "ignore_eos": True}

AROUND = """
pid {folder}/nginx.pid;
error_log stderr;
daemon off;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""


def server_block(port: int, upstream: str, files) -> str:
    """The page's own, at the places of this test."""
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    changes = {
        r"listen 443": f"listen 127.0.0.1:{port}",
        r"ssl_certificate \S+;": f"ssl_certificate {files.certificate};",
        r"ssl_certificate_key \S+;": f"ssl_certificate_key {files.key};",
        r"http://127\.0\.0\.1:8000": upstream,
    }
    for what, instead in changes.items():
        block, count = re.subn(what, instead, block)
        assert count == 1, what
    return block


@contextmanager
def nginx(folder: Path, upstream: str):
    """URL of the proxy, and what a client trusts it by."""
    files = Authority.make(folder / "ca").sign_for("127.0.0.1")
    (port,) = free_ports(1)
    user = "user root;" if os.geteuid() == 0 else ""
    block = server_block(port, upstream, files)
    (folder / "conf").write_text(AROUND.format(folder=folder, user=user, server=block))
    process = subprocess.Popen([NGINX, "-p", folder, "-e", "stderr", "-c", folder / "conf"])
    try:
        deadline = time.monotonic() + 20
        while not (folder / "nginx.pid").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        yield f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=files.ca)
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "molink"


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_behind_nginx_a_key_is_needed_and_enough(tiny_llama, tmp_path, home, tools):
    with (
        serving(str(tiny_llama), *SMALL, "--allowed-host", "127.0.0.1") as server,
        nginx(tmp_path, server.url) as (proxy, trust),
    ):
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def status(method, path, key=None, base=proxy):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                body = {"paused": False} if "cluster" in path else PROMPT
                asked = {"headers": headers, "json": body if method == "POST" else None}
                async with session.request(method, base + path, **asked) as answer:
                    return answer.status

            ways = [("POST", "/generate"), ("GET", "/cluster"), ("POST", "/cluster/intake")]
            assert [await status(*way, base=server.url) for way in ways] == [200, 200, 401]
            assert [await status(*way) for way in ways] == [401, 401, 401]
            assert await status("GET", "/health") == 200
            store = KeyStore.open(home)
            opened = {}
            for scope in ("inference", "watch", "admin"):
                key = store.create(time.time(), scope=scope)[1]
                opened[scope] = [await status(*way, key) for way in ways]
                assert opened[scope] == [await status(*way, key, server.url) for way in ways]
            store.close()
            assert opened == {
                "inference": [200, 403, 403],
                "watch": [403, 200, 403],
                "admin": [200, 200, 200],
            }
            assert [await status(*way, base=server.url) for way in ways] == [401, 401, 401]


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_a_stream_passes_nginx_as_it_comes(tiny_llama, tmp_path, home):
    """Slow links, so that there is time between two tokens."""
    options = ("--nodes", "2", "--dtype", "float32", "--kv-tokens", "416", "--link", "100:40")
    with (
        serving(str(tiny_llama), *options) as server,
        nginx(tmp_path, server.url) as (proxy, trust),
    ):
        store = KeyStore.open(home)
        headers = {"Authorization": f"Bearer {store.create(time.time())[1]}"}
        store.close()
        arrivals = []
        connector = aiohttp.TCPConnector(ssl=trust)
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as session,
            session.post(f"{proxy}/generate", json=PROMPT | {"stream": True}) as answer,
        ):
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    arrivals.append(time.monotonic())
        assert len(arrivals) >= 8 and arrivals[-1] - arrivals[0] > 0.3


async def test_the_api_speaks_tls_by_a_certificate_for_its_names(tiny_llama, home):
    with serving(str(tiny_llama), *SMALL, "--api-tls", "--allowed-host", "ring.example") as server:
        assert server.url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=home / "api-tls.pem")
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.post(f"{server.url}/generate", json=PROMPT) as answer:
                assert answer.status == 200
            named = server.url.replace("127.0.0.1", "localhost")
            async with session.get(f"{named}/v1/models") as answer:
                assert answer.status == 200
            plain = server.url.replace("https", "http")
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"{plain}/v1/models")
