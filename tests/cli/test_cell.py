"""`molink cell`: what it asks of a server, and what it shows."""

import json
import time
from contextlib import closing

import pytest
from click.testing import CliRunner

from molink.api import create_app
from molink.api.access import Access
from molink.api.cell import add_cell_routes
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore
from molink.cli.main import cli
from molink.coordinator.cell.orders import UnknownPcError
from molink.errors import UserError
from tests.api.test_cell import FakeCell
from tests.scripted_server import CountingService, running


@pytest.fixture
def server(tmp_path):
    """What is ordered, and a function that types `molink cell` with an admin key."""
    with closing(KeyStore.open(tmp_path)) as store, closing(KeyStore.open(tmp_path)) as read:
        _, secret = store.create(time.time(), scope="admin")
        app, cell = create_app(CountingService(), Access(LiveKeys(read))), FakeCell()
        add_cell_routes(app, cell)
        with running(app) as url:

            def typed(*words: str) -> str:
                asked = ("cell", *words, "--url", url, "--key", secret)
                return CliRunner().invoke(cli, asked, catch_exceptions=False).output

            yield cell, typed


def test_the_list_tells_of_pairs_and_of_bytes(server):
    _, typed = server
    lines = [line.split() for line in typed("list").splitlines() if line]
    assert lines[1] == [
        "anna",
        "and",
        "ben",
        "yes",
        "0.40",
        "ms",
        "-",
        "no",
        "Not",
        "measured",
        "yet.",
    ]
    assert lines[2] == ["pc", "own", "lent", "held", "borrowed", "lends", "reason"]
    assert lines[3][0] == "anna"
    assert json.loads(typed("list", "--json"))["pcs"][0]["borrowed_bytes"] == 2


@pytest.mark.parametrize("order", ["confirm", "forget"])
def test_an_order_names_two_pcs_and_shows_what_is_so(server, order):
    cell, typed = server
    assert "anna and ben" in typed(order, "anna", "b")
    assert [given[:3] for given in cell.given] == [(order, "anna", "b")]


def test_a_refusal_is_the_server_s_sentence(server):
    cell, typed = server
    cell.failure = UnknownPcError("No PC here has the id or name 'x'.")
    with pytest.raises(UserError, match="No PC here has the id or name 'x'"):
        typed("confirm", "x", "anna")
