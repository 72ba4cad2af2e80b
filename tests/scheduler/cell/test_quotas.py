"""Quotas of a lender, and its high-water mark."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.cell.events import CellLink, DeviceFacts
from molink_scheduler.cell.quotas import HighWaterMark, Quotas, bearable_bytes, quota_bytes
from tests.scheduler.cell.cell_parts import facts

uses = st.lists(st.tuples(st.floats(0.1, 400), st.integers(0, 100)), min_size=1, max_size=30)


@given(uses, st.floats(0, 900))
def test_the_mark_is_the_most_of_the_last_ten_minutes(steps, later_s):
    mark, now, used = HighWaterMark(600.0), 0.0, []
    for wait_s, size in steps:
        now += wait_s
        mark.used(size, now)
        used.append((now, size))
        expected = max(size for at, size in used if at >= now - 600)
        assert mark.bytes_at(now) == expected
    now += later_s
    recent = [size for at, size in used if at >= now - 600]
    assert mark.bytes_at(now) == max(recent, default=steps[-1][1])


@pytest.mark.parametrize(
    ("changes", "mark", "quota"),
    [
        ({}, 0, 50),
        ({"used_bytes": 40}, 0, 30),
        ({"used_bytes": 10}, 60, 20),
        ({"headroom_bytes": 80}, 0, 20),
        ({"used_bytes": 120}, 0, 0),
        ({"attend_bytes_per_s": 0.0}, 0, 0),
        ({"step_s": 2e-4}, 0, 20),
        ({"step_s": 1.0}, 0, 50),
    ],
)
def test_a_quota_is_the_least_of_memory_and_compute(changes, mark, quota):
    assert quota_bytes(replace(facts(), **changes), mark, Quotas()) == quota


def test_what_is_borne_is_what_the_link_leaves():
    debtor = DeviceFacts(0, layers=10, row_bytes=1000)
    link = CellLink(1e-4, 1e7)
    assert bearable_bytes(debtor, link, 1e9, 5e-3) == pytest.approx(3e6)
    assert bearable_bytes(debtor, link, 1e9, 5e-3, rows=8) == 0
    assert bearable_bytes(debtor, link, 0.0, 5e-3) == 0
    assert bearable_bytes(debtor, link, 0.0, float("inf")) == 0
