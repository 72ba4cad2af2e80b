"""Order of the files: those that take long come first, so that two workers end together.

Each worker takes the next whole file (`--dist loadfile`). Left to itself xdist sorts files by their
number of tests, and those that start real processes have few: they came last, one worker was done
and the other had a long file to itself.

What is collected stays until the end: nobody looks for garbage in it, neither meanwhile nor later,
which takes a fifth of the time that collecting takes.

No example has a deadline: how long one takes says more about the machine than about the code.

Torch computes with one thread, and none of them waits in a spin: the processors are shared with
other tests and with the processes that a test starts.

Every test draws the same random numbers each time, whichever ran before it on its worker, and
every property the same examples; `pytest --hypothesis-profile search` looks for others. What a
test before has made of the logs ends with it, too.
"""

import logging
import os
import random
import sys
import zlib

import pytest
from hypothesis import settings

from molink.quick_imports import quick_imports

THREADS = {"GOMP_SPINCOUNT": "0", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
for name, value in THREADS.items():
    os.environ.setdefault(name, value)

settings.register_profile("molink", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, derandomize=False)
settings.load_profile("molink")

LONG_FIRST = ("tests/end_to_end/", "tests/engine/")
"""Where single files take a minute; all others follow in their own order."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files, and leave what is in each as it is."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    with quick_imports():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what draws without a generator of its own, before the test's fixtures do, and end the
    handlers of logs that were left behind."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    root = logging.getLogger()
    root.handlers[:] = [one for one in root.handlers if type(one).__module__.startswith("_pytest")]
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
