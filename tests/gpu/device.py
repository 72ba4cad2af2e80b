"""The device of these tests: a card where there is one."""

import pytest
import torch

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

HAS_CARD = DEVICE.type == "cuda"

needs_card = pytest.mark.skipif(not HAS_CARD, reason="no card here")
