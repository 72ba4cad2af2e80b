import os

import pytest

from molink.bench import validation
from molink.bench.validation import OthersWatch


def test_what_the_system_did_and_we_did_not_is_counted(monkeypatch):
    """Of 12 core seconds in 4 s, 2 were ours: others had two and a half cores."""
    moments = iter([100.0, 104.0])
    busy = iter([50.0, 62.0])
    ours = iter([7.0, 9.0])
    monkeypatch.setattr(validation.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(validation, "_system_busy_s", lambda: next(busy))
    monkeypatch.setattr(validation, "_ours_s", lambda server: next(ours))
    assert OthersWatch.start(os.getpid()).cores() == pytest.approx(2.5)


def test_our_own_time_is_ours(monkeypatch):
    before = validation._ours_s(os.getpid())
    sum(range(2_000_000))
    assert validation._ours_s(os.getpid()) >= before > 0
