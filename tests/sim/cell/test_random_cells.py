"""Random cells with old views, lost and doubled messages: sums, quotas, cycles, room."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.cell.actions import Swap
from molink_scheduler.cell.ledger import CellLedger
from molink_scheduler.cell.quotas import Quotas
from molink_sim.cell.world import CellNetwork
from tests.sim.cell.random_cell import WHOLE, RandomCell
from tests.sweeps import swept

CYCLE_SHARE_MAX = 0.002
USABLE_MIN = 0.95


class CheckedLedger(CellLedger):
    """A ledger whose swaps are held against its book: no debt may rise by one."""

    def handle(self, event, now):
        before = {lease.number: lease.blocks for lease in self.book}
        actions = super().handle(event, now)
        for swap in (one for one in actions if isinstance(one, Swap)):
            assert swap.recalls
            for recall in swap.recalls:
                assert 0 <= recall.blocks_left < before[recall.lease]
        return actions


def played(seed: int, steps: int, **options) -> RandomCell:
    cell = RandomCell(seed, **options)
    cell.world.ledger = CheckedLedger(quotas=cell.quotas)
    for _ in range(steps):
        cell.step()
    cell.calm()
    cell.check_calm()
    return cell


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.sampled_from((WHOLE, Quotas())))
@settings(max_examples=10, deadline=None)
def test_sums_and_quotas_are_kept_and_no_cycle_is_left(seed, devices, quotas):
    played(seed, 200, devices=devices, quotas=quotas)


@pytest.mark.parametrize("seeds", swept([range(2), range(50)], range(2)))
def test_cycles_are_rare(seeds):
    """A hundred thousand steps in all by `make sweeps`. Single cells have more: a swap takes as
    long as its messages, which here is up to twenty steps each way."""
    cells = [played(seed, 2000, devices=3 + seed % 4) for seed in seeds]
    with_cycle = sum(cell.steps_with_cycle for cell in cells)
    assert with_cycle <= CYCLE_SHARE_MAX * sum(cell.steps for cell in cells)


@pytest.mark.parametrize("seed", range(12))
def test_what_lenders_have_free_can_be_used(seed):
    """One device wants all that there is, after a rough time."""
    cell = played(seed, 150, devices=3 + seed % 4, comes_and_goes=False)
    devices = cell.world.devices.by_name
    for device in devices.values():
        device.need_blocks = 0
    cell.world.beats(10)
    assert not cell.world.debts()
    wanting = devices["device 0"]
    pool = sum(
        one.quota_bytes(cell.world.now) // wanting.facts.block_bytes
        for one in devices.values()
        if one is not wanting
    )
    wanting.need_blocks = wanting.home_blocks + pool
    cell.world.beats(40)
    assert wanting.owed_blocks >= USABLE_MIN * pool > 0


@pytest.mark.parametrize("seed", (0, 3))
def test_without_recalls_first_cycles_arise_and_are_cleared(seed, monkeypatch):
    """What recalls prevent: the fallback alone keeps the book free of cycles, too."""
    recalled = CellLedger._recalled

    def none_for_wishes(self, name, wanted_bytes, now):
        is_wish = wanted_bytes > 0 and self.lent_bytes(name) <= self.quota_bytes(name, now)
        return ([], 0) if is_wish else recalled(self, name, wanted_bytes, now)

    monkeypatch.setattr(CellLedger, "_recalled", none_for_wishes)
    cell = RandomCell(seed, comes_and_goes=False)
    cell.world.ledger = CheckedLedger(quotas=cell.quotas)
    cell.world.network = CellNetwork()
    for _ in range(400):
        cell.step()
    assert cell.world.actions["Swap"] > 0
    assert cell.steps_with_cycle == 0
    cell.calm()
    cell.check_calm()
