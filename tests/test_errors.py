"""What an error guard lets pass, and how often it says so."""

import asyncio

import pytest

from molink.errors import ErrorGuard, StageError


def fail(guard, error):
    with guard:
        raise error


def test_an_error_is_counted_and_goes_no_further(caplog):
    guard = ErrorGuard("A look")
    fail(guard, ZeroDivisionError("by hand"))
    fail(guard, StageError("No PC is ready."))
    assert guard.counts == {ZeroDivisionError: 1, StageError: 1}
    bug, foreseen = caplog.records
    assert "A look failed (1 so far): ZeroDivisionError('by hand')" in bug.message and bug.exc_info
    assert foreseen.message.endswith("No PC is ready.") and not foreseen.exc_info


def test_what_happens_again_and_again_does_not_fill_the_log(caplog):
    guard = ErrorGuard("A look")
    for _ in range(100):
        fail(guard, ValueError())
    fail(guard, KeyError())
    said = [record.message.split(": ")[0] for record in caplog.records]
    assert said == [f"A look failed ({2**n} so far)" for n in (*range(7), 0)]


def test_a_cancellation_passes():
    guard = ErrorGuard("A look")
    with pytest.raises(asyncio.CancelledError):
        fail(guard, asyncio.CancelledError())
    assert not guard.counts
