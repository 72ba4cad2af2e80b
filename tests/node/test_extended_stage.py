"""A stage that goes on with more layers, in the process that it has."""

from dataclasses import replace

import pytest

from molink.control.messages.assignment import Assignment, Extend
from molink.control.messages.payloads import AssignedDrafter
from molink.errors import StageError
from molink.node.added_work import added_work
from tests.coordinator.examples import WORK
from tests.node.test_stage_manager import GOES_ON, JOINED, LOAD, hosted

OWN = replace(WORK, layers=(2, 4))
MORE = replace(OWN, layers=(2, 7), kv_tokens=50)


def given(assignment, revision, work, epoch=6):
    command = assignment.command.model_copy(update={"work": work})
    return Assignment(revision=revision, epoch=epoch, command=command)


EXTENDED = Assignment(revision=3, epoch=6, command=Extend(work=MORE))


@pytest.mark.parametrize(("wanted", "added"), [((2, 7), (4, 7)), ((0, 4), (0, 2))])
def test_what_is_added_is_on_one_side_of_what_is_held(wanted, added):
    work = replace(OWN, layers=wanted, kv_tokens=50)
    assert added_work(OWN, work) == replace(work, layers=added)


def test_a_model_that_drafts_is_not_what_is_held():
    """It may come with the first layer, or not as it was thought before."""
    source = WORK.weights
    drafter = AssignedDrafter(weights=source, layers=2, kv_tokens=16, refused="too late")
    work = replace(OWN, layers=(0, 4), kv_tokens=50, drafter=drafter)
    assert added_work(OWN, work) == replace(work, layers=(0, 2))


@pytest.mark.parametrize("changes", [{"layers": (0, 7)}, {"layers": (4, 7)}, {"dtype": "bfloat16"}])
def test_what_is_held_does_not_change(changes):
    with pytest.raises(StageError, match="layers 2 to 3"):
        added_work(OWN, replace(MORE, **changes))


async def test_it_loads_what_was_lost_and_keeps_its_process():
    async with hosted() as h:
        await h.manager.assign(given(LOAD, 1, OWN))
        await h.until("loaded")
        await h.manager.assign(given(JOINED, 2, OWN))
        await h.until("ready")
        (handle,) = h.handles
        h.facts.clear()
        await h.manager.assign(EXTENDED)
        assert (await h.until("loaded")).revision == 3
        assert (h.more_asked, handle.extended, handle.held) == ([(4, 7)], [(4, 7)], 1)
        h.facts.clear()
        await h.manager.assign(given(EXTENDED, 4, MORE, epoch=7))
        assert (await h.until("loaded")).revision == 4
        assert handle.extended == [(4, 7)], "what it holds is not loaded again"
        await h.manager.assign(given(GOES_ON, 5, MORE, epoch=7))
        assert (await h.until("ready")).revision == 5
        assert h.handles == [handle] and not handle.child.ended.is_set()


async def test_one_that_has_ended_takes_no_layers():
    async with hosted() as h:
        await h.manager.assign(EXTENDED)
        await h.until("failed")
        assert not h.handles and not h.more_asked
