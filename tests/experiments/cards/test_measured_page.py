"""What cards have shown stands under their names; the rest of a page is nobody's business."""

from pathlib import Path

import pytest

from molink.errors import UserError
from tools.experiments.cards.measured_page import BEGIN, END, with_card

PAGE = f"# Cards\n\nWords.\n\n{BEGIN}\n\nNothing yet.\n\n{END}\n\n## More\n\nOther words.\n"


def test_cards_are_added_and_replaced_in_order_of_their_names():
    page = with_card(PAGE, "RTX 4090", "fast\n\n| a |")
    page = with_card(page, "H200", "faster")
    page = with_card(page, "RTX 4090", "slower\n")
    told = "### H200\n\nfaster\n\n### RTX 4090\n\nslower"
    assert page == PAGE.replace("Nothing yet.", told)


def test_a_page_without_a_place_is_left_alone():
    with pytest.raises(UserError, match="no place"):
        with_card("# Cards\n", "H200", "fast")


def test_the_documented_page_has_one():
    page = Path(__file__).parents[3] / "docs" / "benchmarks" / "gpu.md"
    assert "### H200\n\nfast\n" in with_card(page.read_text(encoding="utf-8"), "H200", "fast")
