"""The files that a prompt, an activation and an assignment pass become no more.

They are derived from the imports (`tools/structure/flows.py`); `budgets.toml` has their numbers.
"""

import ast

import pytest

from tools.structure.budgets import beside_budget, budgets
from tools.structure.flows import FLOWS, Flow, flows, home_of, in_the_flow, modules_of, names_of

SOURCES = {
    "a.frames": "class Frame: ...\ndef read(): ...\n",
    "a": "from a.frames import Frame\n",
    "b.sends": "from a.frames import Frame as Sent\n",
    "b.reads": "def later():\n    from a.frames import read\n",
    "b.by_face": "from a import Frame\n",
    "b.other": "from elsewhere import Frame\n",
    "b.hands_on": "from b.sends import send\n",
}
NAMES = {module: names_of(module, ast.parse(source)) for module, source in SOURCES.items()}


def test_flows_are_within_their_budgets():
    assert not list(beside_budget(flows(), budgets()["flows"], "files", slack=1))


def test_a_flow_that_grows_is_named():
    (told,) = beside_budget({"prompt": 34, "activation": 14}, {"prompt": 33, "activation": 14})
    assert told.startswith("prompt has 34")


def test_a_file_is_in_the_flow_of_a_type_that_it_defines_or_imports():
    assert sorted(in_the_flow(("a.frames.Frame",), NAMES)) == [
        "a",
        "a.frames",
        "b.by_face",
        "b.sends",
    ]
    assert sorted(in_the_flow(("a.frames.read",), NAMES)) == ["a.frames", "b.reads"]


def test_a_name_is_followed_to_where_it_is_defined():
    assert home_of("Frame", "b.by_face", NAMES) == ("a.frames", "Frame")
    assert home_of("Sent", "b.sends", NAMES) == ("a.frames", "Frame")
    assert home_of("Frame", "b.other", NAMES) is None


@pytest.mark.parametrize("name", FLOWS)
def test_each_type_is_in_its_flow(name):
    """An end from which a type cannot be reached, or a type of a former name, would go unseen."""
    homes = {one.rpartition(".")[0] for one in FLOWS[name].types}
    assert homes <= set(modules_of(FLOWS[name]))


def test_a_type_that_is_not_there_is_named():
    with pytest.raises(LookupError, match=r"molink\.wire\.frames does not define Batch"):
        modules_of(Flow(("molink.stage.loop",), ("molink.wire.frames.Batch",)))
