"""Orders in which llama.cpp's converter left rows that the library has in another.

Each function gives for every new row, as the library wants them, the number of the row in the file.
"""

import numpy as np

from molink.checkpoint.gguf.header import GgufTensor
from molink.importing.gguf.metadata import GgufModel


def rotary(model: GgufModel, tensor: GgufTensor) -> np.ndarray:
    """Rows of q or k with the halves of each head one above the other, which the file has in
    turns."""
    heads = model.heads if ".attn_q." in tensor.name else model.kv_heads
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise model.misfit(tensor, f"{rows} rows for {heads} heads")
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()


def heads_by_key(model: GgufModel, tensor: GgufTensor) -> np.ndarray:
    """Rows, or columns of the output, of the delta rule's heads of values: those that share a head
    of keys together, which the file has in turns."""
    count = tensor.shape[-1] if ".ssm_out." in tensor.name else tensor.shape[0]
    return _by_key(model, tensor, count)


def channels_by_key(model: GgufModel, tensor: GgufTensor) -> np.ndarray:
    """The same where rows of queries and keys are above those of values."""
    above = 2 * model.number("ssm.group_count") * model.number("ssm.state_size")
    below = _by_key(model, tensor, tensor.shape[0] - above)
    return np.concatenate([np.arange(above), above + below])


def _by_key(model: GgufModel, tensor: GgufTensor, count: int) -> np.ndarray:
    keys, values = model.number("ssm.group_count"), model.number("ssm.time_step_rank")
    if values % keys or count < 0 or count % values:
        what = f"{count} rows for {values} heads of values and {keys} of keys"
        raise model.misfit(tensor, what)
    order = np.arange(count).reshape(values // keys, keys, count // values)
    return order.swapaxes(0, 1).ravel()


def grouped_qkvz(model: GgufModel, tensor: GgufTensor) -> np.ndarray:
    """Rows of queries, keys, values and gates by heads of keys, from all of each kind below one
    another."""
    keys, size = model.number("ssm.group_count"), model.number("ssm.state_size")
    values = model.number("ssm.inner_size")
    counts = (keys * size, keys * size, values, values)
    starts = np.cumsum((0, *counts[:-1]))
    kinds = [
        start + np.arange(one).reshape(keys, -1) for start, one in zip(starts, counts, strict=True)
    ]
    return np.concatenate(kinds, 1).ravel()
