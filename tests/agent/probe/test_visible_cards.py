"""What CUDA_VISIBLE_DEVICES hides is not lent."""

import pytest

from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.visible_cards import visible_cards
from tests.agent.probe.fake_nvml import FakeCard, FakeNvml


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2, 0", [2, 0]),
        ("0,7,1", [0]),
        ("-1", []),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", [0, 1, 2]),
    ],
)
def test_cards_are_numbered_as_cuda_does(setting, found):
    assert visible_cards(3, setting) == found


def test_a_hidden_card_is_not_seen_and_the_others_have_cuda_s_numbers():
    driver = FakeNvml([FakeCard("one"), FakeCard("two")])
    report = GpuProbe(driver, visible="1").read()
    assert [(gpu.index, gpu.name) for gpu in report.gpus] == [(0, "two")]
    assert "sees no GPU" in GpuProbe(driver, visible="").read().reason
