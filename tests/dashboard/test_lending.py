"""What the dashboard says of PCs that lend to others of their LAN and borrow of them."""

from datetime import UTC

from molink.dashboard.pages.details import details
from molink.dashboard.pages.lines import UNICODE, text_of
from molink.dashboard.screen.content import Page, page_rows
from tests.dashboard.scenes import cluster, history_of, look, node


def test_nodes_say_what_their_pcs_lend_and_borrow():
    figures = {"lent_bytes": 0, "held_bytes": 0, "borrowed_bytes": 0, "lendable_bytes": 0}
    anna = {"id": "a" * 16, "name": "anna", "own_bytes": 2 * 10**9, "reason": "It is too far off."}
    ben = {"id": "b" * 16, "name": "ben", "own_bytes": 0, "reason": ""}
    lends = {"lent_bytes": 10**9, "held_bytes": 5 * 10**8, "lendable_bytes": 4 * 10**9}
    pcs = [anna | figures | {"borrowed_bytes": 10**9}, ben | figures | lends]
    nodes = [node("anna", 0), node("ben", 8), node("carl", 16)]
    history = history_of(look(0, cluster(nodes=nodes) | {"cell": {"pairs": [], "pcs": pcs}}))
    found = page_rows(Page("nodes"), history, (160, 15), UNICODE, zone=UTC)
    rows = [text_of(row.line).rstrip() for row in found]
    assert rows[0].endswith("borrows 1.0 GB beside 2.0 GB of its own")
    assert rows[1].endswith("lends 1.0 GB of 4.0 GB, 500 MB of it held")
    assert "lend" not in rows[2]
    shown = [text_of(row) for row in details(history, "nodes", "a" * 16, UNICODE)]
    assert "It is too far off." in shown
    assert any(one.endswith("borrows 1.0 GB beside 2.0 GB of its own") for one in shown)
