"""One thread for every test that computes."""

import torch

torch.set_num_threads(1)
