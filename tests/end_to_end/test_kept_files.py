"""A stage's process is killed, and the next one finds what its disk holds."""

import os
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.forked.asking import fork_of

KEPT = 288
"""Tokens of the chat that are in files, at least: the devices have room for a few of them beside
the other prompt."""


def open_files(pid):
    """The stage's files of cached KV, the index first; they stay open here."""
    links = Path(f"/proc/{pid}/fd").iterdir()
    found = [link for link in links if "kv-cache" in str(link.readlink())]
    assert len(found) == 2
    return sorted(
        (link.open("r+b") for link in found), key=lambda file: os.fstat(file.fileno()).st_size
    )


def garble(file):
    file.seek(0)
    size = len(file.read())
    file.seek(0)
    file.write(os.urandom(size))
    file.flush()


def harm(broken, index, blocks):
    if broken == "index":
        garble(index)
    if broken == "blocks":
        garble(blocks)
    if broken == "cut":
        blocks.truncate(os.fstat(blocks.fileno()).st_size // 50)


@pytest.mark.parametrize("broken", ["", "index", "blocks", "cut"])
async def test_what_the_disk_holds_is_a_hit_after_a_stage_is_killed(tools, tiny_llama, broken):
    """Its file may be broken meanwhile: that costs the hit and a sentence, and no other token."""
    options = ("--nodes", "3", "--dtype", "float32", "--span-tokens", "7", "--kv-tokens", "416")
    cache = ("--cache-ram-gb", "0", "--cache-disk-gb", "0.01", "--link", "1:2")
    chat, other = (
        [(step * at) % 90 + 3 for at in range(size)] for step, size in ((5, 300), (7, 330))
    )
    with tools.serving(str(tiny_llama), *options, *cache) as server:

        async def ask(prompt):
            body = {"prompt_token_ids": prompt, "max_tokens": 8, "temperature": 0}
            status, answer = await tools.post(server.url, "/generate", body | {"ignore_eos": True})
            assert status == 200
            return answer["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        told = [await ask(chat)]
        await ask(other)
        pid = (await tools.get(server.url, "/cluster"))["stages"][1]["pid"]
        files = open_files(fork_of(pid))
        psutil.Process(pid).kill()
        harm(broken, *files)

        async def goes_on():
            events = (await tools.get(server.url, "/cluster/events"))["events"]
            return "ring_resumed" in [one["kind"] for one in events]

        await tools.eventually(goes_on, within_s=60.0)
        told.append(await ask(chat))
        told.append(await ask(chat))
        [expected] = tools.greedy_reference(tiny_llama, [chat], 8)
        assert [tokens for tokens, _ in told] == [expected] * 3
        cached = [hit for _, hit in told]
        assert cached[0] == 0 and cached[2] == KEPT
        assert cached[1] == KEPT if not broken else cached[1] < KEPT / 4
        assert server.stop() == 0
        said = "".join(server.stderr)
        sentence = "is not used" if broken == "index" else "was altered or cut off"
        assert said.count(sentence) == bool(broken) and "Traceback" not in said
