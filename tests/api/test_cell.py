"""Cells over HTTP: who is confirmed and forgotten, by whose leave."""

import time
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from aiohttp.test_utils import TestClient, TestServer

from molink.api.access import Access
from molink.api.app import create_app
from molink.api.cell import add_cell_routes
from molink.api.keys.live_keys import run_live_keys
from molink.api.keys.store import KeyStore
from molink.coordinator.cell.orders import UnknownPcError
from molink.errors import ControlError, UserError
from molink.report.cell import CellPairReport, CellPcReport, CellReport
from molink.report.plain import from_plain
from tests.api.conftest import FakeService

PAIR = CellPairReport(("a", "b"), ("anna", "ben"), True, 0.4, None, False, "Not measured yet.")
REPORT = CellReport((PAIR,), (CellPcReport("a", "anna", 5, 4, 3, 2, 1, ""),))


@dataclass
class FakeCell:
    """Notes what was ordered by whom; may fail."""

    given: list = field(default_factory=list)
    failure: Exception | None = None

    async def confirm(self, one, other, by):
        return self._note("confirm", one, other, by)

    async def forget(self, one, other, by):
        return self._note("forget", one, other, by)

    def report(self):
        return REPORT

    def _note(self, *order):
        if self.failure is not None:
            raise self.failure
        self.given.append(order)
        return REPORT


@pytest.fixture
def cell():
    return FakeCell()


@pytest.fixture
async def client(tmp_path, cell):
    with closing(KeyStore.open(tmp_path)) as store:
        made, secret = store.create(time.time(), scope="admin")
        async with run_live_keys(tmp_path) as keys:
            app = create_app(FakeService(), Access(keys))
            add_cell_routes(app, cell)
            headers = {"Authorization": f"Bearer {secret}"}
            async with TestClient(TestServer(app), headers=headers) as one:
                one.key_id = made.key_id
                yield one


async def test_what_there_is(client):
    async with client.get("/cell") as answer:
        assert from_plain(CellReport, await answer.json()) == REPORT


@pytest.mark.parametrize("order", ["confirm", "forget"])
async def test_an_order_names_two_pcs_and_who_gave_it(client, cell, order):
    async with client.post(f"/cell/{order}", json={"pcs": ["anna", "b"]}) as answer:
        assert answer.status == 200
        assert from_plain(CellReport, await answer.json()) == REPORT
    assert cell.given == [(order, "anna", "b", client.key_id)]


@pytest.mark.parametrize(
    "body", [{}, {"pcs": "ab"}, {"pcs": ["a"]}, {"pcs": ["a", 1]}, {"pcs": ["a", "b", "c"]}]
)
async def test_what_names_no_two_pcs_is_refused(client, cell, body):
    async with client.post("/cell/confirm", json=body) as answer:
        assert answer.status == 400 and "pcs" in (await answer.json())["error"]["message"]
    assert not cell.given


@pytest.mark.parametrize(
    ("failure", "status"),
    [(UnknownPcError("Who?"), 404), (UserError("No."), 400), (ControlError("Full."), 503)],
)
async def test_failures_are_told_in_their_sentence(client, cell, failure, status):
    cell.failure = failure
    async with client.post("/cell/confirm", json={"pcs": ["a", "b"]}) as answer:
        assert answer.status == status
        assert (await answer.json())["error"]["message"] == str(failure)


async def test_who_has_no_key_neither_sees_nor_orders(client, cell):
    headers = {"Authorization": "Bearer "}
    async with client.post("/cell/forget", json={"pcs": ["a", "b"]}, headers=headers) as answer:
        assert answer.status == 401
    async with client.get("/cell", headers=headers) as answer:
        assert answer.status == 401
    assert not cell.given
