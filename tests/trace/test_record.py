"""The command: it asks a server until it is told to stop, and leaves a whole file."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from molink.errors import UserError
from tests.trace.chrome_trace import checked
from tools.trace import __main__ as command

REQUEST = {
    "id": "r",
    "choice": 0,
    "received_unix_s": 1_700_000_001.0,
    "age_s": 2.0,
    "total_s": None,
    "attempts": [],
    "prompt_tokens": 5,
    "tokens": 0,
    "finish_reason": None,
    "error": None,
}


class Server:
    """A server with one request that runs, and one event more each time that it is asked."""

    def __init__(self):
        self.asked_after, self.is_away = [], False
        self.app = web.Application()
        self.app.router.add_get("/cluster", self.cluster)
        self.app.router.add_get("/cluster/requests", self.requests)
        self.app.router.add_get("/cluster/events", self.events)

    async def cluster(self, request):
        if self.is_away:
            raise web.HTTPServiceUnavailable
        return web.json_response({"rings": []})

    async def requests(self, request):
        return web.json_response({"requests": [REQUEST]})

    async def events(self, request):
        number = len(self.asked_after) + 1
        self.asked_after.append(request.query.get("after"))
        event = {"kind": "trouble", "node": "", "ring": None, "unix_s": 1_700_000_000.0}
        text = f"event {number}"
        return web.json_response({"events": [event | {"text": text}], "next": number})


async def test_each_event_is_asked_for_once_and_who_runs_is_told_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "PERIOD_S", 0.0)
    server, looks, path = Server(), iter([True, True, True, False]), tmp_path / "trace.json"
    async with TestServer(server.app) as running:
        await command.record(str(running.make_url("")), None, path, lambda: next(looks))
    assert server.asked_after == [None, "1", "2", "3"]
    events = checked(path)
    assert [e["name"] for e in events if e["ph"] == "i"][1:] == ["event 1", "event 2", "event 3"]
    assert [e["ts"] / 1e6 for e in events if e["name"] == "request r"] == [1.0, 3.0]


async def test_a_server_that_goes_away_leaves_a_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "PERIOD_S", 0.0)
    server, path = Server(), tmp_path / "trace.json"

    def looks():
        server.is_away = len(server.asked_after) == 2
        return True

    async with TestServer(server.app) as running:
        with pytest.raises(UserError):
            await command.record(str(running.make_url("")), None, path, looks)
    assert [e["name"] for e in checked(path) if e["ph"] == "b"] == ["request r"]


def test_a_server_that_is_not_there_is_one_sentence(tmp_path):
    out = str(tmp_path / "trace.json")
    result = CliRunner().invoke(command.main, ["http://127.0.0.1:1", "--out", out])
    assert result.exit_code == 1 and result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
