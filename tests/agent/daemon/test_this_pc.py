"""What the coordinator is told: within its bounds, whatever the drivers say."""

from molink.control.messages.payloads import PathMeasured, PathReport, Profile
from molink_agent.daemon.this_pc import Measured, compose_profile
from molink_agent.limits.lent import Lent
from molink_agent.limits.limits import OwnerLimits
from molink_agent.network.prober import CoordinatorPath
from molink_scheduler.units import GB
from tests.agent.daemon.agents import agent_with_two_nodes
from tests.agent.pcs import pc

CARD = Lent("cuda:1", "RTX 3060", 12 * GB, 6 * GB, "vram_gb")
CPU = Lent("cpu", "Ryzen", 32 * GB, 8 * GB, "memory_gb", threads=4)


def test_devices_are_what_is_lent():
    profile = compose_profile(OwnerLimits(), pc(), (CARD, CPU), Measured())
    first, second = profile.devices
    assert (first.kind, first.index, first.free_bytes) == ("cuda", 1, 6 * GB)
    assert (second.kind, second.index, second.threads) == ("cpu", 0, 4)


def test_the_cap_on_upload_is_what_may_be_counted_on():
    measured = Measured(upload_mbps=40, download_mbps=200, coordinator_rtt_ms=12)
    capped = compose_profile(OwnerLimits(upload_mbps=10), pc(), (CPU,), measured)
    assert (capped.upload_mbps, capped.upload_cap_mbps) == (10, 10)
    free = compose_profile(OwnerLimits(), pc(), (CPU,), measured)
    assert (free.upload_mbps, free.upload_cap_mbps) == (40, None)


def test_whoever_is_not_to_be_reached_names_no_address():
    measured = Measured(addresses=("203.0.113.7:9000",))
    assert compose_profile(OwnerLimits(), pc(), (CPU,), measured).addresses
    hidden = compose_profile(OwnerLimits(direct=False), pc(), (CPU,), measured)
    assert (hidden.addresses, hidden.direct) == ((), False)


def test_absurd_values_are_cut_before_they_are_sent():
    loud = Lent("cpu", "x" * 300, 32 * GB, 8 * GB, "memory_gb", threads=99_999)
    measured = Measured(upload_mbps=1e9, download_mbps=1e9, coordinator_rtt_ms=1e9)
    profile = compose_profile(OwnerLimits(), pc(), (loud,) * 20, measured, disk_bytes=5 * GB)
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
    assert (len(profile.devices), len(profile.devices[0].name)) == (16, 100)
    assert profile.disk_free_bytes == 5 * GB


def test_the_path_to_another_device_tells_nothing_of_the_line(tmp_path):
    agent = agent_with_two_nodes(tmp_path)
    second, other = agent.nodes[1].session.node_id, "z" * 16
    paths = [
        PathMeasured(to=to, path="direct", rtt_ms=1, rate_mbps=rate)
        for to, rate in ((second, 9000), (other, 20))
    ]
    own = {agent.first.session.node_id, second}
    agent.pc.paths_measured(PathReport(round=1, paths=paths[:1]), None, own)
    assert agent.pc.measured.upload_mbps == 0
    agent.pc.paths_measured(PathReport(round=1, paths=paths), None, own)
    assert agent.pc.measured.upload_mbps == 20
    agent.pc.paths_measured(PathReport(round=1, paths=()), CoordinatorPath(0.01, 5e6, 0.0), own)
    assert agent.pc.measured.upload_mbps == 40
