"""Cards as people write them become PCs, or one sentence each."""

import pytest

from molink.catalogue.asked import HomeLine, asked_pcs, home_line
from molink.errors import UserError


def names(text):
    return [pc.name for pc in asked_pcs(text, HomeLine()).nodes]


def test_cards_are_pcs():
    assert names("3090, 3060 12GB + 4080 laptop") == ["rtx3090", "rtx3060", "rtx4080-laptop"]
    assert names("2 x RTX 3090; 3060") == ["rtx3090", "rtx3090 (2)", "rtx3060"]
    assert names("3x3060,") == ["rtx3060", "rtx3060 (2)", "rtx3060 (3)"]


def test_their_links_are_a_homes():
    (anna, ben) = (pcs := asked_pcs("2x 3090", home_line("20/50/40"))).nodes
    link = pcs.network().links[anna.name, ben.name]
    assert link.one_way_s == pytest.approx(0.020) and link.rate_bytes_per_s == 2.5e6


def test_each_mistake_is_a_sentence():
    with pytest.raises(UserError) as error:
        asked_pcs("3090x, potato, 3060", HomeLine())
    first, second = str(error.value).splitlines()
    assert first.startswith("No GPU '3090x' is known: nearest is 3090 or ")
    assert second.startswith("No GPU 'potato' is known: write 3060")


@pytest.mark.parametrize("text", ["", ", ;", "17x 3090", "999 x 3090"])
def test_none_and_too_many_are_refused(text):
    with pytest.raises(UserError, match="--for takes 1 to 16 cards"):
        asked_pcs(text, HomeLine())


@pytest.mark.parametrize("text", ["", "40", "40/100", "0/100/30", "40/100/-1", "a/b/c", "40/9e9/1"])
def test_a_line_that_is_none(text):
    with pytest.raises(UserError, match="--line takes Mbit/s up, Mbit/s down and ms"):
        home_line(text)
