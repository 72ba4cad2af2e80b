"""Two rings of real processes: one computes prompts, the other answers; no token differs."""

import asyncio
from random import Random

import psutil
import pytest

from tests.end_to_end.clusters import cluster
from tests.end_to_end.conftest import eventually, serving
from tests.end_to_end.forked.asking import fork_of

MAX_TOKENS = 8
BODY = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
RING = ("--roles", "prefill,decode", "--nodes", "2", "--dtype", "float32", "--span-tokens", "32")
LENGTHS = (20, 63, 64, 97, 160, 333, 640, 1000)


@pytest.fixture(scope="module")
def model(tools, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "longer"
    return tools.save_tiny_llama(folder, max_position_embeddings=4096)


def prompt_of(tokens, seed=0):
    random = Random(1000 * seed + tokens)
    return [random.randrange(3, 97) for _ in range(tokens)]


def asking(prompt, **fields):
    return {"prompt_token_ids": prompt, **BODY, **fields}


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def both_rings(tools, url):
    """The rings by their roles, once both serve."""

    async def two():
        rings = (await tools.get(url, "/cluster"))["rings"]
        return rings if len(rings) == 2 else None

    rings = await eventually(two, within_s=120)
    return {one["stages"][0]["node"].split()[0]: one for one in rings}


def killed(stage):
    psutil.Process(fork_of(stage["pid"])).kill()


def ring_numbers(requests):
    return {one["attempts"][-1]["ring"] for one in requests}


async def test_each_answer_is_that_of_one_ring_alone(tools, model):
    with serving(str(model), *RING, "--kv-tokens", "4096") as server:
        rings = await both_rings(tools, server.url)
        prompts = [prompt_of(tokens) for tokens in LENGTHS]
        expected = tools.greedy_reference(model, prompts, MAX_TOKENS)

        _, alone = await tools.post(server.url, "/generate", asking(prompts[-1]))
        assert alone["token_ids"] == expected[-1]
        assert cached(alone) == 16 * ((len(prompts[-1]) - 1) // 16), "all but the last block"

        told = await asyncio.gather(
            *(tools.post(server.url, "/generate", asking(one)) for one in prompts[:-1])
        )
        assert [status for status, _ in told] == [200] * len(told)
        assert [answer["token_ids"] for _, answer in told] == expected[:-1]
        assert [cached(answer) for _, answer in told][:2] == [0, 0], "too short to hand over"

        turn = [*prompts[-1], *alone["token_ids"], *prompt_of(200, 7)]
        drawn = asking(turn, temperature=0.9, seed=4)
        _, answer = await tools.post(server.url, "/generate", drawn)
        _, other = await tools.post(server.url, "/generate", {**drawn, "cache_salt": "other"})
        assert answer["token_ids"] == other["token_ids"]
        assert min(cached(answer), cached(other)) >= 16 * ((len(turn) - 1) // 16)

        requests = (await tools.get(server.url, "/cluster/requests"))["requests"]
        assert ring_numbers(requests) == {rings["decode"]["ring"]}


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_pair_that_is_lost_in_the_middle_loses_no_token(tools, model, stage):
    """The ring that answers computes what was not handed over, and the pair comes back."""
    prompt, later = prompt_of(2400, 3), prompt_of(640, 4)
    expected = tools.greedy_reference(model, [prompt, later], MAX_TOKENS)
    slow = ("--link", "1:10", "--wire", "raw", "--kv-tokens", "8192")
    with serving(str(model), *RING, *slow) as server:
        rings = await both_rings(tools, server.url)
        asked = asyncio.create_task(tools.post(server.url, "/generate", asking(prompt)))
        await asyncio.sleep(1.0)
        assert not asked.done(), "the prompt takes longer than that"
        killed(rings["prefill"]["stages"][stage])
        status, answer = await asked
        assert (status, answer["token_ids"]) == (200, expected[0])
        assert cached(answer) < len(prompt) - 16

        async def is_handed_over():
            body = asking(later, cache_salt=str(Random().random()))
            _, told = await tools.post(server.url, "/generate", body)
            assert told["token_ids"] == expected[1]
            return cached(told) == 624

        assert await eventually(is_handed_over, within_s=120)


async def test_a_ring_that_answers_goes_on_when_a_stage_of_it_is_lost(tools, model):
    prompt = prompt_of(1200, 5)
    (expected,) = tools.greedy_reference(model, [prompt], 96)
    with serving(str(model), *RING, "--link", "20:10", "--kv-tokens", "8192") as server:
        rings = await both_rings(tools, server.url)
        body = asking(prompt, max_tokens=96)
        asked = asyncio.create_task(tools.post(server.url, "/generate", body))

        async def decodes():
            requests = (await tools.get(server.url, "/cluster/requests"))["requests"]
            return any(one["tokens"] > 8 for one in requests)

        await eventually(decodes, within_s=180)
        killed(rings["decode"]["stages"][1])
        status, answer = await asked
        assert (status, answer["token_ids"]) == (200, expected)


UP = ("--roles", "prefill,decode", "--min-nodes", "2", "--wait", "--dtype", "float32")


async def told_of_roles(tools, made, *words):
    """Wait until two rings serve, and what is told of their roles has these words; none: they keep
    to them."""

    async def is_told():
        report = await tools.get(made.url, "/cluster")
        told = [one for one in report["trouble"] if "--roles" in one or "computes no" in one]
        fits = all(word in " ".join(told) for word in words) and bool(told) == bool(words)
        return len(report["rings"]) == 2 and fits

    await eventually(is_told, within_s=180)


async def handed_over(tools, made, prompt, expected):
    """Tokens of a prompt that the ring which answers did not compute."""
    _, answer = await tools.post(made.url, "/generate", asking(prompt))
    assert answer["token_ids"] == expected
    return cached(answer)


async def test_rings_of_two_pcs_hand_over_while_the_operator_confirms_them(tools, model, tmp_path):
    prompts = [prompt_of(640, seed) for seed in (1, 2)]
    first, other = tools.greedy_reference(model, prompts, MAX_TOKENS)
    with cluster(tmp_path, model, *UP) as made:
        for name in ("anna", "ben"):
            made.join(name, "--memory-gb", "1", "--threads", "1", known_steps=True)
        made.up.line("ready")
        await told_of_roles(tools, made, "not confirmed as a pair of a cell")
        assert made.operator("cell", "confirm", "anna", "ben", "--url", made.url).returncode == 0
        await told_of_roles(tools, made)
        assert await handed_over(tools, made, prompts[0], first) == 624
        requests = (await tools.get(made.url, "/cluster/requests"))["requests"]
        assert len(ring_numbers(requests)) == 1
        assert made.operator("cell", "forget", "anna", "ben", "--url", made.url).returncode == 0
        await told_of_roles(tools, made, "not confirmed as a pair of a cell")
        assert await handed_over(tools, made, prompts[1], other) == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--roles", "prefill"), "leaves no ring that answers"),
        (("--roles", "decode"), "none that computes prompts"),
        (("--roles", "prefill,decoder"), "got 'decoder'"),
        (("--roles", "prefill,decode", "--no-prefix-cache"), "--no-prefix-cache caches nothing"),
        (("--roles", "prefill,decode", "--standby", "1"), "--roles has several"),
        (("--roles", "prefill,decode", "--nodes", "40"), "at most 64"),
    ],
)
def test_roles_that_cannot_be_are_refused_in_a_sentence(tools, options, why):
    told = tools.run_molink("serve", "demo", *options)
    assert told.returncode == 2 and why in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1
