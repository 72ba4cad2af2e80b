"""A share of the prefix cache for each key, on a ring of two processes."""

import time

import aiohttp
import pytest

from molink.api.keys.store import KeyStore
from tests.end_to_end.conftest import serving


@pytest.mark.parametrize(("flooding", "cached"), [("ben", 192), ("anna", 0)])
async def test_a_flood_of_one_key_leaves_what_another_has_cached(
    tiny_llama, tmp_path, monkeypatch, flooding, cached
):
    """KV for 512 tokens: Anna's 200, then 28 prompts of 150, of Ben's or her own, then hers."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    options = ("--nodes", "2", "--dtype", "float32", "--kv-tokens", "512")
    with serving(str(tiny_llama), *options) as server:
        store = KeyStore.open(tmp_path / "molink")
        keys = {name: store.create(time.time(), name=name)[1] for name in ("anna", "ben")}
        store.close()
        async with aiohttp.ClientSession() as session:

            async def ask(name, prompt):
                body = {"prompt_token_ids": prompt, "max_tokens": 4, "temperature": 0}
                headers = {"Authorization": f"Bearer {keys[name]}"}
                url = f"{server.url}/generate"
                async with session.post(url, json=body, headers=headers) as answer:
                    told = await answer.json()
                    assert answer.status == 200, told
                return told["usage"]["prompt_tokens_details"]["cached_tokens"], told["token_ids"]

            chat = [(5 * at) % 90 + 3 for at in range(200)]
            first = await ask("anna", chat)
            for number in range(28):
                await ask(flooding, [(number + 7 * at) % 90 + 3 for at in range(150)])
            again = await ask("anna", chat)
    assert (first[0], again[0]) == (0, cached)
    assert first[1] == again[1]
