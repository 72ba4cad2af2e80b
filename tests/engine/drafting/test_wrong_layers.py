"""What the comparison with the library must see: drafting layers that are each wrong in one way."""

from random import Random

import pytest
import torch

from molink.engine.drafting import tail_layer
from molink.engine.drafting.tail_layer import TailLayer
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.ragged_batch import RaggedSpan
from molink.engine.sampling.sampler import Sampling
from molink_scheduler.batch import Release
from tests.engine.drafting.tail_checkpoints import LAYERS, save_with_layer
from tests.engine.drafting.tail_ring import TailRing, drafting_stages
from tests.engine.drafting.test_tail_layer import requests_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("glm4_moe")
    oracle = save_with_layer("glm4_moe", directory)
    return oracle, drafting_stages(directory, (0, LAYERS))


def play(made) -> None:
    oracle, stages = made
    for request_id in range(3):
        stages[0].release(Release(request_id))
    ring = TailRing(stages, oracle, Random(2))
    ring.play(requests_of(ring.random, 3), 10)


class OthersRows(dict):
    """Pending rows, each with the hidden state of the one that was kept before it."""

    before = None

    def __setitem__(self, request_id, pending):
        before, self.before = self.before, pending.hidden_1D
        other = pending if before is None else pending._replace(hidden_1D=before)
        super().__setitem__(request_id, other)


class NoRows(dict):
    """No row is ever pending."""

    def __setitem__(self, request_id, pending):
        pass


def one_further(stage, request_id, row, position, rows):
    """Span that stands one position too far."""
    table = [*stage.kv.table(request_id), 0]
    return RaggedSpan(row, rows, position + 1, position + 1 + rows, table)


def draws_before(histories, known, *size):
    """Draws with the number of the token before."""
    return Sampling(histories, [one - 1 for one in known], *size)


class RowsOfDraftsStay:
    """Writes of the layer, of which those over a row of a draft do nothing."""

    def __init__(self) -> None:
        self.drafted, self.write, self.rows = set[int](), KvPool.write, TailLayer._rows
        self.is_draft = False

    def layer_rows(self, layer, *given):
        self.is_draft = len(given) < 5
        return self.rows(layer, *given)

    def kept(self, pool, number, slots_T, keys, values):
        if number == LAYERS and self.is_draft:
            self.drafted |= set(slots_T.tolist())
        elif number == LAYERS:
            free = torch.tensor([slot not in self.drafted for slot in slots_T.tolist()])
            slots_T, keys, values = slots_T[free], keys[free], values[free]
        return self.write(pool, number, slots_T, keys, values)


def test_the_right_layer_passes(made):
    play(made)


@pytest.mark.parametrize("pending", [OthersRows, NoRows])
def test_the_pending_row_of_another_request_or_none(made, pending, monkeypatch):
    monkeypatch.setattr(made[1][0].drafter, "_pending", pending())
    with pytest.raises(AssertionError):
        play(made)


@pytest.mark.parametrize("name, wrong", [("_span", one_further), ("Sampling", draws_before)])
def test_a_position_off_by_one(made, name, wrong, monkeypatch):
    monkeypatch.setattr(tail_layer, name, wrong)
    with pytest.raises(AssertionError):
        play(made)


def test_the_hidden_state_on_the_other_side_of_the_norm(made, monkeypatch):
    drafter = made[1][0].drafter
    monkeypatch.setattr(drafter, "is_fed_behind_norm", not drafter.is_fed_behind_norm)
    with pytest.raises(AssertionError):
        play(made)


def test_rows_of_drafts_that_are_not_overwritten(made, monkeypatch):
    wrong = RowsOfDraftsStay()
    monkeypatch.setattr(TailLayer, "_rows", lambda self, *given: wrong.layer_rows(self, *given))
    monkeypatch.setattr(KvPool, "write", lambda self, *given: wrong.kept(self, *given))
    with pytest.raises(AssertionError):
        play(made)
