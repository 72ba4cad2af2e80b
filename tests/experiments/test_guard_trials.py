"""Trials of the guard run for minutes, by hand; here how their table comes into the page."""

import pytest

from molink.errors import UserError
from tools.experiments.guard import trials

PAGE = f"# Guard\n\nbefore\n\n{trials.BEGIN}\nfigures of before\n{trials.END}\n\nbehind\n"


def test_rows_stand_in_the_page_in_the_order_of_trials():
    names = [one.name for one in trials.TRIALS]
    assert len(set(names)) == len(names)
    rows = {
        name: {"measured": f"{name} measured", "reached": name != names[0], "load": 2.0}
        for name in reversed(names[:2])
    }
    page = trials.with_table(PAGE, rows)
    first, second = page.index(f"{names[0]} measured | MISSED"), page.index(f"{names[1]} measured")
    assert first < second and page.count("| reached |") == 1 and "figures of before" not in page
    assert page.startswith("# Guard\n\nbefore") and page.endswith("\n\nbehind\n")
    assert trials.with_table(page, rows) == page


def test_a_page_without_marks_is_refused():
    with pytest.raises(UserError, match="no place"):
        trials.with_table("# Guard\n", {})
