"""Which build of torch has code for a card; the installer chooses by the same table."""

import pytest

from molink.hardware.torch_builds import BUILDS, build_for, has_code


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 9), ("sm_86",), True),  # RTX 40
        ((8, 6), ("sm_89",), False),
        ((8, 6), ("sm_75", "sm_90"), False),
        ((12, 0), ("sm_90", "sm_100"), False),
        ((12, 0), ("sm_90", "compute_90"), True),
        ((12, 1), ("sm_120",), True),
        ((6, 1), ("compute_75",), False),
        ((9, 0), ("sm_90a",), True),
        ((9, 2), ("sm_90a",), False),
        ((10, 3), ("sm_100f",), True),
        ((8, 6), ("", "sm_", "gfx90a"), False),
    ],
)
def test_a_card_runs_code_of_its_own_generation_and_text_of_older_ones(
    capability, architectures, runs
):
    assert has_code(capability, architectures) == runs


RTX = {"20": (7, 5), "30": (8, 6), "40": (8, 9), "50": (12, 0)}


@pytest.mark.parametrize("card", RTX)
@pytest.mark.parametrize(("driver", "cuda"), [(580, "13"), (570, "12.6"), (520, None)])
def test_every_rtx_card_has_a_build_or_needs_a_driver(card, driver, cuda):
    build = build_for(RTX[card], driver)
    if card == "50" and driver < 580:
        assert build is None
    else:
        assert (build.cuda if build else None) == cuda


def test_the_best_build_stands_first():
    assert [one.driver_min for one in BUILDS] == sorted(
        (b.driver_min for b in BUILDS), reverse=True
    )
