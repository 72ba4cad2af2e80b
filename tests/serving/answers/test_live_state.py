"""What outlives a coordinator: whole after a kill at any write, cut anywhere, or on a full disk."""

import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.api.keys.store import KeyStore, KeyUsage
from molink.control.registry.registry import Registry
from molink.coordinator.nodes.node import Contribution
from molink.coordinator.reports.ledger import Ledger
from molink.errors import ControlError
from molink.serving.answer_log import Ending, Place
from molink.serving.answers import live_state, state_writer
from molink.serving.answers.live_state import ANSWER_KEPT_S, UNFINISHED_KEPT_S, LiveState
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest, cache_salt
from molink.serving.token_events import TokenEvent, TokenLogprob
from molink_scheduler.request import SamplingParams

SAMPLING = SamplingParams(
    40, 0.5, seed=2**63, stop=("x",), stop_token_ids=(3,), logit_bias=((7, 1.5),), logprobs=1
)
REQUEST = GenerationRequest((1, 5, 9), SAMPLING, "key", -3, cache_salt=cache_salt(None, "gen-a"))
CARD = ModelCard("m", 0, 100, 64, (), None)
PAGE_BYTES, FRAME_HEADER_BYTES, WAL_HEADER_BYTES = 4096, 24, 32


def opened(folder, model="m", now=None):
    return closing(LiveState.open(folder, model, time.time() if now is None else now))


def token(number, finish=None):
    logprob = TokenLogprob(number, -0.5, ((number, -0.5), (4, -1.0)))
    return TokenEvent((number,), "", (logprob,), finish)


def begun(live, answer_id="gen-a", owner="key", request=REQUEST):
    log = live.log(answer_id, owner, '{"input": "hi"}', request)
    log.begin()
    return log


async def test_a_request_is_found_with_its_tokens_by_who_asked(tmp_path):
    with opened(tmp_path) as live:
        log = begun(live)
        log.submitted(Place(2, 17, 0))
        for number in (11, 12, 13):
            log.took(token(number))
        found = await live.find("key", "gen-a")
        assert found.token_ids == (11, 12, 13) and found.ending is None
        assert found.logprobs == tuple(token(one).logprobs[0] for one in (11, 12, 13))
        assert found.request == REQUEST and found.held_tokens == 3 + 3 - 1
        assert await live.find("another", "gen-a") is None
        assert await live.find("key", "gen-b") is None
        log.took(token(14, "stop"))
        found = await live.find("key", "gen-a")
        assert found.ending.finish_reason == "stop" and found.token_ids[-1] == 14
        log.ended(Ending(0.0, None, error="too late to matter"))
        assert (await live.find("key", "gen-a")).ending.finish_reason == "stop"


def test_what_was_under_way_goes_on_from_its_tokens(tmp_path):
    with opened(tmp_path) as live:
        log, ended = begun(live), begun(live, "gen-b")
        log.submitted(Place(0, 4, 0))
        log.took(token(11))
        log.submitted(Place(0, 4, 1))
        ended.took(token(11, "length"))
        live.keep_ring(0, "a ring")
        live.freeze()
        log.ended(Ending(1.0, None))
    with opened(tmp_path) as live:
        (request,) = live.unfinished()
        assert request.log.before.token_ids == (11,)
        assert request.log.before.held_tokens == 0, "nothing came in its ring's last epoch"
        assert live.rings() == [(0, "a ring")]
        request.log.took(token(12))
        live.drop_ring(0)
    with opened(tmp_path) as live:
        assert live.unfinished()[0].log.before.token_ids == (11, 12)
        assert not live.rings()


async def test_an_id_that_is_used_again_is_the_newer_request(tmp_path):
    with opened(tmp_path) as live:
        begun(live).took(token(11))
        newer = begun(live, request=replace(REQUEST, prompt_token_ids=(2,)))
        newer.took(token(12))
        found = await live.find("key", "gen-a")
        assert found.request.prompt_token_ids == (2,) and found.token_ids == (12,)


async def test_answers_go_in_time_and_others_models_at_once(tmp_path):
    now = time.time()
    with opened(tmp_path) as live:
        begun(live, "gen-ended").took(token(11, "stop"))
        begun(live, "gen-open")
    with opened(tmp_path, now=now + ANSWER_KEPT_S - 1) as live:
        assert await live.find("key", "gen-ended")
    with opened(tmp_path, now=now + UNFINISHED_KEPT_S + 1) as live:
        assert not live.unfinished() and not await live.find("key", "gen-ended")
        assert "away for too long" in (await live.find("key", "gen-open")).ending.error
    with opened(tmp_path, "another") as live:
        assert await live.find("key", "gen-open") is None


async def test_what_another_molink_has_kept_is_not_gone_on_with(tmp_path):
    with opened(tmp_path) as live:
        begun(live)
        await live.find("key", "gen-a")
        with closing(sqlite3.connect(live.path)) as db, db:
            db.execute("UPDATE answers SET sampling = '{}'")
        assert await live.find("key", "gen-a") is None
    with opened(tmp_path) as live:
        assert not live.unfinished()


async def test_the_oldest_answers_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(live_state, "ANSWERS_MAX", 2)
    with opened(tmp_path) as live:
        for name in ("a", "b", "c"):
            log = begun(live, name)
            log.took(token(11))
            log.ended(Ending(time.time(), "stop"))
            await live.find("key", name)
    with opened(tmp_path) as live:
        assert [bool(await live.find("key", name)) for name in ("a", "b", "c")] == [0, 1, 1]


def test_too_much_under_way_is_served_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(live_state, "ANSWERS_BYTES_MAX", 700)
    with opened(tmp_path) as live:
        log = begun(live)
        assert live.log("gen-b", "", "x" * 400, REQUEST) is None
        log.ended(Ending(0.0, "stop"))
        assert live.log("gen-b", "", "x" * 300, REQUEST) is not None


async def test_answers_count_by_what_they_have_become(tmp_path, monkeypatch):
    """Short questions with long answers and log-probabilities filled a disk."""
    with opened(tmp_path) as live:
        for name, owner in (("a", "long"), ("b", "other"), ("c", "long")):
            log = begun(live, name, owner)
            for number in range(300):
                log.took(token(number))
            assert log.size_bytes > 20_000, "counted while it grows"
            log.ended(Ending(time.time(), "stop"))
            await live.find(owner, name)
    monkeypatch.setattr(live_state, "OWNER_BYTES_MAX", 15_000)
    with opened(tmp_path) as live:
        assert await live.find("long", "a") is None
        assert await live.find("other", "b") and await live.find("long", "c")


async def test_a_full_disk_holds_up_nobody_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(state_writer, "RETRY_S", 0.01)
    monkeypatch.setattr(live_state, "RETRY_S", 0.01)
    with opened(tmp_path) as live, closing(sqlite3.connect(live.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        live._writer._db.execute("PRAGMA busy_timeout = 0")
        log = begun(live)
        with pytest.raises(ControlError, match="is behind"):
            await live.find("key", "gen-a")
        log.took(token(11))
        other.execute("ROLLBACK")
        monkeypatch.setattr(live_state, "RETRY_S", 5.0)
        assert (await live.find("key", "gen-a")).token_ids == (11,)
        assert not live.trouble


# -- cut writes -----------------------------------------------------------------------------------


def registry_writes(folder):
    with closing(Registry.open(folder)) as registry:
        yield from (registry.coordinator.public_z85,)
        for number in range(4):
            registry.set_setting("a", "x" * 3000 * number)
            registry.set_setting("b", str(number))
            registry.make_invite(60, 1, f"n{number}", float(number), "https://h:1")
            registry.next_revision()
            yield number


def ledger_writes(folder):
    with closing(Ledger.open(folder)) as ledger:
        for number in range(6):
            with ledger.together():
                for node in "abcdef":
                    ledger.add(node * 16, node, Contribution(1.0, 2, 3))
            yield number


def key_writes(folder):
    with closing(KeyStore.open(folder)) as keys:
        for number in range(4):
            key, _ = keys.create(float(number), name=f"k{number}")
            keys.add_usage({key.key_id: KeyUsage(1, 2, 3)}, 0.0)
            keys.revoke(key.key_id, float(number))
            yield number


def live_writes(folder):
    with opened(folder) as live:
        for number in range(6):
            log = begun(live, f"gen-{number}")
            live.keep_ring(number, "r" * 900 * number)
            for one in range(40):
                log.took(token(one))
            if number % 2:
                log.took(token(99, "stop"))
            live.drop_ring(number - 1)
            live._find("key", "gen-0")  # Each is a transaction of its own.
            yield number


KINDS = {
    "registry.db": registry_writes,
    "ledger.sqlite": ledger_writes,
    "keys.sqlite": key_writes,
    "live.sqlite": live_writes,
}


def dump(path):
    """All that a file holds, table by table."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(names)}


def commits(wal):
    """Where each transaction of a write-ahead log ends, its beginning among them."""
    frame, ends = FRAME_HEADER_BYTES + PAGE_BYTES, [0]
    for at in range(WAL_HEADER_BYTES, len(wal) - frame + 1, frame):
        if int.from_bytes(wal[at + 4 : at + 8], "big"):
            ends.append(at + frame)
    return ends


def left_behind(folder, name, into):
    """What a power cut finds on the disk while the file is written."""
    into.mkdir()
    for end in ("", "-wal"):
        if (folder / f"{name}{end}").exists():
            shutil.copyfile(folder / f"{name}{end}", into / f"{name}{end}")
    return into / name


@pytest.fixture(scope="module", params=sorted(KINDS))
def cut_file(request, tmp_path_factory):
    """A file that was written to and not closed: its pages, its log, and what it holds after each
    transaction of the log."""
    name, folder = request.param, tmp_path_factory.mktemp("cut")
    for count, _ in enumerate(KINDS[name](folder)):
        last = left_behind(folder, name, folder / f"copy{count}")
    pages, wal = last.read_bytes(), last.with_name(f"{name}-wal").read_bytes()
    trial = folder / "trial"
    trial.mkdir()
    states = {end: state_of(trial, name, pages, wal[:end]) for end in commits(wal)}
    assert len(states) > 5, "several transactions are in the log"
    return name, pages, wal, states


def state_of(folder, name, pages, wal):
    for end in ("-wal", "-shm"):
        (folder / f"{name}{end}").unlink(missing_ok=True)
    (folder / name).write_bytes(pages)
    if wal:
        (folder / f"{name}-wal").write_bytes(wal)
    return dump(folder / name)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_log_that_is_cut_anywhere_holds_whole_transactions(cut_file, tmp_path_factory, data):
    """After a power cut the log ends anywhere, with anything in its last block."""
    name, pages, wal, states = cut_file
    ends = sorted(states)
    near = st.sampled_from(ends).flatmap(lambda end: st.integers(end - 30, end + 30))
    at = data.draw(st.one_of(near, st.integers(0, len(wal)))) if ends else 0
    at = max(0, min(len(wal), at))
    garbage = data.draw(st.binary(max_size=600))
    folder = tmp_path_factory.mktemp("power")
    found = state_of(folder, name, pages, wal[:at] + garbage)
    before = max(end for end in ends if end <= at)
    assert found == states[before]
    shutil.rmtree(folder)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_checkpoint_that_is_cut_loses_nothing(cut_file, tmp_path_factory, data):
    """The log stays whole until all of its pages are in the file; some of them are torn there."""
    name, pages, wal, states = cut_file
    frame, torn = FRAME_HEADER_BYTES + PAGE_BYTES, bytearray(pages)
    starts = range(WAL_HEADER_BYTES, max(states) - frame + 1, frame)
    for at in data.draw(st.lists(st.sampled_from(starts), max_size=8)):
        place = (int.from_bytes(wal[at : at + 4], "big") - 1) * PAGE_BYTES
        written = data.draw(st.integers(1, PAGE_BYTES))
        torn.extend(bytes(max(0, place + written - len(torn))))
        torn[place : place + written] = wal[at + FRAME_HEADER_BYTES :][:written]
    folder = tmp_path_factory.mktemp("checkpoint")
    assert state_of(folder, name, bytes(torn), wal) == states[max(states)]
    shutil.rmtree(folder)
