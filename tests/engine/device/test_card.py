"""What is asked of torch and of the driver about a card, by stand-ins for both."""

import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pynvml
import pytest
import torch

from molink.engine.device import card as module
from molink.engine.device.card import Card, card_of, processes_beside
from tests.engine.device.stand_in import GB

CARD = Card(torch.device("cuda", 1))
UUID = "6f4b1a9e-0000-4000-8000-000000000001"


class Driver:
    """NVML of one card: memory by process, of those that compute and of those that draw."""

    NVMLError = pynvml.NVMLError

    def __init__(self, computing=None, drawing=None, version="580.65.06", error=None) -> None:
        self.lists = {"Compute": computing or {}, "Graphics": drawing or {}}
        self.version, self.error, self.asked = version, error, []

    def nvmlInit(self) -> None:
        if self.error is not None:
            raise pynvml.NVMLError(self.error)

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.version

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list:
        return self._running("Compute")

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list:
        return self._running("Graphics")

    def _running(self, kind: str) -> list:
        held = self.lists[kind].items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held]


@pytest.fixture
def driven(monkeypatch):
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def by(driver: Driver) -> Driver:
        monkeypatch.setattr(module, "pynvml", driver)
        return driver

    return by


@pytest.mark.parametrize(
    ("computing", "drawing", "held"),
    [
        ({7: GB}, {8: 2 * GB}, {7: GB, 8: 2 * GB}),
        ({7: GB}, {7: GB}, {7: GB}),  # A game that computes too.
        ({7: None}, {8: GB}, None),  # WSL and some GeForce drivers name it and do not tell.
        ({}, {}, {}),
    ],
)
def test_memory_is_told_by_process(driven, computing, drawing, held):
    driver = driven(Driver(computing, drawing))
    assert CARD.bytes_by_process() == held
    assert driver.asked == [f"GPU-{UUID}"]


def test_a_driver_that_does_not_answer_tells_nothing(driven):
    driven(Driver(error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert CARD.bytes_by_process() is None and CARD.driver is None


@pytest.mark.parametrize(("version", "number"), [("580.65.06", 580), ("575", 575), ("?", None)])
def test_the_driver_s_number(driven, version, number):
    driven(Driver(version=version))
    assert CARD.driver == number


@pytest.mark.parametrize(("most", "share"), [(6 * GB, 0.5), (24 * GB, 1.0), (-GB, 0.0)])
def test_a_process_is_held_to_a_share_of_its_card(monkeypatch, most, share):
    held = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GB, 12 * GB))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *said: held.append(said)
    )
    assert (CARD.free_bytes, CARD.total_bytes) == (GB, 12 * GB)
    CARD.hold_to(most)
    assert held == [(share, CARD.device)]


def test_emulated_bfloat16_does_not_count(monkeypatch):
    asked = []

    def supported(including_emulation=True):
        asked.append(including_emulation)
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    assert not CARD.multiplies_bfloat16
    assert asked == [False]


def test_why_there_is_no_card(monkeypatch):
    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old (found 11040).\nSee https:")

    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in CARD.why_none
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    assert CARD.why_none == "The NVIDIA driver on your system is too old (found 11040)"


def test_only_a_cuda_device_is_a_card():
    assert card_of(torch.device("cpu")) is None
    assert card_of(CARD.device) == CARD


def test_stages_beside_are_those_of_the_same_parent():
    assert os.getpid() in processes_beside()
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        script = f"from {module.__name__} import *; print({sleeper.pid} in processes_beside())"
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert said.stdout.strip() == "True"
    finally:
        sleeper.communicate(b"\n")


def test_the_second_card_is_made_the_process_s_own(monkeypatch):
    selected = []
    monkeypatch.setattr(torch.cuda, "set_device", selected.append)
    CARD.select()
    assert selected == [torch.device("cuda", 1)]
