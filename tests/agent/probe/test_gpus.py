"""What the driver says, and what it keeps to itself."""

import pytest

from molink_agent.probe.gpus import NO_DRIVER, GpuProbe, visible_cards
from tests.agent.probe.fake_nvml import GIB, FakeCard, FakeNvml

OURS = frozenset({100})


def others(card: FakeCard, own: frozenset[int] = OURS, *, wsl: bool = False) -> float | None:
    return GpuProbe(FakeNvml([card]), wsl=wsl).read(own).gpus[0].others_percent


def test_a_pc_without_a_driver_has_no_gpu_and_says_why():
    report = GpuProbe(FakeNvml(missing=True)).read()
    assert report.gpus == ()
    assert report.reason == NO_DRIVER


def test_the_real_library_on_this_machine_never_raises():
    report = GpuProbe().read()
    assert report.gpus or report.reason


def test_a_card_is_described():
    nvml = FakeNvml([FakeCard(running={100: GIB, 7: 2 * GIB})])
    report = GpuProbe(nvml).read(OURS)
    (gpu,) = report.gpus
    assert (report.driver, report.cuda) == ("570.86.10", (12, 8))
    assert (gpu.name, gpu.memory_bytes, gpu.free_bytes) == (
        "NVIDIA GeForce RTX 3060",
        12 * GIB,
        10 * GIB,
    )
    assert gpu.own_bytes == GIB


def test_a_card_that_does_not_answer_leaves_the_others():
    nvml = FakeNvml([FakeCard(refuses=frozenset({"memory"})), FakeCard()])
    report = GpuProbe(nvml).read()
    assert [gpu.index for gpu in report.gpus] == [1]
    assert "GPU 0" in report.reason


def test_a_driver_that_comes_later_is_found():
    nvml = FakeNvml([FakeCard()], missing=True)
    probe = GpuProbe(nvml)
    assert not probe.read().gpus
    nvml.missing = False
    assert probe.read().gpus


def test_the_library_is_opened_once_and_let_go():
    nvml = FakeNvml([FakeCard()])
    probe = GpuProbe(nvml)
    probe.read()
    probe.read()
    assert nvml.opened == 1
    probe.close()
    probe.close()
    assert nvml.opened == 0


def test_only_the_work_of_others_counts():
    card = FakeCard(running={100: GIB, 7: GIB}, samples=[(100, 90, 5), (7, 40, 5), (7, 20, 6)])
    assert others(card) == 30


def test_samples_are_counted_once():
    card = FakeCard(running={100: GIB}, samples=[(7, 40, 5)])
    probe = GpuProbe(FakeNvml([card]))
    assert probe.read(OURS).others_percent == 40
    assert probe.read(OURS).others_percent == 0


def test_absurd_samples_are_left_out():
    assert others(FakeCard(running={100: GIB}, samples=[(7, 4_000_000_000, 5)])) == 0


def test_without_samples_all_use_is_others_while_we_have_no_process_there():
    silent = FakeCard(percent=55, refuses=frozenset({"samples"}))
    assert others(silent, frozenset()) == 55
    assert others(silent) is None


def test_in_a_container_our_own_work_is_not_taken_for_others():
    card = FakeCard(running={31_000: GIB}, samples=[(31_000, 90, 5)])
    assert others(card) is None


def test_wsl_is_not_believed():
    assert others(FakeCard(percent=0), frozenset(), wsl=True) is None


def test_a_driver_that_tells_nothing_but_memory_is_enough():
    refuses = frozenset({"samples", "percent", "running"})
    (gpu,) = GpuProbe(FakeNvml([FakeCard(refuses=refuses)])).read(OURS).gpus
    assert (gpu.free_bytes, gpu.others_percent) == (10 * GIB, None)


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
