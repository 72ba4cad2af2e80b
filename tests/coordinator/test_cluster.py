"""A cluster put together: what it tells a PC that it has given."""

import time

from molink.control.identity import KeyPair
from molink.control.messages.joining import request_to_join
from molink.control.registry.registry import Registry
from molink.coordinator.cluster import given_by_pc
from molink.coordinator.nodes.node import Contribution
from molink.coordinator.reports.ledger import Ledger
from molink.report.nodes import ContributionReport


def test_what_a_pc_has_given_does_not_wait_until_its_devices_are_heard(tmp_path):
    """The agent takes a sum that falls for figures that were lost."""
    registry, ledger = Registry.open(tmp_path), Ledger.open(tmp_path)
    registry.url = "https://127.0.0.1:8003"
    invite = registry.make_invite(3600, 5, "", time.time())
    anna, ben = (
        registry.admit(KeyPair.generate().public, asked, time.time()).node
        for asked in (request_to_join(invite, name, "1", time.time()) for name in ("anna", "ben"))
    )
    with ledger.together():
        ledger.add(anna.node_id, "anna", Contribution(60.0, 7, 1000))
        ledger.add(ben.node_id, "ben", Contribution(1.0, 1, 1))
    given = given_by_pc(registry, ledger, anna.pc)
    assert given == ContributionReport(uptime_s=60, token_layers=7, bytes_sent=1000)
    ledger.close()
    registry.close()
