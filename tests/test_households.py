"""A household is counted once, however many addresses it has."""

import pytest

from molink.households import household_of


@pytest.mark.parametrize(
    ("peer", "counted_as"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_a_household_is_one_address(peer, counted_as):
    assert household_of(peer) == counted_as
