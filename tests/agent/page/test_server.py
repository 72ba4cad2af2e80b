"""The owner's page: who may ask, what it shows, what it orders."""

import json
from contextlib import asynccontextmanager
from datetime import datetime

import aiohttp
import pytest

from molink_agent.daemon.given import GivenLedger, Night, Totals, night_of
from molink_agent.limits.limits import KEYS
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.owner_policy import PAUSED_FILE
from molink_agent.local_socket import SOCKET_NAME, answering
from molink_agent.page.server import PAGE_FILE, TOKEN_HEADER, PagePlace, page_served
from molink_agent.thanks.fetched import Rank, Thanks
from tests.agent.test_status_text import status

STATUS = status(name="anna", limits_problem="", shortage="")

ORDERS = ("/pause", "/resume")


@asynccontextmanager
async def page_of(data_dir, asked=None):
    """An agent's socket that answers, and the page over it; its place."""

    async def answer(question):
        if asked is not None:
            asked.append(question["command"])
        if question["command"] == "pause":
            (data_dir / PAUSED_FILE).touch()
        if question["command"] == "resume":
            (data_dir / PAUSED_FILE).unlink(missing_ok=True)
        return STATUS

    async with answering(data_dir / SOCKET_NAME, answer), page_served(data_dir):
        yield PagePlace.load(data_dir)


@asynccontextmanager
async def visitor(place, **headers):
    base = f"http://127.0.0.1:{place.port}"
    given = {TOKEN_HEADER: place.token, **headers}
    async with aiohttp.ClientSession(base, headers=given) as http:
        yield http


async def test_the_page_and_what_it_shows(tmp_path):
    night = night_of(datetime.now())
    totals = Totals(uptime_s=720, token_layers=24_000, bytes_sent=1_400_000)
    given = Night(begins=night, **totals.model_dump())
    GivenLedger(totals=totals, nights=(given,)).save(tmp_path)
    LimitsFile(tmp_path).set("upload_mbps", "10")
    async with page_of(tmp_path) as place, visitor(place) as http:
        async with http.get("/") as page:
            assert page.status == 200 and "text/html" in page.headers["Content-Type"]
            assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        async with http.get("/state") as answer:
            state = (await answer.json())["state"]
    assert state["name"] == "anna" and state["now"] and not state["paused"]
    assert "12" in state["tonight"] and state["tonight"] == state["total"]
    shown = {one["name"]: one["value"] for one in state["limits"]}
    assert list(shown) == [key.name for key in KEYS]
    assert shown["upload_mbps"] == 10 and shown["pause_on_game"] is True
    assert len(state["nights"]) == 1
    assert state["thanks"] == "" and state["ranking"] == []


async def test_who_was_helped_is_shown(tmp_path):
    counts = {"people": 3, "answers": 41, "cluster_people": 5, "cluster_answers": 60}
    rank = Rank(name="anna", token_layers=8, is_you=True)
    Thanks(since_unix_s=datetime.now().timestamp(), ranking=(rank,), **counts).save(tmp_path)
    async with page_of(tmp_path) as place, visitor(place) as http, http.get("/state") as answer:
        state = (await answer.json())["state"]
    assert "helped 3 people with 41 answers" in state["thanks"]
    assert state["ranking"] == ["1. anna (this PC): 8 tokens x layers"]


async def test_pause_and_resume(tmp_path):
    asked = []
    async with page_of(tmp_path, asked) as place, visitor(place) as http:
        for order, paused in (("/pause", True), ("/pause", True), ("/resume", False)):
            async with http.post(order, json={}) as answer:
                assert (await answer.json())["state"]["paused"] is paused
    assert [one for one in asked if one != "status"] == ["pause", "pause", "resume"]


async def test_a_limit_is_set_and_taken_back(tmp_path):
    async with page_of(tmp_path) as place, visitor(place) as http:
        async with http.post("/limits", json={"key": "threads", "value": "3"}) as answer:
            body = await answer.json()
        assert "threads = 3 is saved" in body["said"][0]
        assert LimitsFile(tmp_path).read().threads == 3
        async with http.post("/limits", json={"key": "threads", "value": "none"}) as answer:
            assert "taken back" in (await answer.json())["said"][0]
        for wrong in ({"key": "threads", "value": "many"}, {"key": "thread", "value": "1"}, {}, []):
            async with http.post("/limits", json=wrong) as answer:
                assert answer.status == 409 and (await answer.json())["error"]
    assert LimitsFile(tmp_path).read().threads is None


@pytest.mark.parametrize("path", ["/state", *ORDERS, "/limits"])
async def test_who_has_no_token_is_told_how_to_get_one(tmp_path, path):
    asked = []
    async with page_of(tmp_path, asked) as place:
        for token in ("", "x" * 32, "é"):
            async with visitor(place, **{TOKEN_HEADER: token.encode().decode("latin-1")}) as http:
                method = http.get if path == "/state" else http.post
                async with method(path) as answer:
                    assert answer.status == 401
                    assert "molink agent page" in await answer.text()
    assert not asked


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "192.168.0.9", "[::", ""])
async def test_a_name_that_was_made_to_point_here_is_refused(tmp_path, host):
    async with page_of(tmp_path) as place, visitor(place, Host=host) as http:
        for path in ("/", "/state"):
            async with http.get(path) as answer:
                assert answer.status in (400, 403)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_another_page_is_refused_though_it_knew_the_token(tmp_path, origin):
    asked = []
    async with (
        page_of(tmp_path, asked) as place,
        visitor(place, Origin=origin) as http,
        http.post("/pause", json={}) as answer,
    ):
        assert answer.status == 403
    assert not asked and not (tmp_path / PAUSED_FILE).exists()


async def test_the_address_stays_and_only_the_owner_can_read_it(tmp_path):
    async with page_of(tmp_path) as first:
        assert (tmp_path / PAGE_FILE).stat().st_mode & 0o077 == 0
    async with page_of(tmp_path) as second:
        assert first == second
        assert first.url == f"http://127.0.0.1:{first.port}/#{first.token}"


async def test_a_port_that_is_taken_is_changed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with page_of(tmp_path / "a") as first:
        taken = {"port": first.port, "token": "t"}
        (tmp_path / "b" / PAGE_FILE).write_text(json.dumps(taken))
        (tmp_path / "b" / PAGE_FILE).chmod(0o600)
        async with page_of(tmp_path / "b") as second:
            assert second.port != first.port and second.token == "t"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"port": 1, "x": 2}'])
def test_a_damaged_file_is_made_anew(tmp_path, content):
    (tmp_path / PAGE_FILE).write_text(content)
    (tmp_path / PAGE_FILE).chmod(0o600)
    place = PagePlace.load(tmp_path)
    assert place.port == 0 and len(place.token) > 20


async def test_an_agent_that_has_ended_is_a_sentence(tmp_path):
    async with page_served(tmp_path):
        place = PagePlace.load(tmp_path)
        async with visitor(place) as http, http.get("/state") as answer:
            assert answer.status == 409 and "No agent runs" in (await answer.json())["error"]
