"""Walks through the code name definitions that exist."""

import tomllib
from pathlib import Path

import pytest

from tools.structure import WALKS, check_walk

ROOT = Path(__file__).parents[2]

STEPS = {
    step
    for walk in tomllib.loads(WALKS.read_text())["walk"]
    for step in (*walk["steps"], *walk.get("spine", ()))
}


def test_every_step_of_the_walks_exists():
    assert len(STEPS) > 100
    check_walk(ROOT, sorted(STEPS))


def test_a_stale_step_is_named():
    with pytest.raises(SystemExit, match=r"walk is stale: molink/api/body.py:gone does not exist"):
        check_walk(ROOT, ["molink/api/body.py:gone"])
