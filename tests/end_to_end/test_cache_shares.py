"""A share of the prefix cache for each key, on a ring of two processes."""

import time

import aiohttp
import pytest

from molink.api.keys.store import KeyStore
from tests.end_to_end.conftest import serving


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_DATA_HOME", str(folder))
        yield folder / "molink"


@pytest.fixture(scope="module")
def server(tiny_llama, home):
    """Without host memory, where all of it would find room."""
    options = ("--nodes", "2", "--dtype", "float32", "--kv-tokens", "512", "--cache-ram-gb", "0")
    with serving(str(tiny_llama), *options) as server:
        yield server


@pytest.fixture(scope="module")
def keys(server, home):
    """Secrets of two users and of an admin, made while the server runs."""
    store = KeyStore.open(home)
    made = {name: store.create(time.time(), name=name)[1] for name in ("anna", "ben")}
    made["admin"] = store.create(time.time(), scope="admin")[1]
    store.close()
    return made


@pytest.mark.parametrize(("flooding", "cached"), [("ben", 192), ("anna", 0)])
async def test_a_flood_of_one_key_leaves_what_another_has_cached(server, keys, flooding, cached):
    """KV for 512 tokens: Anna's 200, then 28 prompts of 150, of Ben's or her own, then hers."""
    async with aiohttp.ClientSession() as session:

        async def post(name, path, body):
            headers = {"Authorization": f"Bearer {keys[name]}"}
            async with session.post(server.url + path, json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        async def ask(name, prompt):
            body = {"prompt_token_ids": prompt, "max_tokens": 4, "temperature": 0}
            told = await post(name, "/generate", body)
            return told["usage"]["prompt_tokens_details"]["cached_tokens"], told["token_ids"]

        await post("admin", "/cluster/cache/clear", {})
        chat = [(5 * at) % 90 + 3 for at in range(200)]
        first = await ask("anna", chat)
        for number in range(28):
            await ask(flooding, [(number + 7 * at) % 90 + 3 for at in range(150)])
        again = await ask("anna", chat)
    assert (first[0], again[0]) == (0, cached)
    assert first[1] == again[1]
