"""Parts of reports: copied from facts by name, and shown by the list of capabilities."""

from dataclasses import dataclass, fields, is_dataclass
from typing import get_args, get_type_hints

import pytest

from molink.report.capabilities import RING_PARTS, STAGE_PARTS
from molink.report.cluster import RingReport, StageReport
from molink.report.shared_fields import report_of


@dataclass
class InnerFact:
    blocks: int
    only_told: int = 0


@dataclass
class Fact:
    steps: int
    inner: InnerFact | None
    many: tuple[int, ...] = ()


@dataclass
class Inner:
    blocks: int


@dataclass
class Report:
    name: str
    steps: int
    inner: Inner | None
    many: tuple[Inner, ...] = ()


def test_a_report_has_a_facts_fields_of_the_same_name():
    told = report_of(Report, Fact(3, InnerFact(4)), Fact(9, None), name="a", many=(Inner(1),))
    assert told == Report("a", 3, Inner(4), (Inner(1),)), "of the first fact, and its own first"
    assert report_of(Report, Fact(3, None), name="a").inner is None


def test_a_field_that_nobody_tells_is_missed_by_its_name():
    with pytest.raises(TypeError, match="steps"):
        report_of(Report, InnerFact(4), name="a", inner=None)


@pytest.mark.parametrize(
    ("report", "parts"), [(StageReport, STAGE_PARTS), (RingReport, RING_PARTS)]
)
def test_each_capability_names_a_field_of_its_report(report, parts):
    assert {one.field for one in parts} <= {one.name for one in fields(report)}


def test_each_part_of_a_stages_report_is_shown():
    hints = get_type_hints(StageReport)
    parts = {name for name, hint in hints.items() if any(map(is_dataclass, get_args(hint)))}
    assert parts == {one.field for one in STAGE_PARTS}


@pytest.mark.parametrize("part", STAGE_PARTS, ids=lambda one: one.field)
def test_each_metric_of_a_part_is_a_field_of_it(part):
    (of,) = (one for one in get_args(get_type_hints(StageReport)[part.field]) if is_dataclass(one))
    assert {one.field for one in part.figures} <= {one.name for one in fields(of)}
    assert not part.figures or part.label
