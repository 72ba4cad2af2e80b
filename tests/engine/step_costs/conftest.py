"""Launches of kernels of ours on the meta device, where nothing can be launched."""

import pytest

from molink.engine.layers import attention_choice
from tests.engine.step_costs.dispatched import OperationCount


@pytest.fixture
def counting(monkeypatch) -> OperationCount:
    """A count of operations in which a launch of ours is one."""
    pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")
    from molink.engine.kernels.cuda import fused, ragged_attention

    count = OperationCount()

    def launched(kernel, grid):
        assert all(grid), "an empty grid is no launch"
        return lambda *args, **constants: count.by_name.update([kernel.fn.__name__])

    monkeypatch.setattr(ragged_attention, "launched", launched)
    monkeypatch.setattr(fused, "launched", launched)
    monkeypatch.setattr(attention_choice, "_difference", lambda *kind: None)
    return count
