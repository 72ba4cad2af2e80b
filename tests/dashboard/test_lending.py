"""What the dashboard says of PCs that lend to others and borrow, and of stages' KV elsewhere."""

from datetime import UTC

import pytest

from molink.dashboard.pages.details import details
from molink.dashboard.pages.lines import UNICODE, text_of
from molink.dashboard.screen.content import Page, page_rows
from tests.dashboard.scenes import NAMES, cluster, history_of, look, node, stage


def test_nodes_say_what_their_pcs_lend_and_borrow():
    figures = {"lent_bytes": 0, "held_bytes": 0, "borrowed_bytes": 0, "lendable_bytes": 0}
    anna = {"id": "a" * 16, "name": "anna", "own_bytes": 2 * 10**9, "reason": "It is too far off."}
    ben = {"id": "b" * 16, "name": "ben", "own_bytes": 0, "reason": ""}
    lends = {"lent_bytes": 10**9, "held_bytes": 5 * 10**8, "lendable_bytes": 4 * 10**9}
    card = {"id": f"{'b' * 16}/cuda:1", "name": "ben (cuda:1)", "own_bytes": 0, "reason": ""}
    pcs = [anna | figures | {"borrowed_bytes": 10**9}, ben | figures | lends]
    pcs.append(card | figures | {"lendable_bytes": 8 * 10**9})
    nodes = [node("anna", 0), node("ben", 8), node("carl", 16)]
    history = history_of(look(0, cluster(nodes=nodes) | {"cell": {"pairs": [], "pcs": pcs}}))
    found = page_rows(Page("nodes"), history, (160, 15), UNICODE, zone=UTC)
    rows = [text_of(row.line).rstrip() for row in found]
    assert rows[0].endswith("borrows 1.0 GB beside 2.0 GB of its own")
    both = "lends 1.0 GB of 4.0 GB, 500 MB of it held, lends 0 B of 8.0 GB on cuda:1"
    assert rows[1].endswith(both)
    assert "lend" not in rows[2]
    shown = [text_of(row) for row in details(history, "nodes", "a" * 16, UNICODE)]
    assert "It is too far off." in shown
    assert any(one.endswith("borrows 1.0 GB beside 2.0 GB of its own") for one in shown)


def test_a_stage_says_what_is_its_own_and_what_is_borrowed():
    lender = {"own_tokens": 5000, "borrowed_tokens": 31_000, "held_tokens": 1600}
    stages = [stage(name, 8 * at) for at, name in enumerate(NAMES)]
    stages[0] |= {"lender": lender | {"step_wait_s": 0.0012}}
    history = history_of(look(0, cluster(stages=stages)))
    shown = [text_of(row).strip() for row in details(history, "nodes", "a" * 16, UNICODE)]
    (said,) = [row for row in shown if row.startswith("lender ")]
    assert said.endswith(
        "5,000 tokens of its own, 31,000 borrowed, 1,600 of them held, a step waits 1.2 ms"
    )
    stages[0]["lender"] |= {"lender": f"{'b' * 16}/cuda:1"}
    history = history_of(look(0, cluster(stages=stages)))
    card = [text_of(row).strip() for row in details(history, "nodes", "a" * 16, UNICODE)]
    assert any("1,600 of them held on a card (cuda:1), a step" in row for row in card)
    others = [text_of(row) for row in details(history, "nodes", "b" * 16, UNICODE)]
    assert not any("borrowed" in row for row in others)
    assert not any("cut prompts" in row for row in (*shown, *others)), "nobody would fold any"
    for width in (80, 140):
        rows = [text_of(r.line) for r in page_rows(Page("ring"), history, (width, 20), UNICODE)]
        assert sum("31k borrowed" in row for row in rows) == (width == 140)
        assert max(map(len, rows)) <= width


@pytest.mark.parametrize(
    ("folds", "said"),
    [
        ((5, 512, 512), "5 blocks of those that keep all lie in one"),
        ((5, 512, 1), f"free no memory, as {NAMES[2]} folds no blocks"),
        ((1, 512, 512), f"free no memory, as {NAMES[0]} folds no blocks"),
    ],
)
def test_a_stage_says_what_cut_prompts_free_or_who_of_its_ring_folds_nothing(folds, said):
    stages = [stage(name, 8 * at) | {"folds": folds[at]} for at, name in enumerate(NAMES)]
    history = history_of(look(0, cluster(stages=stages)))
    shown = [text_of(row).strip() for row in details(history, "nodes", "a" * 16, UNICODE)]
    (row,) = [row for row in shown if row.startswith("cut prompts")]
    assert row.endswith(said)
