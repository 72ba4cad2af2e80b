"""What a card is sent in one copy is what a CPU has as it is."""

import numpy as np
import torch

from molink.engine.device.streams import sent_together, uploaded

CPU = torch.device("cpu")


def test_one_copy_holds_all_arrays_in_their_formats_and_shapes():
    numbers = np.arange(12, dtype=np.int32).reshape(3, 4)
    arrays = [
        numbers[:, 1],
        np.array([1.5, -0.25]),
        numbers.T,
        np.zeros(0, np.int32),
        np.linspace(0, 1, 6).reshape(3, 2).T,
    ]
    for way in (sent_together, uploaded):
        tensors = way(arrays, CPU)
        assert [one.dtype for one in tensors] == [
            torch.int32,
            torch.float64,
            torch.int32,
            torch.int32,
            torch.float64,
        ]
        for tensor, array in zip(tensors, arrays, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_nothing_is_sent_as_nothing():
    assert uploaded([], CPU) == []
