"""What nodes have given, over starts of the coordinator and while it cannot be written down."""

import asyncio
import sqlite3
from threading import current_thread
from types import SimpleNamespace

import pytest

from molink.control.messages.payloads import NodeHealth, NodeState, StageFact
from molink.coordinator.nodes.node import Contribution
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.reports import ledger as ledger_module
from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.reports.ledger import Accounting, Ledger
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.serving_ring import ServingRing
from molink.errors import UserError
from molink.serving.model_card import ModelCard
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink.tasks import cancel
from molink_scheduler.link.facts import LinkReport
from tests.control.assignments import loading
from tests.coordinator.examples import HERE, PROFILE, WORK


def test_sums_outlive_the_coordinator(tmp_path):
    for _ in range(2):
        ledger = Ledger.open(tmp_path)
        with ledger.together():
            ledger.add("a", "anna", Contribution(10.0, 7, 100))
            ledger.add("a", "anna", Contribution(1.0, 1, 1))
            ledger.add("b", "ben", Contribution(0.5, 0, 0))
        ledger.close()
    ledger = Ledger.open(tmp_path)
    assert ledger.all() == {"a": Contribution(22.0, 16, 202), "b": Contribution(1.0, 0, 0)}
    assert ledger.of(["a", "b", "nobody"]) == Contribution(23.0, 16, 202)
    ledger.close()


def test_only_its_owner_reads_it(tmp_path):
    ledger = Ledger.open(tmp_path)
    with ledger.together():
        ledger.add("a", "anna", Contribution(10.0, 7, 100))
        assert {file.stat().st_mode & 0o077 for file in tmp_path.iterdir()} == {0}
    ledger.close()


def test_what_was_added_before_a_failure_is_not_kept(tmp_path):
    ledger = Ledger.open(tmp_path)
    with pytest.raises(ZeroDivisionError), ledger.together():
        ledger.add("a", "anna", Contribution(1.0))
        raise ZeroDivisionError
    assert ledger.all() == {}
    ledger.close()


def test_a_full_disk_is_named_and_stands_in_nobody_s_way_afterwards(tmp_path):
    ledger = Ledger.open(tmp_path)
    ledger._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError, match="full"), ledger.together():
        ledger.add("a", "a" * 10**5, Contribution(1.0))
    ledger._db.execute("PRAGMA max_page_count = 1000")
    with ledger.together():
        ledger.add("a", "anna", Contribution(1.0))
    assert ledger.all() == {"a": Contribution(1.0)}
    ledger.close()


@pytest.fixture
def accounting(tmp_path):
    """Of one node, that serves."""
    book, ledger = NodeBook(), Ledger.open(tmp_path)
    book.take("a", HERE, 0.0)
    book.node("a").assignment = loading(WORK)
    book.take("a", StageFact(revision=1, kind="ready"), 0.0)
    yield Accounting(
        ledger, book, ClusterService(ModelCard("m", 0, 100, 64, (), None), service_report), _at=0.0
    )
    ledger.close()


def test_a_full_disk_is_shown_until_it_has_room(accounting):
    accounting.ledger._db.execute("PRAGMA query_only = ON")
    sent(accounting, 5)
    accounting.settle(10.0)
    assert "disk full" in accounting.trouble
    accounting.ledger._db.execute("PRAGMA query_only = OFF")
    accounting.settle(20.0)
    assert accounting.trouble == ""


def test_a_ledger_that_cannot_be_opened_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be opened"):
        Ledger.open(tmp_path / "file")


def test_sums_are_known_while_the_disk_is_gone(accounting):
    sent(accounting, 5)
    accounting.settle(10.0)
    accounting.ledger._db.close()
    sent(accounting, 6)
    accounting.settle(20.0)
    assert accounting.ledger.all() == {"a": Contribution(10.0, 0, 5)}


@pytest.mark.parametrize(
    ("profile", "is_local", "believed"),
    [
        (PROFILE, False, 20e6),
        (PROFILE.model_copy(update={"upload_mbps": 90_000}), False, 20e6),
        (None, False, 20e6),
        (None, True, 2**50),
    ],
)
def test_no_more_is_believed_than_the_line_could_carry(accounting, profile, is_local, believed):
    node = accounting.book.node("a")
    node.profile, node.is_local = profile, is_local
    sent(accounting, 2**50)
    accounting.settle(10.0)
    assert accounting.ledger.all()["a"].bytes_sent == min(2 * believed / 8 * 10, 100e9 / 8 * 10)


def test_what_others_have_seen_of_a_line_is_believed(accounting):
    node = accounting.book.node("a")
    node.profile = PROFILE.model_copy(update={"upload_mbps": 1000})
    accounting.book.node("b").seen = {"a": 400.0}
    sent(accounting, 2**50)
    accounting.settle(10.0)
    assert accounting.ledger.all()["a"].bytes_sent == 2 * 400e6 / 8 * 10


def sent(accounting, count):
    link = LinkReport("next", 1, count, 0, 0, 0, 0, 4096, 20.0, 60.0, 0.0, 0, False, 0)
    side = PackingHealth("raw", 0, 0, 0.0)
    stage = StageHealth(0, 0.0, 0.0, 0, 0, 0, 0, side, side, 0, None, None, 0.0, 0.0, (link,))
    health = NodeHealth(incarnation="a" * 12, state=NodeState.SERVING, uptime_s=1, stage=stage)
    accounting.book.take("a", health, 0.0)


def test_what_could_not_be_written_is_written_later_and_once(accounting):
    accounting.ledger._db.execute("PRAGMA query_only = ON")
    for now, count in ((10.0, 5), (20.0, 7)):
        sent(accounting, count)
        accounting.settle(now)
    assert accounting.ledger.all() == {} and accounting.guard.counts.total() == 2
    accounting.ledger._db.execute("PRAGMA query_only = OFF")
    for now in (30.0, 40.0):
        accounting.settle(now)
    assert accounting.ledger.all() == {"a": Contribution(40.0, 0, 7)}


async def test_the_event_loop_does_not_wait_for_the_disk(accounting, monkeypatch):
    threads = []
    monkeypatch.setattr(ledger_module, "PERIOD_S", 0.0)
    monkeypatch.setattr(Accounting, "_write", lambda self: threads.append(current_thread()))
    running = asyncio.create_task(accounting.run())
    async with asyncio.timeout(5):
        while not threads:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.001)
    await cancel(running)
    assert threads[0] is not current_thread()


def test_tokens_are_counted_once_over_all_epochs_of_a_ring(accounting):
    stage = SimpleNamespace(layers=(0, 2), node=SimpleNamespace(node_id="a"))
    client = SimpleNamespace(tokens_sent=0, ring=SimpleNamespace(stages=[stage], epoch=3))
    accounting.service.rings.append(ServingRing(0, client, 1.0))
    for epoch, sent_tokens in ((3, 5), (4, 7), (9, 7)):
        client.ring.epoch, client.tokens_sent = epoch, sent_tokens
        accounting.settle(10.0)
    assert accounting.ledger.all()["a"].token_layers == 7 * 2


def test_a_file_of_before_versions_were_kept_goes_on_and_one_of_a_newer_version_is_left(tmp_path):
    path = tmp_path / ledger_module.LEDGER_FILE
    before = sqlite3.connect(path)
    before.execute(ledger_module.MIGRATIONS[0])
    before.execute("INSERT INTO contribution VALUES ('a', 'anna', 10.0, 7, 100)")
    before.commit()
    before.close()
    ledger = Ledger.open(tmp_path)
    assert ledger.all() == {"a": Contribution(10.0, 7, 100)}
    ledger.close()
    newer = sqlite3.connect(path)
    newer.execute("ALTER TABLE contribution ADD COLUMN more")
    newer.execute("PRAGMA user_version = 2")
    newer.commit()
    newer.close()
    with pytest.raises(UserError, match="was written by a newer MoLink: update this one"):
        Ledger.open(tmp_path)
