"""Energy by a driver that counts, one that tells power alone, one that refuses, and none."""

import pytest

from molink_agent.probe.energy import GAP_S_MAX, EnergyMeter


class Refused(Exception):
    pass


class Driver:
    """NVML with two cards; what is None is refused."""

    NVMLError = Refused

    def __init__(self, counted_mj=None, power_mw=None, is_there=True):
        self.counted_mj, self.power_mw, self.is_there = counted_mj, power_mw, is_there

    def nvmlInit(self):
        if not self.is_there:
            raise Refused

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._told(self.counted_mj)

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._told(self.power_mw)

    def _told(self, value):
        if value is None:
            raise Refused
        return value


def test_a_card_that_counts_begins_with_the_first_question():
    driver = Driver(counted_mj=5_000_000)
    meter = EnergyMeter(driver, visible="0,1")
    assert meter.used_j(["cuda:0"], 0.0) == 0.0
    driver.counted_mj += 2_500
    assert meter.used_j(["cuda:0", "cuda:1"], 10.0) == 2.5
    driver.counted_mj += 1_000
    assert meter.used_j(["cuda:0", "cuda:1"], 20.0) == 2.0


def test_what_a_card_used_while_it_was_not_lent_does_not_count():
    driver = Driver(counted_mj=0)
    meter = EnergyMeter(driver, visible="0,1")
    meter.used_j(["cuda:0"], 0.0)
    assert meter.used_j([], 10.0) is None
    driver.counted_mj = 9_000
    assert meter.used_j(["cuda:0"], 20.0) == 0.0


def test_a_counter_that_begins_anew_takes_nothing_back():
    driver = Driver(counted_mj=9_000)
    meter = EnergyMeter(driver, visible="0,1")
    meter.used_j(["cuda:0"], 0.0)
    driver.counted_mj = 1_000
    assert meter.used_j(["cuda:0"], 10.0) == 0.0


def test_an_older_card_counts_by_power_and_not_over_a_sleep():
    meter = EnergyMeter(Driver(power_mw=150_000), visible="0,1")
    assert meter.used_j(["cuda:0"], 0.0) == 0.0
    assert meter.used_j(["cuda:0"], 10.0) == 1500.0
    assert meter.used_j(["cuda:0"], 11.0 + GAP_S_MAX) == 0.0


@pytest.mark.parametrize(
    ("driver", "device"),
    [
        (Driver(), "cuda:0"),
        (Driver(counted_mj=1, is_there=False), "cuda:0"),
        (Driver(counted_mj=1), "cuda:5"),
        (Driver(counted_mj=1), "cpu"),
        (Driver(counted_mj=1), "cuda:x"),
    ],
)
def test_nobody_tells(driver, device):
    assert EnergyMeter(driver, visible="0,1").used_j([device], 0.0) is None


def test_cards_are_numbered_as_the_owner_shows_them():
    """With CUDA_VISIBLE_DEVICES=1 the driver's second card is cuda:0, and there is no other."""
    meter = EnergyMeter(Driver(counted_mj=1), visible="1")
    assert meter.used_j(["cuda:0"], 0.0) == 0.0
    assert meter.used_j(["cuda:1"], 0.0) is None
