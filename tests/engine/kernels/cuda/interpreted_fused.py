"""Computes random cases of the fused operators, with the kernels in Triton's interpreter and with
torch, and a rewritten model in stages; the interpreter has to be chosen before Triton is imported:
so this is a process of its own.

    python -m tests.engine.kernels.cuda.interpreted_fused

Prints JSON: for each operator and format the largest difference, relative to the largest result;
the difference of the stages from the whole model, and how often each kernel was launched there.
"""

import json
import os
from collections import Counter

os.environ["TRITON_INTERPRET"] = "1"

import torch

from molink.engine.kernels.cuda import fused
from molink.engine.kernels.cuda.fused import TritonFused
from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.self_test import self_test
from tests.engine.model.test_cuda_rewriting import config_of, description_of
from tools.experiments.cards.fused_check import LIMITS, SMALL, Cases, check

SCHEDULE = (((0, 0, 2),), ((1, 0, 2), (0, 2, 3)))
"""Of the stages: (sequence, start, end). A program takes milliseconds."""


def stages(name):
    """Difference of a miniature's stages from the whole model, and the launches it took."""
    launches, launched = Counter(), fused.launched

    def counted(kernel, grid):
        launches[kernel.fn.__name__] += 1
        return launched(kernel, grid)

    fused.launched = counted
    config = config_of(name)
    self_test.SCHEDULE = SCHEDULE
    self_test.SEQUENCE_TOKENS = (3, 2)
    small = self_test._miniature(config, name)
    choice = FusedChoice(TritonFused())
    return self_test._largest_difference(small, description_of(config), choice), launches


def main():
    torch.set_num_threads(1)
    found = {}
    for dtype in LIMITS:
        differences = check(Cases(SMALL, dtype, torch.device("cpu")))
        found |= {
            f"{what} {str(dtype).removeprefix('torch.')}": d for what, d in differences.items()
        }
    print(json.dumps([found, *stages("gpt_oss")]))


if __name__ == "__main__":
    main()
