"""`molink models`: the list, what fits on cards or a cluster, and one sentence for each mistake."""

import json
from asyncio import to_thread

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from molink.api.cluster_routes import add_catalogue_route
from molink.catalogue.asked import HomeLine, asked_pcs, card_facts
from molink.catalogue.fields import answer_fields
from molink.catalogue.fits import catalogue_rows, plans_here
from molink.checkpoint.catalogue.entries import catalogue, catalogue_entry
from molink.cli.main import cli
from molink.errors import UserError


def run(*arguments):
    return CliRunner().invoke(cli, ["models", *arguments], catch_exceptions=False).output


def refused(*arguments):
    with pytest.raises(UserError) as error:
        run(*arguments)
    return str(error.value)


def test_the_list_is_the_catalogue():
    first, head, *lines = run().splitlines()
    assert first == (
        f"{len(catalogue())} models, the newest first; 4 of them cannot be served yet, "
        "`molink models NAME` says why."
    )
    assert head.split()[:2] == ["name", "parameters"] and len(lines) == len(catalogue())
    (line,) = (line for line in lines if line.startswith("qwen3-30b-a3b"))
    assert "31B, 3.0B active" in line and "61.1 GB" in line and "apache-2.0" in line


def test_words_narrow_it():
    assert {line.split()[0] for line in run("gemma-3").splitlines()[2:]} == {
        *("gemma-3-12b", "gemma-3-27b")
    }
    assert run("glm-4.7").splitlines()[0] == "1 model, the newest first."
    assert run("llama-4-scout").startswith("Llama 4 Scout 109B-A17B cannot be served: Llama4")
    assert "No known model has these words" in run("zzz")


def test_json_has_every_field():
    told = json.loads(run("qwen3-8b", "--json"))
    (one,) = told["models"]
    assert one["hub"] == "Qwen/Qwen3-8B" and one["bytes"]["16 bits"] > one["bytes"]["4 bits"]
    assert "2026" in one["source"] and one["state"] == "served"


def test_what_fits_on_cards():
    assert "No known model has these words" in run("qwen3", "gpt", "--for", "3090")
    first, _, *lines = run("qwen3", "--for", "3090, 3060 12GB").splitlines()
    assert first.startswith("On 2 PCs (rtx3090, rtx3060; 32.4 GiB lent) ")
    assert "is the largest to read along: one user " in first and " words/s, eight users" in first
    assert lines[-1].startswith("Not on these PCs: qwen3-235b-a22b")
    assert "glm-4.7: " in run("glm-4.7", "--for", "3060").splitlines()[-1]


def test_wrong_cards_get_a_sentence_each():
    first, second = refused("--for", "3090x, potato").splitlines()
    assert "'3090x'" in first and "nearest is" in first and "'potato'" in second
    assert "--line takes" in refused("--for", "3090", "--line", "fast")
    assert "give its --url, or MOLINK_URL" in refused("--for", "cluster")


async def test_a_clusters_answer_is_shown_alike():
    pcs = asked_pcs("3090", HomeLine())
    rows = catalogue_rows([catalogue_entry("qwen3-8b")], plans_here(card_facts(pcs)))
    asked, now = [], [0.0]

    async def find():
        asked.append(now[0])
        return answer_fields([("anna\x1b[2J", 2**34)], rows)

    app = web.Application()
    add_catalogue_route(app, find, clock=lambda: now[0])
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        shown = await to_thread(run, "--for", "cluster", "--url", url)
        again = await to_thread(run, "--for", "cluster", "--url", url)
        now[0] = 61.0
        await to_thread(run, "--for", "cluster", "--url", url)
    assert shown == again and asked == [0.0, 61.0]
    assert "(anna�[2J; 16.0 GiB lent) 1 of 1 models run" in shown
    assert "qwen3-8b" in shown.splitlines()[2]


async def _one(request):
    return web.json_response({"models": 1})


async def test_something_else_is_no_coordinator():
    app = web.Application()
    app.router.add_get("/catalogue", _one)

    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        sentence = await to_thread(refused, "--for", "cluster", "--url", url)
    assert sentence.startswith("What answers at ") and "is no coordinator" in sentence
