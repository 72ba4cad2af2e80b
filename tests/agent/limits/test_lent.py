"""How much of each device is lent: the least of the cap and of what is free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.base import ModelSize
from molink.hardware.card_memory import kept_free_bytes
from molink.hardware.host import MEMORY_RESERVE_BYTES_MAX
from molink_agent.limits.lent import (
    BESIDE_STAGE_BYTES,
    DISK_RESERVE_BYTES,
    lent_cache,
    lent_devices,
    lent_disk_bytes,
    lent_threads,
    nothing_left,
)
from molink_agent.limits.limits import OwnerLimits
from molink_agent.probe.gpus import DriverGpu, GpuReport
from molink_scheduler.units import GB
from tests.agent.pcs import CARD, ONE_CARD, pc

NO_GPU = GpuReport(reason="none")
CAPS = st.one_of(st.none(), st.integers(0, 64 * GB))
SIZES = st.integers(0, 64 * GB)


FREE_OF_CARD = CARD.free_bytes - kept_free_bytes(CARD.memory_bytes)


def test_a_card_is_lent_but_a_reserve_and_what_a_process_takes():
    (lent,) = lent_devices(OwnerLimits(), pc(), ONE_CARD)
    assert (lent.device, lent.lent_bytes) == ("cuda:0", FREE_OF_CARD - BESIDE_STAGE_BYTES)
    assert lent.bound_by == "free memory"


@pytest.mark.parametrize("times", [1, 2, 5, 100])
def test_a_card_that_was_full_is_lent_less_of(times):
    def lent(device: str):
        return lent_devices(OwnerLimits(), pc(), ONE_CARD, None, {device: times})[0].lent_bytes

    less = int(min(times, 5) * 0.1 * CARD.memory_bytes)
    assert lent("cuda:0") == FREE_OF_CARD - BESIDE_STAGE_BYTES - less
    assert lent("cuda:1") == FREE_OF_CARD - BESIDE_STAGE_BYTES


def test_the_owner_s_cap_decides_where_it_is_less():
    (lent,) = lent_devices(OwnerLimits(vram_bytes=6 * GB), pc(), ONE_CARD)
    assert (lent.lent_bytes, lent.bound_by) == (6 * GB - BESIDE_STAGE_BYTES, "vram_gb")
    (lent,) = lent_devices(OwnerLimits(memory_bytes=2 * GB), pc(), NO_GPU)
    assert (lent.device, lent.lent_bytes, lent.bound_by) == ("cpu", 2 * GB, "memory_gb")


def test_what_our_stage_holds_counts_as_free():
    full = GpuReport((DriverGpu(0, "RTX", 12 * GB, GB),))
    (lent,) = lent_devices(OwnerLimits(vram_bytes=6 * GB), pc(), full, {"cuda:0": 9 * GB})
    assert lent.lent_bytes == 6 * GB - BESIDE_STAGE_BYTES
    (lent,) = lent_devices(OwnerLimits(), pc(memory_available_bytes=GB), NO_GPU, {"cpu": 5 * GB})
    assert lent.lent_bytes == 6 * GB - MEMORY_RESERVE_BYTES_MAX


@pytest.mark.parametrize(
    "device, found",
    [("auto", ["cuda:0", "cuda:1"]), ("cpu", ["cpu"]), ("cuda:1", ["cuda:1"]), ("cuda:2", [])],
)
def test_the_owner_chooses_the_device(device, found):
    two = GpuReport((CARD, DriverGpu(1, "RTX", 8 * GB, 8 * GB)))
    lent = lent_devices(OwnerLimits(device=device), pc(), two)
    assert [one.device for one in lent] == found


@pytest.mark.parametrize(
    "device, found",
    [
        ("cuda:1,cpu", ["cuda:1", "cpu"]),
        ("cpu,cuda:0,cpu", ["cpu", "cuda:0", "cpu:1"]),
        ("cuda:2,cuda:1", ["cuda:1"]),
    ],
)
def test_several_devices_are_lent_in_the_owner_s_order(device, found):
    two = GpuReport((CARD, DriverGpu(1, "RTX", 8 * GB, 8 * GB)))
    lent = lent_devices(OwnerLimits(device=device), pc(), two)
    assert [one.device for one in lent] == found


def test_stages_that_share_the_cpu_share_memory_and_threads():
    limits = OwnerLimits(device="cpu,cpu,cpu", memory_bytes=6 * GB, threads=7)
    lent = lent_devices(limits, pc(), NO_GPU)
    assert [one.threads for one in lent] == [3, 2, 2]
    assert [one.lent_bytes for one in lent] == [2 * GB] * 3
    assert {one.computes_on for one in lent} == {"cpu"}
    assert len(lent_devices(OwnerLimits(device="cpu,cpu,cpu", threads=2), pc(), NO_GPU)) == 2


def test_what_one_of_them_holds_is_not_taken_from_the_others():
    machine = pc(memory_available_bytes=12 * GB)
    before = lent_devices(OwnerLimits(device="cpu,cpu"), machine, NO_GPU)
    loaded = pc(memory_available_bytes=8 * GB)
    after = lent_devices(OwnerLimits(device="cpu,cpu"), loaded, NO_GPU, {"cpu:1": 4 * GB})
    assert before == after and sum(one.lent_bytes for one in after) <= 12 * GB


def test_no_part_counts_on_what_another_holds():
    """One stage had the CPU for itself before it was divided."""
    machine = pc(memory_available_bytes=4 * GB)
    first, second = lent_devices(OwnerLimits(device="cpu,cpu"), machine, NO_GPU, {"cpu": 14 * GB})
    assert first.lent_bytes == 8 * GB and second.lent_bytes == 4 * GB - MEMORY_RESERVE_BYTES_MAX
    assert {first.bound_by, second.bound_by} == {"free memory"}


def test_half_of_the_processor_is_lent():
    assert lent_threads(OwnerLimits(), pc()) == 8
    assert lent_threads(OwnerLimits(), pc(cpu_threads=1)) == 1
    assert lent_threads(OwnerLimits(threads=64), pc()) == 16


def test_weights_that_are_there_count_as_room():
    assert lent_disk_bytes(OwnerLimits(), 10 * GB, 5 * GB) == 15 * GB - DISK_RESERVE_BYTES
    assert lent_disk_bytes(OwnerLimits(disk_bytes=4 * GB), 10 * GB, 5 * GB) == 4 * GB
    assert lent_disk_bytes(OwnerLimits(), GB, 0) == 0


def test_stages_share_what_is_lent_for_cached_kv(tmp_path):
    limits = OwnerLimits(cache_ram_bytes=2 * GB, cache_disk_bytes=6 * GB)
    room = lent_cache(limits, tmp_path, 2)
    assert (room.ram_bytes, room.disk_bytes) == (GB, 3 * GB)
    assert room.folder.startswith(str(tmp_path))


def test_main_memory_for_cached_kv_is_lent_as_far_as_it_is_idle_unless_its_owner_has_spoken(
    tmp_path,
):
    room = lent_cache(OwnerLimits(), tmp_path, 3)
    assert (room.ram_bytes, room.disk_bytes, room.stages) == (None, 0, 3)
    assert lent_cache(OwnerLimits(cache_ram_bytes=0), tmp_path, 1) is None
    assert lent_cache(OwnerLimits(memory_bytes=8 * GB), tmp_path, 1) is None
    both = lent_cache(OwnerLimits(memory_bytes=8 * GB, cache_ram_bytes=GB), tmp_path, 1)
    assert both.ram_bytes == GB


@given(CAPS, CAPS, SIZES, SIZES, SIZES)
def test_never_more_than_the_cap_the_device_or_what_is_free(vram, memory, free, available, own):
    limits = OwnerLimits(vram_bytes=vram, memory_bytes=memory)
    gpus = GpuReport((DriverGpu(0, "RTX", 64 * GB, free),))
    machine = pc(memory_bytes=64 * GB, memory_available_bytes=available)
    for device, cap, left in (("auto", vram, free), ("cpu", memory, available)):
        wanted = OwnerLimits(vram, memory, device=device)
        (lent,) = lent_devices(wanted, machine, gpus, {"cpu": own, "cuda:0": own})
        assert 0 <= lent.lent_bytes <= min(64 * GB, left + own)
        assert cap is None or lent.lent_bytes <= cap
    assert limits.vram_bytes == vram


def test_limits_that_leave_nothing_are_told():
    model = ModelSize(name="some-8b", layers=32, layer_bytes=436_224_000)

    def says(limits, machine=None, gpus=NO_GPU, disk=100 * GB, margin=1.0):
        lent = lent_devices(limits, machine or pc(), gpus)
        return nothing_left(limits, lent, disk, model, margin)

    assert says(OwnerLimits()) is None
    assert says(OwnerLimits(memory_bytes=100_000_000)) == (
        "memory_gb leaves 0.10 GB on cpu, but one layer of some-8b needs 0.44 GB: raise it."
    )
    assert "vram_gb leaves 0.00 GB" in says(OwnerLimits(vram_bytes=0), gpus=ONE_CARD)
    assert "close other programs" in says(OwnerLimits(), pc(memory_available_bytes=GB))
    assert "disk_gb" in says(OwnerLimits(), disk=GB // 4)
    assert "is not on this PC" in says(OwnerLimits(device="cuda:7"))
    assert says(OwnerLimits(memory_bytes=440_000_000)) is None
    assert "raise it" in says(OwnerLimits(memory_bytes=440_000_000), margin=1.1)
    slow = pc(multiplies_bfloat16=False)
    assert "one layer of some-8b needs 0.87 GB" in says(OwnerLimits(memory_bytes=500_000_000), slow)


@pytest.mark.parametrize(
    ("stored", "computed", "device", "held"),
    [(2, None, 2, 100), (2, None, 4, 200), (4, None, 4, 100), (4, 2, 4, 50), (2, 4, 2, 200)],
)
def test_a_layer_takes_as_much_as_its_numbers_do(stored, computed, device, held):
    model = ModelSize(
        name="m", layers=2, layer_bytes=100, element_bytes=stored, computed_bytes=computed
    )
    assert model.held_bytes(device) == held


def test_small_amounts_are_told_so_that_they_can_be_typed():
    model = ModelSize(name="demo", layers=12, layer_bytes=1_000_000)
    (lent,) = lent_devices(OwnerLimits(memory_bytes=250_000), pc(), NO_GPU)
    assert nothing_left(OwnerLimits(memory_bytes=250_000), (lent,), GB, model) == (
        "memory_gb leaves 0.00025 GB on cpu, but one layer of demo needs 0.001 GB: raise it."
    )
