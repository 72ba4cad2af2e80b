"""A rounded checkpoint is served as what its codes mean, and these are near the plain numbers."""

import json

import pytest
import torch
from safetensors.torch import load_file

from molink.errors import UserError
from molink.importing.plain_model import import_plain
from molink.importing.rounding import packed_words, round_to_4_bits, round_to_8_bits
from tests.engine.model.quantized.checkpoints import model_of
from tests.engine.model.quantized.test_stages import check
from tests.engine.tiny_models import save_tiny


def stored(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def unpacked(tensors, stem, group):
    """The matrix of a module, by the words of compressed-tensors."""
    if f"{stem}.weight_packed" not in tensors:
        return tensors[f"{stem}.weight"].float() * tensors[f"{stem}.weight_scale"].float()
    outputs, inputs = tensors[f"{stem}.weight_shape"].tolist()
    shifts = torch.arange(0, 32, 4)
    words, zeros = tensors[f"{stem}.weight_packed"], tensors[f"{stem}.weight_zero_point"]
    codes = ((words[..., None] >> shifts) & 15).flatten(1)[:, :inputs]
    zero = ((zeros.T[..., None] >> shifts) & 15).flatten(1).T[:outputs]
    columns = torch.arange(inputs) // group
    return tensors[f"{stem}.weight_scale"].float()[:, columns] * (codes - zero[:, columns])


def reference_of(plain_folder, folder, group):
    """The library's model of exactly what the new checkpoint says."""
    tensors = stored(folder)
    stems = {name.rsplit(".", 1)[0] for name in tensors if name.endswith(".weight_scale")}
    exact = {f"{stem}.weight": unpacked(tensors, stem, group) for stem in stems}
    parts = (".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape")
    plain = {name: value for name, value in tensors.items() if not name.endswith(parts)}
    for path in plain_folder.glob("*.safetensors*"):
        path.unlink()
    config = json.loads((plain_folder / "config.json").read_text())
    (plain_folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return model_of(plain_folder, {**plain, **exact})


def quiet(done, total):
    assert 0 < done <= total


@pytest.mark.parametrize("bits", ["int4", "int8"])
@pytest.mark.parametrize("name", ["llama", "tied_llama", "qwen3", "mixtral", "qwen3_moe"])
def test_stages_compute_what_the_codes_mean(name, bits, tmp_path):
    save_tiny(name, tmp_path / "plain")
    import_plain(tmp_path / "plain", tmp_path / "out", bits, 32, quiet)
    check(tmp_path / "out", reference_of(tmp_path / "plain", tmp_path / "out", 32))


def test_what_is_rounded_and_what_is_not(tmp_path):
    save_tiny("qwen3_moe", tmp_path / "plain", dtype="bfloat16")
    import_plain(tmp_path / "plain", tmp_path / "out", "int4", 32, quiet)
    tensors = stored(tmp_path / "out")
    kinds = {
        name.split(".layers.")[-1].lstrip("0123456789."): t.dtype for name, t in tensors.items()
    }
    assert kinds["self_attn.q_proj.weight_packed"] == torch.int32
    assert kinds["mlp.experts.0.down_proj.weight_packed"] == torch.int32
    assert kinds["mlp.gate.weight"] == kinds["model.embed_tokens.weight"] == torch.bfloat16
    assert kinds["input_layernorm.weight"] == torch.bfloat16
    assert kinds["lm_head.weight"] == torch.int8
    scheme = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert scheme["config_groups"]["group_0"]["weights"]["num_bits"] == 4


def test_a_quantized_model_is_not_rounded_again(tmp_path):
    save_tiny("llama", tmp_path / "plain")
    import_plain(tmp_path / "plain", tmp_path / "out", "int8", 32, quiet)
    with pytest.raises(UserError, match="quantized already"):
        import_plain(tmp_path / "out", tmp_path / "again", "int4", 32, quiet)
    assert not (tmp_path / "again").exists()


# -- rounding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("rms_norm_eps", "x", "make no model .*rms_norm_eps"),
        ("pad_token_id", 10**6, "make no model"),
        ("num_hidden_layers", 9_999, "names 9999 layers, and its files hold"),
    ],
)
def test_settings_of_which_there_is_no_model_are_refused_in_a_sentence(tmp_path, name, value, says):
    save_tiny("llama", tmp_path / "plain")
    path = tmp_path / "plain" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(UserError, match=says) as refused:
        import_plain(tmp_path / "plain", tmp_path / "out", "int8", 32, quiet)
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("inputs", "group"), [(256, 128), (96, 64), (688, 128), (64, 32)])
def test_four_bits_are_near_the_numbers(inputs, group):
    plain = torch.randn(24, inputs, generator=torch.Generator().manual_seed(1))
    rounded = round_to_4_bits(plain, group)
    columns = torch.arange(inputs) // group
    scale, zero = (part.float()[:, columns] for part in (rounded.scale, rounded.zero))
    error = scale * (rounded.codes.float() - zero) - plain
    assert rounded.codes.max() <= 15 and rounded.zero.max() <= 15
    assert error.square().mean() < 0.02
    whole = [round_to_4_bits(plain[:, :group], group)]
    assert torch.equal(whole[0].codes, rounded.codes[:, :group])


def test_a_narrower_range_is_never_worse():
    plain = torch.randn(64, 128, generator=torch.Generator().manual_seed(2))
    rounded = round_to_4_bits(plain, 128)
    got = rounded.scale.float() * (rounded.codes.float() - rounded.zero.float())
    low, high = plain.amin(1, keepdim=True), plain.amax(1, keepdim=True)
    scale = ((high - low) / 15).bfloat16().float()
    zero = (-low / scale).round()
    widest = scale * ((plain / scale + zero).round().clamp(0, 15) - zero)
    errors = [(one - plain).square().sum(1) for one in (got, widest)]
    assert (errors[0] <= errors[1] * 1.0001).all() and errors[0].sum() < 0.92 * errors[1].sum()


def test_zeros_and_ends_are_exact():
    plain = torch.zeros(8, 64)
    plain[1] = 3.0
    four, eight = round_to_4_bits(plain, 32), round_to_8_bits(plain)
    back = four.scale.float().repeat_interleave(32, 1) * (
        four.codes.float() - four.zero.float().repeat_interleave(32, 1)
    )
    assert (back[0] == 0).all() and (back[1] - 3).abs().max() < 0.02
    assert (eight.codes.float() * eight.scale.float() - plain).abs().max() < 0.02


def test_words_hold_eight_codes_the_first_lowest():
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 15]], dtype=torch.uint8)
    words = packed_words(codes)
    assert words.tolist() == [[int.from_bytes(bytes.fromhex("21436587"), "little") - 2**32, 15]]
