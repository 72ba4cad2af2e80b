"""The ledger of nights: what goes where, what ends, damaged files, new coordinators."""

import asyncio
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


def test_energy_counts_without_the_coordinator_and_is_unknown_without_a_card():
    ledger = told((EVENING, BEFORE), (EVENING, AFTER))
    assert ledger.nights[0].energy_j is None
    ledger = ledger.later(EVENING, None, 1000.0).later(MORNING, None, 500.0)
    assert ledger.nights[0].energy_j == 1500.0
    assert ledger.nights[0].token_layers == 4000


def test_the_oldest_nights_go():
    ledger = GivenLedger()
    for day in range(NIGHTS_MAX + 10):
        ledger = ledger.later(EVENING + timedelta(days=day), None, 1.0)
    assert len(ledger.nights) == NIGHTS_MAX
    assert ledger.nights[0].begins == NIGHT + timedelta(days=10)


def test_a_clock_that_was_wrong_once_spoils_one_night():
    ledger = GivenLedger().later(EVENING + timedelta(days=9999), None, 1.0)
    ledger = ledger.later(EVENING, None, 1.0).later(MORNING, None, 1.0)
    assert [night.energy_j for night in ledger.nights] == [2.0, 1.0]


def test_it_is_saved_whole(tmp_path):
    ledger = told((EVENING, BEFORE), (MORNING, AFTER)).later(MORNING, None, 3.5)
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
    recorder = GivenRecorder(tmp_path, lambda: None, lambda: ["cuda:0"], Meter())
    await recorder.step(0.0)
    assert path.is_dir() and "cannot be written down" in caplog.text
    path.rmdir()
    (tmp_path / "kept").rename(path)
    await recorder.step(ASK_EVERY_S)
    nights = GivenLedger.load(tmp_path).nights
    assert nights[0] == ledger.nights[0] and nights[-1].energy_j == 4.0


async def test_a_driver_that_answers_nonsense_does_not_end_the_agent(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(given, "MEASURE_EVERY_S", 0.0)

    asked = []

    def nonsense():
        asked.append(None)
        if len(asked) == 2:
            running.cancel()
        raise RuntimeError("no such answer")

    recorder = GivenRecorder(tmp_path, lambda: None, nonsense, Meter())
    running = asyncio.ensure_future(recorder.run())
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(asked) == 2 and "Counting what this PC gives" in caplog.text


class Meter:
    """Counts what it was asked, and tells two joules each time for a card."""

    def __init__(self):
        self.asked = []

    def used_j(self, devices, now_s):
        self.asked.append(devices)
        return 2.0 if "cuda:0" in devices else None


async def test_the_recorder_asks_seldom_and_measures_often(tmp_path):
    answers, meter = iter([BEFORE, AFTER]), Meter()
    recorder = GivenRecorder(tmp_path, lambda: next(answers), lambda: ["cuda:0"], meter)
    for now_s in (0.0, ASK_EVERY_S / 2, ASK_EVERY_S):
        await recorder.step(now_s)
    (night,) = GivenLedger.load(tmp_path).nights
    assert (night.energy_j, night.token_layers) == (6.0, 4000)
    assert len(meter.asked) == 3


async def test_a_coordinator_out_of_reach_is_asked_again_soon(tmp_path):
    answers = iter([None, BEFORE])
    recorder = GivenRecorder(tmp_path, lambda: next(answers), tuple, Meter())
    for now_s in (0.0, ASK_AGAIN_S - 1, ASK_AGAIN_S):
        await recorder.step(now_s)
    assert GivenLedger.load(tmp_path).totals == BEFORE


async def test_what_could_not_be_written_is_written_later(tmp_path, caplog):
    folder = tmp_path / "gone"
    recorder = GivenRecorder(folder, lambda: None, lambda: ["cuda:0"], Meter())
    await recorder.step(0.0)
    assert "cannot be written down" in caplog.text
    folder.mkdir()
    await recorder.step(ASK_EVERY_S)
    assert GivenLedger.load(folder).nights[0].energy_j == 4.0


async def test_a_cpu_writes_nothing_of_energy(tmp_path):
    recorder = GivenRecorder(tmp_path, lambda: None, lambda: ["cpu"], Meter())
    await recorder.step(0.0)
    assert not list(tmp_path.iterdir())
