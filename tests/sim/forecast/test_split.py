"""Who takes how many layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.config.node_file import LENT_SHARE, ListedNode
from molink.errors import UserError
from molink_sim.forecast import split_layers
from molink_sim.forecast.split import KV_TOKENS_MIN
from molink_sim.hardware import gpu, known_gpus, model_shape


def pc(name, gpu_name, lent=LENT_SHARE):
    device = gpu(gpu_name)
    return ListedNode(name, 100, 100, 15, round(lent * device.memory_bytes), device)


def pcs(*names):
    return [pc(f"{number} {name}", name) for number, name in enumerate(names)]


def test_alike_pcs_share_evenly_but_for_the_tail_with_its_logits():
    head, middle, tail = split_layers(model_shape("qwen-7b"), pcs(*["rtx4090"] * 3))
    assert head.layers + middle.layers + tail.layers == 32
    assert head.layers - 1 <= middle.layers <= head.layers
    assert middle.layers - 4 <= tail.layers < middle.layers


def test_a_slow_pc_takes_less():
    fast, slow, _ = split_layers(model_shape("qwen-7b"), pcs("rtx4090", "rtx3060", "rtx4090"))
    assert fast.layers > 2 * slow.layers


def test_who_lends_less_takes_less():
    shape = model_shape("qwen-7b")
    all_of_it, half, _ = split_layers(shape, [pc(n, "rtx3060", n != "b" or 0.5) for n in "abc"])
    assert half.layers < all_of_it.layers
    assert half.weights_bytes + half.kv_tokens * half.layers * shape.kv_token_bytes <= 6 * 2**30


def test_what_does_not_fit_is_told_in_gigabytes():
    with pytest.raises(UserError, match=r"cannot hold qwen-7b: \d+ of its 32 layers, \d+\.\d GB"):
        split_layers(model_shape("qwen-7b"), pcs("rtx3060"))


def test_more_pcs_than_layers():
    with pytest.raises(UserError, match="leave 1 out"):
        split_layers(model_shape("qwen-7b"), pcs(*["rtx3060"] * 33))


@given(names=st.lists(st.sampled_from([n for n in known_gpus() if n != "cpu"]), max_size=8))
def test_every_layer_has_one_place_and_kv_beside_it(names):
    shape = model_shape("qwen-7b")
    try:
        shares = split_layers(shape, pcs("rtx4090", *names))
    except UserError:
        return
    assert sum(share.layers for share in shares) == shape.layers
    assert all(share.layers >= 1 and share.kv_tokens >= KV_TOKENS_MIN for share in shares)
