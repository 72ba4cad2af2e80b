"""Targets of single gaps on a real ring: learned of its tokens, kept or refused, and counted."""

import asyncio

import aiohttp

from molink.bench.load import LoadSettings, run_load
from molink_scheduler.routing.admission import Targets

ANSWERS, TOKENS = 9, 64


def asked(first: int, **more: float) -> dict:
    prompt = [first] * 16
    return {"prompt_token_ids": prompt, "max_tokens": TOKENS, "ignore_eos": True, **more}


async def goodput_metrics(url: str) -> dict[str, float]:
    """Counts by outcome as a scrape has them."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = [line.split('"') for line in lines if line.startswith("molink_goodput_total{")]
    return {outcome: float(count.removeprefix("} ")) for _, outcome, count in found}


async def test_gaps_are_learned_and_targets_of_them_kept_refused_and_counted(tools, tiny_llama):
    with tools.serving(str(tiny_llama), "--nodes", "2", "--tbt-percentile", "90") as server:
        told = [tools.post(server.url, "/generate", asked(3 + one)) for one in range(ANSWERS)]
        assert [status for status, _ in await asyncio.gather(*told)] == [200] * ANSWERS
        cluster = await tools.get(server.url, "/cluster")
        pace = cluster["rings"][0]["pace"]
        assert pace["tpot_s"] > 0 and 0 < pace["tbt_p90_s"] <= pace["tbt_p99_s"]
        assert "goodput" not in cluster, "nobody had targets"

        hasty = asked(50, tbt_target_ms=1e-3)
        status, answer = await tools.post(server.url, "/generate", hasty)
        assert status == 429
        said = answer["error"]["message"]
        assert "90 % of gaps between tokens within" in said and "0.001 ms (tbt_target_ms)" in said
        assert "a round of the ring takes" in said
        status, answer = await tools.post(server.url, "/generate", asked(51, tbt_target_ms=0))
        assert status == 400 and "tbt_target_ms" in answer["error"]["message"]
        patient = asked(52, tbt_target_ms=60_000, ttft_target_s=600)
        assert (await tools.post(server.url, "/generate", patient))[0] == 200

        goodput = (await tools.get(server.url, "/cluster"))["goodput"]
        assert (goodput["requests"], goodput["met"], goodput["refused"]) == (2, 1, 1)
        counted = await goodput_metrics(server.url)
        assert (counted["met"], counted["refused"], counted["tbt_missed"]) == (1, 1, 0)
        newest = (await tools.get(server.url, "/cluster/requests"))["requests"][0]
        assert newest["forecast_tbt_s"] > 0 and newest["tbt_s"] > 0

        load = LoadSettings(server.url, concurrency=2, requests=4, input_tokens=8, output_tokens=8)
        kept = await run_load(load, targets=Targets(ttft_s=600, tbt_s=60))
        missed = await run_load(load, targets=Targets(tbt_s=1e-9))
        assert (kept["goodput"]["met"], missed["goodput"]["met"]) == (4, 0)
