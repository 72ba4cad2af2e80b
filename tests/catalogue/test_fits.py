"""What fits on given cards: the planner's own plans, in the best format, the most useful first."""

import json

import pytest

from molink.catalogue.asked import HomeLine, asked_pcs, card_facts
from molink.catalogue.fields import answer_fields
from molink.catalogue.fits import catalogue_rows, plans_here, question_of
from molink.checkpoint.catalogue.entries import catalogue, catalogue_entry
from molink_scheduler.placement import Goal, loaded_rings


def rows(cards, *names):
    pcs = asked_pcs(cards, HomeLine())
    entries = [catalogue_entry(name) for name in names] or catalogue()
    return catalogue_rows(entries, plans_here(card_facts(pcs)))


def test_the_plan_is_that_of_molink_plan():
    pcs, entry = asked_pcs("3090, 3060", HomeLine()), catalogue_entry("qwen3-14b")
    (row,) = rows("3090, 3060", "qwen3-14b")
    plan = pcs.plan(entry.planned(row.fit.form), Goal())
    assert row.fit.users == plan.users
    assert row.fit.tokens_per_s_alone == 1 / min(ring.tpot_alone_s for ring in plan.rings)
    assert row.fit.fetched_bytes == sum(
        stage.fetched_bytes for ring in plan.rings for stage in ring.stages
    )


def test_the_most_exact_format_that_is_fluent():
    forms = {row.entry.name: row.fit.form for row in rows("3090", "qwen3-8b", "qwen3-32b")}
    assert forms == {"qwen3-8b": "16 bits", "qwen3-32b": "4 bits"}


def test_larger_models_first_then_slow_ones_then_those_that_do_not_fit():
    found = rows("4060 laptop", "smollm3-3b", "qwen3-4b-2507", "llama-4-scout", "glm-4.7")
    assert [row.entry.name for row in found[:2]] == ["qwen3-4b-2507", "smollm3-3b"]
    assert [row.fit for row in found[2:]] == [None, None]
    why = {row.entry.name: row.why for row in found}
    assert "cannot be cut into stages" in why["llama-4-scout"] and "layers" in why["glm-4.7"]


def test_no_pc_more_makes_anything_unfit():
    """A larger set of PCs runs whatever a smaller one runs."""
    small, large = (
        {row.entry.name for row in rows(cards, *NAMES) if row.fit}
        for cards in ("3060", "3060, 3090")
    )
    assert small < large


NAMES = ("phi-4-mini", "qwen3-8b", "gemma-3-27b", "gpt-oss-20b", "qwen3-32b", "glm-4.7")


@pytest.mark.parametrize("cards", ["3060", "3090, 3060, 5070"])
def test_users_share_what_there_is(cards):
    """A user among eight gets no more than alone, all of them no less than one."""
    for row in rows(cards, *NAMES):
        if row.fit and row.fit.tokens_per_s_each:
            assert row.fit.tokens_per_s_each <= 1.001 * row.fit.tokens_per_s_alone
            assert 8 * row.fit.tokens_per_s_each >= 0.5 * row.fit.tokens_per_s_alone


def test_users_spread_over_rings_and_no_further_than_memory():
    facts = card_facts(asked_pcs("3090, 4090", HomeLine()))
    question = question_of(catalogue_entry("qwen3-8b"), "16 bits", facts)
    plan, asked = question.answer(), (question.model, question.nodes, question.network)
    assert len(plan.rings) == 2
    loads = [ring.users for ring in loaded_rings(plan, *asked, 8)]
    assert sum(loads) == 8 and len(loads) == 2
    most = sum(ring.users_memory for ring in plan.rings)
    assert sum(ring.users for ring in loaded_rings(plan, *asked, most)) == most
    assert loaded_rings(plan, *asked, most + 1) is None


def test_all_of_it_is_json():
    found = rows("3060", "phi-4-mini", "glm-4.7", "llama-4-scout")
    told = json.loads(json.dumps(answer_fields([("anna", 2**30)], found)))
    assert told["pcs"] == [{"name": "anna", "memory_bytes": 2**30}]
    assert [one["state"] for one in told["models"]] == ["fits", "too_large", "refused"]
    assert told["models"][0]["fit"]["form"] == "16 bits"
    assert told["models"][2]["bytes"] == {}
