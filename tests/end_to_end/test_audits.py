"""A PC that computes something else than others is found out; users are served on without it."""

import asyncio

from tests.end_to_end.clusters import cluster
from tests.end_to_end.forked.asking import CHANGES
from tools.experiments.audits.found_out import LIAR

PROMPT = [5, 9, 13, 40, 41, 7, 77, 3]
BODY = {"prompt_token_ids": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
AUDITS_MAX = 20


LYING = f"""
import sys
sys.orig_argv.append("molink.stage.stage_process")
exec({LIAR!r})
from molink.engine import local_engine
local_engine.load_stage = lying
"""
"""What an agent's stages run first that negate what their first layer gives."""


async def quarantined(tools, made) -> list[str]:
    cluster = await tools.get(made.url, "/cluster")
    return [node["name"] for node in cluster["nodes"] if node["quarantined"]]


async def test_a_liar_among_three_pcs_is_quarantined(tools, tiny_llama, tmp_path):
    options = ("--broker", "embedded", "--min-nodes", "3", "--dtype", "float32")
    with cluster(tmp_path, tiny_llama, *options, "--audit-share", "1") as made:
        for name in ("anna", "ben"):
            made.join(name, "--threads", "1", known_steps=True)
        liar = {CHANGES: LYING}
        made.join("liar", "--threads", "1", known_steps=True, environment=liar)

        async def three_serve():
            return len((await tools.get(made.url, "/cluster"))["rings"]) == 3

        assert await tools.eventually(three_serve, within_s=120)
        for _ in range(AUDITS_MAX):
            posts = [tools.post(made.url, "/generate", BODY) for _ in range(3)]
            assert [status for status, _ in await asyncio.gather(*posts)] == [200] * 3
            if await quarantined(tools, made):
                break
        assert await quarantined(tools, made) == ["liar"]

        async def two_failed():  # One is counted when all that follows from it is done.
            return (await tools.get(made.url, "/cluster"))["audits"]["failed"] >= 2

        assert await tools.eventually(two_failed)
        audits = (await tools.get(made.url, "/cluster"))["audits"]
        assert audits["spans"] <= 100
        (expected,) = tools.greedy_reference(tiny_llama, [PROMPT], 12)
        for _ in range(3):
            status, answer = await tools.post(made.url, "/generate", BODY)
            assert (status, answer["token_ids"]) == (200, expected)
        assert len(list((tmp_path / "coordinator" / "audits").iterdir())) == audits["failed"]
