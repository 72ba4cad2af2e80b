"""Some hundred made inputs for every decoder, in `make sweeps` some thousand; `make fuzz` runs a
million of each.

Only what a target allows may be raised, and no more memory be held than it says.
"""

import tracemalloc
import zlib
from random import Random

import pytest

from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.sweeps import swept

INPUTS = (300, 2000)
"""For each decoder; the larger number takes minutes for all on a busy machine."""

MEASURED_MAX = 3
"""Times that too large an input is measured: threads of other tests take memory, too."""


@pytest.mark.parametrize("count", swept(INPUTS, of=1))
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_does_more_than_it_may(target: Target, count: int):
    random = Random(zlib.crc32(target.name.encode()))
    inputs = [*target.seeds, *(mutated(target, random) for _ in range(count))]
    tracemalloc.start()
    try:
        for data in inputs:
            peaks = (peak_bytes(target, data) for _ in range(MEASURED_MAX))
            assert any(peak <= target.memory_bytes for peak in peaks), data
    finally:
        tracemalloc.stop()


def peak_bytes(target: Target, data: bytes) -> int:
    """What is held at most while the target looks at an input."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        target.run(data)
    except target.allowed:
        pass
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} of {data!r}") from error
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_its_seeds_are_good_inputs(target: Target):
    """A decoder that refuses what it starts from is not fuzzed at all."""
    taken = 0
    for seed in target.seeds:
        try:
            target.run(seed)
            taken += 1
        except target.allowed:
            continue
    assert target.seeds and taken
