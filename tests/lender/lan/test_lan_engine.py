"""A stage whose work has a lease: its lender is in the LAN, lost, come for again, or gone."""

import logging
import sys
import time

import pytest

from molink.engine.local_engine import LocalEngine
from molink.lender.lan.lan_lender import LanLease
from molink.lender.starting import lender_starts
from molink.stage_protocol.messages import Borrow, LoadStage, StageWork
from molink_scheduler.batch import Release
from molink_scheduler.resume import Resume
from tests.engine.tiny_models import save_tiny
from tests.lender.lan.owner import WITHIN_S, Owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lends to a LAN")

OWN, LENT = 1024, 512


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save_tiny("llama", path)
    return path


def prepared(directory, lease: LanLease) -> LocalEngine:
    """An engine whose own PC lends nothing."""
    work = StageWork((0, 2), "cpu", "float32", OWN, kv_host_tokens=LENT, lan_lease=lease)
    engine = LocalEngine(lender_of=lender_starts())
    engine.prepare(LoadStage(str(directory), work, "127.0.0.1"), lambda fraction: None)
    return engine


def tokens(engine: LocalEngine) -> int:
    return 16 * engine.report(watched=False).kv_blocks


def next_of(owner: Owner, lease: LanLease) -> tuple[str, int]:
    """What the server says next of a lease."""
    line = next(one for one in iter(owner.next_line, None) if one["lease"] == lease.lease)
    return line["state"], line["bytes"]


def until_lost(engine: LocalEngine) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not engine.report(watched=False).lender_is_lost:
        assert time.monotonic() < deadline


def test_kv_lies_where_the_lease_says_and_again_after_a_loss(directory, owner: Owner):
    lease = owner.lease()
    engine = prepared(directory, lease)
    held = owner.next_line()
    assert (held["lease"], held["state"]) == (lease.lease, "held")
    assert held["bytes"] == LENT * engine.executor.kv_token_bytes
    assert tokens(engine) == OWN + LENT
    (process,) = owner.lenders()
    process.kill()
    until_lost(engine)
    engine.rows_kept(Resume(()), {}, lambda *given: True)
    deadline = time.monotonic() + WITHIN_S
    while tokens(engine) < OWN + LENT:
        assert time.monotonic() < deadline
    (another,) = owner.lenders()
    assert another.pid != process.pid and not engine.report(watched=False).lender_is_lost
    engine.executor.lending.lender.link.close()


def test_a_lease_that_has_ended_leaves_a_stage_its_own_room(directory, owner: Owner, caplog):
    lease = owner.lease()
    engine = prepared(directory, lease)
    owner.tell(revoke=lease.lease)
    until_lost(engine)
    with caplog.at_level(logging.WARNING):
        assert engine.rows_kept(Resume(()), {}, lambda *given: True).blocks == OWN // 16
    assert tokens(engine) == OWN
    assert not engine.report(watched=False).lender_is_lost


def test_more_tokens_than_are_lent_are_said(directory, owner: Owner, caplog):
    lease = owner.lease(100_000)
    engine = prepared(directory, lease)
    lent = lease.places_bytes // (16 * engine.executor.kv_token_bytes) * 16
    assert 0 < lent < LENT and tokens(engine) == OWN + lent
    assert f"A lender holds {lent} of the {LENT} tokens" in caplog.text
    engine.executor.lending.lender.link.close()


@pytest.mark.parametrize("left", [208, 0])
def test_what_a_lender_wants_back_goes_home_once_the_ring_counts_with_less(
    directory, owner: Owner, left: int
):
    lease = owner.lease()
    engine = prepared(directory, lease)
    kv, token_bytes = engine.executor.kv, engine.executor.kv_token_bytes
    assert next_of(owner, lease) == ("held", LENT * token_bytes)
    kv.grow(1, 1000)
    engine.executor.lending.make_room(40)
    assert kv.blocks_lent >= 30
    for _ in range(2):  # It may be told again.
        engine.borrow(Borrow(left, lease))
        assert tokens(engine) == OWN + left, "it is offered less"
    assert kv.tokens_capacity == OWN + LENT, "the ring counts with all so far"
    engine.hold((OWN + left) // 16)
    assert tokens(engine) == OWN + left and kv.room == (OWN + left) // 16
    assert next_of(owner, lease) == ("held" if left else "ended", left * token_bytes)
    assert kv.tokens_used == 1008 and kv.blocks_lent <= left // 16
    assert not engine.report(watched=False).lender_is_lost
    engine.executor.release(Release(1))
    if engine.executor.lending is not None:
        engine.executor.lending.lender.link.close()
    else:
        engine.rows_kept(Resume(()), {}, lambda *given: True)
        assert not owner.lenders(), "it is not come for again"


def test_a_lease_that_is_recalled_while_its_lender_comes_is_not_taken(directory, owner: Owner):
    lease = owner.lease()
    engine = prepared(directory, owner.lease(0))
    engine.borrow(Borrow(LENT, lease))
    engine.borrow(Borrow(0, lease))
    assert next_of(owner, lease)[0] == "held"
    deadline = time.monotonic() + WITHIN_S
    while owner.lenders():
        assert tokens(engine) == OWN and time.monotonic() < deadline
    owner.until_ended(lease)


def test_a_lease_of_no_bytes_lends_nothing(directory, owner: Owner):
    assert tokens(prepared(directory, owner.lease(0))) == OWN


def test_a_lender_that_is_not_there_leaves_a_stage_its_own_room(directory, owner: Owner, caplog):
    assert tokens(prepared(directory, owner.lease(incarnation=5))) == OWN
    assert "started anew since the lease was given" in caplog.text
