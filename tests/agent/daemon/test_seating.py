"""Seats keep their devices, as long as there are any."""

from hypothesis import given
from hypothesis import strategies as st

from molink_agent.daemon.seating import NO_DEVICE, seated

DEVICES = st.lists(st.sampled_from(["cpu", "cpu:1", "cuda:0", "cuda:1", "cuda:2"]), unique=True)


@given(DEVICES, DEVICES, DEVICES)
def test_every_lent_device_has_one_seat_and_none_moves_without_need(first, second, third):
    before = seated(seated((), first), second)
    after = seated(before, third)
    assert len(after) >= len(before) >= 1
    assert sorted(device for device in after if device != NO_DEVICE) == sorted(third)
    for old, new in zip(before, after, strict=False):
        assert new == old or old not in third
    assert NO_DEVICE not in after or len(after) == len(before) > len(third)


def test_a_seat_that_lost_its_device_takes_one_that_nobody_has():
    assert seated((), ()) == (NO_DEVICE,)
    assert seated((NO_DEVICE,), ["cuda:0", "cuda:1"]) == ("cuda:0", "cuda:1")
    assert seated(("cuda:0", "cuda:1"), ["cuda:1"]) == (NO_DEVICE, "cuda:1")
    assert seated((NO_DEVICE, "cuda:1"), ["cuda:1", "cpu"]) == ("cpu", "cuda:1")
