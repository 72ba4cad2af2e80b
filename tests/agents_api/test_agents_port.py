"""The port for agents tells a PC what is the PC's, and keeps the operator's trouble at home."""

import logging

from aiohttp import test_utils, web

from molink.agents_api.app import (
    ECHO_BYTES_MAX,
    ECHO_PATH,
    JOIN_PATH,
    THANKS_PATH,
    add_join_route,
    create_agents_app,
)
from molink.errors import StorageError
from molink.report.thanks import RankReport, ThanksReport
from tests.golden.values_api import Shelf


class FullDisk:
    """Service whose registry cannot be written."""

    async def join(self, sealed):
        raise StorageError("/srv/molink/registry.db cannot be used (disk is full)")


async def test_trouble_of_the_coordinator_is_not_the_volunteer_s(caplog):
    app = web.Application()
    add_join_route(app, FullDisk())
    caplog.set_level(logging.WARNING)
    async with test_utils.TestClient(test_utils.TestServer(app)) as client:
        for _ in range(3):
            response = await client.post(JOIN_PATH, data=b"sealed")
            said = (await response.json())["error"]["message"]
            assert response.status == 503 and "/srv" not in said and "asked again" in said
    assert [one.getMessage().count("/srv/molink") for one in caplog.records] == [1, 1]


async def test_a_doctor_gets_back_what_it_sends_and_no_more():
    app = create_agents_app(FullDisk(), Shelf(False), {}.get, lambda pc: {})
    async with test_utils.TestClient(test_utils.TestServer(app)) as client:
        full = await client.post(ECHO_PATH, data=bytes(ECHO_BYTES_MAX))
        assert full.status == 200 and await full.read() == bytes(ECHO_BYTES_MAX)
        assert (await client.post(ECHO_PATH, data=bytes(ECHO_BYTES_MAX + 1))).status == 413


async def test_a_pc_asks_whom_it_has_helped_and_may_agree_to_be_named():
    asked = []

    def thanks_for(pc, agrees):
        asked.append((pc, agrees))
        return ThanksReport(0.0, 3, 41, 5, 60, (RankReport("anna", 8, is_you=True),))

    app = create_agents_app(
        FullDisk(), Shelf(False), {"token": "pc"}.get, lambda pc: {}, thanks_for=thanks_for
    )
    mine = {"Authorization": "Bearer token"}
    async with test_utils.TestClient(test_utils.TestServer(app)) as client:
        assert (await client.get(THANKS_PATH)).status == 401
        told = await (await client.get(f"{THANKS_PATH}?named=1", headers=mine)).json()
        assert (told["people"], told["ranking"][0]["name"]) == (3, "anna")
        await client.get(THANKS_PATH, headers=mine)
    assert asked == [("pc", True), ("pc", False)]
