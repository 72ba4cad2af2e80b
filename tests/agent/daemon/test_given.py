"""The ledger of nights: what goes where, what ends, damaged files, new coordinators."""

import asyncio
import json
from datetime import date, datetime, timedelta

import pytest

from molink_agent.daemon import given
from molink_agent.daemon.given import (
    ASK_AGAIN_S,
    ASK_EVERY_S,
    GIVEN_FILE,
    NIGHTS_MAX,
    GivenLedger,
    GivenRecorder,
    Night,
    Totals,
)

EVENING = datetime(2026, 11, 21, 22, 0)
MORNING = datetime(2026, 11, 22, 8, 0)
AFTERNOON = datetime(2026, 11, 22, 15, 0)
NIGHT = date(2026, 11, 21)
BEFORE = Totals(uptime_s=100, token_layers=1000, bytes_sent=10**6)
AFTER = Totals(uptime_s=3700, token_layers=5000, bytes_sent=3 * 10**6)


def told(*moments: tuple[datetime, Totals]) -> GivenLedger:
    ledger = GivenLedger()
    for now, totals in moments:
        ledger = ledger.later(now, totals)
    return ledger


def test_what_came_before_the_first_question_is_of_no_night():
    assert told((EVENING, BEFORE)) == GivenLedger(totals=BEFORE)


def test_an_evening_and_the_small_hours_after_it_are_one_night():
    half = Totals(uptime_s=1900, token_layers=3000, bytes_sent=2 * 10**6)
    ledger = told((EVENING, BEFORE), (EVENING + timedelta(hours=1), half), (MORNING, AFTER))
    expected = Night(begins=NIGHT, uptime_s=3600, token_layers=4000, bytes_sent=2 * 10**6)
    assert ledger.nights == (expected,)
    assert ledger.last_night(MORNING) == ledger.last_night(AFTERNOON) == expected
    assert ledger.last_night(AFTERNOON + timedelta(days=1)) is None


def test_noon_begins_another():
    ledger = told((EVENING, BEFORE), (MORNING, AFTER), (AFTERNOON, Totals(**double(AFTER))))
    assert [night.begins for night in ledger.nights] == [NIGHT, date(2026, 11, 22)]


def double(totals: Totals) -> dict[str, float]:
    return {key: 2 * value for key, value in totals.model_dump().items()}


def test_nights_without_anything_are_not_kept():
    assert told((EVENING, BEFORE), (AFTERNOON, BEFORE)).nights == ()


def test_a_coordinator_that_has_lost_figures_brings_no_other_nights_into_this_one():
    before = told((EVENING, BEFORE), (EVENING, AFTER))
    ledger = before.later(MORNING, BEFORE)
    assert ledger == GivenLedger(totals=BEFORE, nights=before.nights)
    assert ledger.later(MORNING, AFTER).nights[0].token_layers == 8000


def nightly(*moments: datetime) -> GivenLedger:
    """A ledger of a coordinator whose figures grow by one token at each of these moments."""
    ledger = GivenLedger(totals=Totals())
    for number, now in enumerate(moments, 1):
        ledger = ledger.later(now, Totals(token_layers=number))
    return ledger


def test_the_oldest_nights_go():
    ledger = nightly(*(EVENING + timedelta(days=day) for day in range(NIGHTS_MAX + 10)))
    assert len(ledger.nights) == NIGHTS_MAX
    assert ledger.nights[0].begins == NIGHT + timedelta(days=10)


def test_a_clock_that_was_wrong_once_spoils_one_night():
    ledger = nightly(EVENING + timedelta(days=9999), EVENING, MORNING)
    assert [night.token_layers for night in ledger.nights] == [2, 1]


def test_it_is_saved_whole(tmp_path):
    ledger = told((EVENING, BEFORE), (MORNING, AFTER))
    ledger.save(tmp_path)
    assert GivenLedger.load(tmp_path) == ledger
    assert [file.name for file in tmp_path.iterdir()] == [GIVEN_FILE]


@pytest.mark.parametrize("text", ["", "[]", '{"nights": [{"begins": "x"}]}', '{"nights": 1}'])
def test_a_damaged_file_is_moved_away(tmp_path, text):
    (tmp_path / GIVEN_FILE).write_text(text)
    assert GivenLedger.load(tmp_path) == GivenLedger()
    assert [file.read_text() for file in tmp_path.iterdir()] == [text]
    assert GivenLedger.load(tmp_path / "nowhere") == GivenLedger()


async def test_nights_that_cannot_be_read_now_are_not_written_over(tmp_path, caplog):
    """As where the agent has as many files open as it may."""
    path, ledger = tmp_path / GIVEN_FILE, told((EVENING, BEFORE), (MORNING, AFTER))
    ledger.save(tmp_path)
    path.rename(tmp_path / "kept")
    path.mkdir()  # Reading it is an OSError, for root too.
    with pytest.raises(OSError):
        GivenLedger.load(tmp_path)
    recorder = GivenRecorder(tmp_path, lambda: Totals(**double(AFTER)))
    await recorder.step()
    assert path.is_dir() and "cannot be written down" in caplog.text
    path.rmdir()
    (tmp_path / "kept").rename(path)
    await recorder.step()
    nights = GivenLedger.load(tmp_path).nights
    assert nights[0] == ledger.nights[0] and nights[-1].token_layers == AFTER.token_layers


async def test_a_coordinator_that_answers_nonsense_does_not_end_the_agent(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(given, "ASK_AGAIN_S", 0.0)
    asked, enough = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def nonsense():
        asked.append(None)
        if len(asked) == 2:
            loop.call_soon_threadsafe(enough.set)
        raise RuntimeError("no such answer")

    running = asyncio.ensure_future(GivenRecorder(tmp_path, nonsense).run())
    async with asyncio.timeout(15):
        await enough.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "Counting what this PC gives" in caplog.text


async def test_the_recorder_writes_what_it_is_told_and_asks_seldom(tmp_path):
    answers = iter([BEFORE, AFTER])
    recorder = GivenRecorder(tmp_path, lambda: next(answers))
    assert [await recorder.step() for _ in range(2)] == [ASK_EVERY_S] * 2
    (night,) = GivenLedger.load(tmp_path).nights
    assert night.token_layers == 4000


async def test_a_coordinator_out_of_reach_is_asked_again_soon(tmp_path):
    answers = iter([None, BEFORE])
    recorder = GivenRecorder(tmp_path, lambda: next(answers))
    assert await recorder.step() == ASK_AGAIN_S and not list(tmp_path.iterdir())
    assert await recorder.step() == ASK_EVERY_S
    assert GivenLedger.load(tmp_path).totals == BEFORE


async def test_what_could_not_be_written_is_written_later(tmp_path, caplog):
    folder = tmp_path / "gone"
    recorder = GivenRecorder(folder, lambda: AFTER)
    await recorder.step()
    assert "cannot be written down" in caplog.text
    folder.mkdir()
    GivenLedger(totals=BEFORE).save(folder)
    await recorder.step()
    assert GivenLedger.load(folder).nights[0].token_layers == 4000


async def test_a_file_of_an_older_version_that_has_energy_is_read(tmp_path):
    night = {"begins": "2026-11-21", "uptime_s": 60, "energy_j": 1.5e6}
    (tmp_path / GIVEN_FILE).write_text(json.dumps({"nights": [night]}))
    assert GivenLedger.load(tmp_path).nights == (Night(begins=NIGHT, uptime_s=60),)
