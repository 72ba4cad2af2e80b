"""Tests of what only a card can tell. Without one they run in small on the CPU, so that they are
known to run; `make gpu` runs them with the experiments."""

import pytest
import torch

from tests.gpu.device import DEVICE


@pytest.fixture
def device() -> torch.device:
    return DEVICE
