"""Each check, over PCs that never were: how it judges, and that it says what to do."""

from dataclasses import replace

import pytest

from molink.control.messages.base import ModelSize
from molink.control.messages.payloads import Profile
from molink.control.versions import Protocols, own_protocols
from molink_agent.data_files import Known
from molink_agent.doctor import hardware, network
from molink_agent.doctor.facts import ClockFacts, DoctorFacts, PortTrial, Result, TorchAnswer
from molink_agent.doctor.hardware import contribution
from molink_agent.doctor.report import CHECKS, examine
from molink_agent.limits.limits import OwnerLimits
from molink_agent.network.nat import NatAnswer, NatKind
from molink_agent.probe.gpus import NO_DRIVER, DriverGpu, GpuReport
from molink_agent.probe.input_idle import InputIdle
from molink_agent.probe.machine import Wsl
from molink_scheduler.units import GB, GIB
from tests.agent.pcs import CARD, ONE_CARD, pc

NO_GPU = GpuReport(reason=NO_DRIVER)
TORCH = TorchAnswer("2.9.0", "12.8", ("RTX 3060",))
KNOWN = Known(broker_host="198.51.100.2", broker_port=1883, coordinator_url="http://198.51.100.2")

GOOD = DoctorFacts(machine=pc(), gpus=ONE_CARD, torch=TORCH, port=PortTrial(0))


def test_what_is_computed_the_library_s_way_is_told():
    sentence = "model.layers.3 is computed the library's way: is off by 1.0e-01 of row 2"
    assert judged(hardware.swaps) is Result.OK
    assert judged(hardware.swaps, swaps=(sentence,)) is Result.WARN
    assert sentence in found(hardware.swaps, swaps=(sentence,))


def profile(upload_mbps: float) -> Profile:
    return Profile(
        devices=(),
        cpu_threads=1,
        memory_bytes=1,
        disk_free_bytes=1,
        upload_mbps=upload_mbps,
        download_mbps=0,
    )


def judged(check, **changes) -> Result:
    finding = check(replace(GOOD, **changes))
    must_say = finding.result in (Result.WARN, Result.FAIL)
    assert bool(finding.remedy) == must_say, finding
    assert finding.found
    return finding.result


def found(check, **changes) -> str:
    finding = check(replace(GOOD, **changes))
    return f"{finding.found} {finding.remedy}"


def test_a_good_pc_that_has_not_joined_fails_nothing():
    results = {one.check: one.result for one in examine(GOOD)}
    assert len(results) == len(CHECKS)
    assert set(results.values()) == {Result.OK, Result.SKIP}


@pytest.mark.parametrize(
    "changes, result",
    [
        ({}, Result.OK),
        ({"gpus": NO_GPU}, Result.WARN),
        ({"gpus": NO_GPU, "limits": OwnerLimits(device="cpu")}, Result.OK),
        ({"gpus": NO_GPU, "limits": OwnerLimits(device="cuda:0")}, Result.FAIL),
        ({"torch": replace(TORCH, cuda="13.0")}, Result.FAIL),
        ({"torch": replace(TORCH, cuda="12.9")}, Result.OK),
        ({"torch": replace(TORCH, cuda="")}, Result.OK),
    ],
)
def test_driver(changes, result):
    assert judged(hardware.driver, **changes) is result


def test_a_build_that_the_coordinator_does_not_understand_is_told_what_to_update():
    number = own_protocols().newest
    assert f"1.2.3, protocol {number}" in found(hardware.molink, version="1.2.3")
    known = Known(speaks=Protocols(number + 1, number + 2))
    assert judged(hardware.molink, known=known) is Result.FAIL
    assert "update MoLink on that PC" in found(hardware.molink, known=known)
    known = Known.model_validate_json(Known(speaks=own_protocols()).model_dump_json())
    assert judged(hardware.molink, known=known) is Result.OK


def test_under_wsl_the_driver_belongs_to_windows():
    assert "on Windows" in found(hardware.driver, gpus=NO_GPU, wsl=Wsl(2, "mirrored"))
    old = found(hardware.driver, torch=replace(TORCH, cuda="13.0"), wsl=Wsl(2, "mirrored"))
    assert "on Windows" in old


@pytest.mark.parametrize(
    "changes, result",
    [
        ({}, Result.OK),
        ({"torch": TorchAnswer(problem="torch cannot be imported")}, Result.FAIL),
        ({"torch": TorchAnswer("2.9.0+cpu")}, Result.FAIL),
        ({"torch": replace(TORCH, kernel_problem="there is no C compiler")}, Result.WARN),
        ({"torch": replace(TORCH, pinning_problem="out of memory")}, Result.WARN),
        ({"torch": replace(TORCH, graph_problem="nothing can be recorded")}, Result.WARN),
        ({"torch": TorchAnswer("2.9.0+cpu"), "gpus": NO_GPU}, Result.OK),
        ({"torch": TorchAnswer("2.9.0+cpu"), "limits": OwnerLimits(device="cpu")}, Result.OK),
        ({"torch": replace(TORCH, gpus=(), problem="no kernel image")}, Result.FAIL),
    ],
)
def test_torch(changes, result):
    assert judged(hardware.torch, **changes) is result


def test_a_card_that_waits_for_copies_is_told_of_memory():
    facts = replace(GOOD, torch=replace(TORCH, pinning_problem="out of memory"))
    assert "can be pinned (out of memory)" in hardware.torch(facts).found
    assert ".wslconfig" not in hardware.torch(facts).remedy
    assert ".wslconfig" in hardware.torch(replace(facts, wsl=Wsl(2, "mirrored"))).remedy


RTX_50 = GpuReport((replace(CARD, name="RTX 5070", capability=(12, 0)),), "575.51", (12, 9))
OLD_TORCH = replace(TORCH, cuda="12.6", architectures=("sm_50", "sm_86", "sm_90"))


def test_a_card_that_torch_has_no_code_for_is_told_what_to_install():
    facts = replace(GOOD, gpus=RTX_50, torch=OLD_TORCH)
    assert hardware.torch(facts).result is Result.FAIL
    told = hardware.unusable_cards(facts)
    assert "has no code for RTX 5070 (capability 12.0). Update the NVIDIA driver to 580" in told
    newer = replace(facts, gpus=replace(RTX_50, driver="580.65"))
    assert "Install torch's build for CUDA 13" in hardware.unusable_cards(newer)
    assert hardware.unusable_cards(replace(facts, limits=OwnerLimits(device="cpu"))) == ""
    assert hardware.unusable_cards(GOOD) == ""


@pytest.mark.parametrize(
    "changes, result, says",
    [
        ({}, Result.OK, "cuda:0: 9.0 GB of 12.9 GB"),
        ({"limits": OwnerLimits(vram_bytes=GB)}, Result.WARN, "set vram_gb 2"),
        ({"gpus": GpuReport((replace(CARD, free_bytes=GB),))}, Result.WARN, "Close programs"),
        ({"gpus": NO_GPU}, Result.OK, "cpu: 19.5 GB of 34.4 GB"),
        ({"gpus": NO_GPU, "limits": OwnerLimits(memory_bytes=GB)}, Result.WARN, "set memory_gb 2"),
        ({"limits": OwnerLimits(device="cuda:3")}, Result.FAIL, "set device auto"),
    ],
)
def test_vram(changes, result, says):
    assert judged(hardware.vram, **changes) is result
    assert says in found(hardware.vram, **changes)


@pytest.mark.parametrize(
    "wsl, result",
    [
        (None, Result.OK),
        (Wsl(2, "mirrored"), Result.OK),
        (Wsl(2, "nat"), Result.WARN),
        (Wsl(2, "virtioproxy"), Result.WARN),
        (Wsl(2, "unknown"), Result.WARN),
        (Wsl(2, "none"), Result.FAIL),
        (Wsl(1, "unknown"), Result.FAIL),
    ],
)
def test_wsl(wsl, result):
    assert judged(hardware.wsl, wsl=wsl) is result


@pytest.mark.parametrize(
    "changes, result, says",
    [
        ({}, Result.OK, "212.7 GB to lend"),
        ({"machine": pc(disk_free_bytes=12 * GB)}, Result.WARN, "Free some"),
        ({"limits": OwnerLimits(disk_bytes=5 * GB)}, Result.WARN, "set disk_gb 20"),
        ({"machine": pc(disk_free_bytes=2 * GB)}, Result.FAIL, "Free some"),
    ],
)
def test_disk(changes, result, says):
    assert judged(hardware.disk, **changes) is result
    assert says in found(hardware.disk, **changes)


def test_limits_that_cannot_be_read_fail():
    assert judged(hardware.limits) is Result.OK
    assert judged(hardware.limits, limits_problem="limits.toml: ...") is Result.FAIL


@pytest.mark.parametrize(
    "changes, result",
    [
        ({}, Result.SKIP),
        ({"limits": OwnerLimits(only_when_idle_minutes=5)}, Result.FAIL),
        (
            {
                "limits": OwnerLimits(only_when_idle_minutes=5),
                "input_idle": InputIdle(3.0, "GNOME"),
            },
            Result.OK,
        ),
    ],
)
def test_idle(changes, result):
    assert judged(hardware.idle, **changes) is result


@pytest.mark.parametrize(
    "clock, result",
    [
        (ClockFacts(offset_s=0.4), Result.OK),
        (ClockFacts(offset_s=-300), Result.WARN),
        (ClockFacts(offset_s=7200), Result.FAIL),
        (ClockFacts(synchronized=True), Result.OK),
        (ClockFacts(synchronized=False), Result.WARN),
        (ClockFacts(), Result.SKIP),
    ],
)
def test_clock(clock, result):
    assert judged(network.clock, clock=clock) is result


def test_broker():
    assert judged(network.broker) is Result.SKIP
    assert found(network.broker) == "not joined yet "
    assert judged(network.broker, known=KNOWN) is Result.OK
    assert judged(network.broker, known=KNOWN, broker_problem="Connection refused") is Result.FAIL
    assert "198.51.100.2:1883: Connection refused" in found(
        network.broker, known=KNOWN, broker_problem="Connection refused"
    )


@pytest.mark.parametrize(
    "changes, result",
    [
        ({}, Result.OK),
        ({"port": PortTrial(7000, "Address already in use")}, Result.FAIL),
        ({"port": PortTrial(7000, "Address already in use", agent_runs=True)}, Result.OK),
        ({"port": PortTrial(7000, "in use"), "limits": OwnerLimits(direct=False)}, Result.OK),
    ],
)
def test_data_port(changes, result):
    assert judged(network.data_port, **changes) is result


@pytest.mark.parametrize(
    "kind, result",
    [
        (NatKind.OPEN, Result.OK),
        (NatKind.CONE, Result.OK),
        (NatKind.SYMMETRIC, Result.WARN),
        (NatKind.BLOCKED, Result.WARN),
        (NatKind.UNKNOWN, Result.WARN),
    ],
)
def test_nat(kind, result):
    assert judged(network.nat, nat=NatAnswer(kind, ("203.0.113.7", 6000)), known=KNOWN) is result


def test_packets():
    """Small ones pass and large ones do not: the owner reads why, and what to type."""
    assert judged(network.packets, known=KNOWN, large_packets_pass=True) is Result.OK
    assert judged(network.packets, known=KNOWN, large_packets_pass=False) is Result.FAIL
    assert "small packets pass, large ones do not (MTU)" in found(
        network.packets, known=KNOWN, large_packets_pass=False
    )
    assert judged(network.packets) is Result.SKIP


def test_nat_without_somebody_to_ask():
    assert "not joined" in found(network.nat)
    assert "not told yet" in found(network.nat, known=KNOWN)


@pytest.mark.parametrize(
    "mbps, cap, result, says",
    [
        (None, None, Result.SKIP, "not measured"),
        (0, None, Result.SKIP, "not measured"),
        (40, None, Result.OK, "40.0 Mbit/s"),
        (40, 10, Result.OK, "10 Mbit/s, the owner's cap"),
        (40, 2, Result.WARN, "raise upload_mbps"),
        (3, None, Result.WARN, "3.0 Mbit/s"),
    ],
)
def test_upload(mbps, cap, result, says):
    known = KNOWN.model_copy(update={"profile": None if mbps is None else profile(mbps)})
    changes = {"known": known, "limits": OwnerLimits(upload_mbps=cap)}
    assert judged(network.upload, **changes) is result
    assert says in found(network.upload, **changes)


def test_contribution_before_joining_is_of_a_typical_model():
    assert found(contribution).startswith("about 15 of 32 layers of a typical 8B model (")


def test_contribution_is_of_the_cluster_s_model():
    model = ModelSize(name="demo", layers=12, layer_bytes=1_000_000)
    known = KNOWN.model_copy(update={"model": model})
    assert found(contribution, known=known) == "about 12 of 12 layers of demo "


def test_a_processor_without_bfloat16_holds_half_as_many():
    limits = OwnerLimits(device="cpu", memory_bytes=8 * GIB)
    assert "about 14 of 32" in found(contribution, limits=limits)
    slow = pc(multiplies_bfloat16=False)
    assert "about 7 of 32" in found(contribution, limits=limits, machine=slow)


def test_two_cards_hold_more_than_one():
    two = GpuReport((CARD, DriverGpu(1, "RTX", 12 * GIB, 5 * GIB)))
    assert "about 21 of 32" in found(contribution, gpus=two)


def test_the_disk_bounds_it_too():
    assert "about 2 of 32" in found(contribution, machine=pc(disk_free_bytes=3 * GB))


def test_limits_that_leave_nothing_fail():
    assert judged(contribution, limits=OwnerLimits(vram_bytes=0)) is Result.FAIL
    assert "raise it" in found(contribution, limits=OwnerLimits(vram_bytes=0)).lower()
    assert judged(contribution, limits=OwnerLimits(device="cuda:9")) is Result.FAIL
