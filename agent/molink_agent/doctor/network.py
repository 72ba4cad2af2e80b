"""Checks of what connects the PC to the others: clock, broker, data port, NAT, upload."""

from molink_agent.doctor.facts import DoctorFacts, Finding, fail, ok, skip, warn
from molink_agent.network.nat import NatKind
from molink_agent.probe.clock import HOUR_S, clock_trouble

NOT_JOINED = "not joined yet"

UPLOAD_USEFUL_MBPS = 5.0
"""A decode step of 16 users in an 8B model is 128 KB a hop: 0.2 s at 5 Mbit/s, at the edge of what
reading speed bears."""

NAT_FOUND = {
    NatKind.OPEN: "none",
    NatKind.CONE: "the same outside port for everybody",
    NatKind.SYMMETRIC: "another outside port for each neighbour",
    NatKind.BLOCKED: "UDP is blocked: the kind of NAT cannot be told",
    NatKind.UNKNOWN: "unknown",
}

FORWARD = "Switch UPnP on in the router, or forward the data port there; else the relay carries it."


def clock(facts: DoctorFacts) -> Finding:
    """Does the PC's time agree with the coordinator's?"""
    offset_s = facts.clock.offset_s
    if offset_s is None:
        return _clock_alone(facts)
    trouble = clock_trouble(offset_s)
    if trouble is None:
        return ok("clock", f"{abs(offset_s):.1f} s off the coordinator's")
    found, _, remedy = trouble.partition(": ")
    result = fail if abs(offset_s) >= HOUR_S else warn
    return result("clock", found, remedy[:1].upper() + remedy[1:])


def _clock_alone(facts: DoctorFacts) -> Finding:
    why = "the coordinator did not tell its time" if facts.joined else NOT_JOINED
    if facts.clock.synchronized is False:
        remedy = "`sudo timedatectl set-ntp true`"
        return warn("clock", f"not set by the network; {why}", remedy)
    if facts.clock.synchronized:
        return ok("clock", f"set by the network; {why}")
    return skip("clock", f"cannot be compared: {why}")


def broker(facts: DoctorFacts) -> Finding:
    """Is the coordinator's broker there?"""
    if not facts.joined:
        return skip("broker", NOT_JOINED)
    address = f"{facts.known.broker_host}:{facts.known.broker_port}"
    if not facts.broker_problem:
        return ok("broker", f"{address} answers")
    return fail(
        "broker",
        f"{address}: {facts.broker_problem}",
        "Check this PC's network, then ask the operator whether the coordinator runs.",
    )


def packets(facts: DoctorFacts) -> Finding:
    """Do packets of full size pass?"""
    if facts.large_packets_pass is None:
        return skip("packets", "the coordinator does not answer" if facts.joined else NOT_JOINED)
    if facts.large_packets_pass:
        return ok("packets", "small and large ones pass")
    return fail(
        "packets",
        "small packets pass, large ones do not (MTU)",
        "A VPN or tunnel on the way takes less than this PC believes: "
        "`sudo ip link set dev DEVICE mtu 1280`.",
    )


def data_port(facts: DoctorFacts) -> Finding:
    """Can neighbours be listened to?"""
    trial = facts.port
    name = str(trial.port) if trial.port else "any free port"
    if not facts.limits.direct:
        return ok("data port", "not needed: direct = false, all links are relayed")
    if trial.agent_runs and trial.port:
        return ok("data port", f"{name}, held by the agent that runs")
    if not trial.problem:
        return ok("data port", f"{name} can be opened")
    return fail(
        "data port",
        f"{name}: {trial.problem}",
        "End the program that holds it, or start the agent with another port.",
    )


def nat(facts: DoctorFacts) -> Finding:
    """What kind of router stands in between?"""
    if facts.nat is None:
        return skip("NAT", NOT_JOINED if not facts.joined else "not told yet by the coordinator")
    kind, outside = facts.nat.kind, facts.nat.outside
    found = NAT_FOUND[kind] + (f", seen as {outside[0]}" if outside else "")
    return ok("NAT", found) if kind in (NatKind.OPEN, NatKind.CONE) else warn("NAT", found, FORWARD)


def upload(facts: DoctorFacts) -> Finding:
    """How much can the PC send?"""
    profile, cap = facts.known.profile, facts.limits.upload_mbps
    if profile is None or profile.upload_mbps == 0:
        why = "the agent is about to" if facts.joined else "the agent does it once joined"
        return skip("upload", f"not measured: {why}")
    found = f"{profile.upload_mbps:.1f} Mbit/s"
    if cap is not None and cap <= profile.upload_mbps:
        found = f"{cap:g} Mbit/s, the owner's cap"
    if min(profile.upload_mbps, cap or profile.upload_mbps) >= UPLOAD_USEFUL_MBPS:
        return ok("upload", found)
    remedy = "Use a cable instead of Wi-Fi, end other uploads, or raise upload_mbps."
    return warn("upload", found, remedy)
