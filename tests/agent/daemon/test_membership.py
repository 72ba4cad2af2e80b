"""Joining when nobody answers: the sentence names the reason in words."""

import pytest

from molink.control.identity import KeyPair
from molink.control.messages.invites import Invite
from molink.errors import UserError
from molink_agent.daemon.membership import forget_membership, join_cluster, load_membership


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9", r"\(Connection refused\)"),
        ("http://name.invalid:8000", r"\(its name is not known\)"),
    ],
)
async def test_a_coordinator_out_of_reach_is_named_with_the_reason(tmp_path, url, why):
    pair = KeyPair.generate()
    with pytest.raises(UserError, match=why):
        await join_cluster(Invite.make(url, pair.public), pair, "attic", tmp_path)
    assert load_membership(tmp_path) is None


def test_a_membership_that_is_not_there_can_be_forgotten(tmp_path):
    forget_membership(tmp_path)
    assert load_membership(tmp_path) is None
