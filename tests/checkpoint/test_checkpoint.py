"""What is wrong with a MODEL is said in one sentence, and quickly."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import huggingface_hub
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from molink.checkpoint.checkpoint import INDEX, open_checkpoint
from molink.checkpoint.description import describe
from molink.errors import CheckpointError, UnsupportedModelError, UserError
from tests.engine.cpu_stages import cpu_stage
from tests.engine.tiny_models import LAYERS, save_tiny


def refusal(directory, layers=range(2, 4), error=CheckpointError) -> str:
    with pytest.raises(error) as caught:
        cpu_stage(directory, layers)
    message = str(caught.value)
    assert "\n" not in message
    return message


def shard_of(directory, tensor: str):
    return directory / json.loads((directory / INDEX).read_text())["weight_map"][tensor]


def test_a_directory_that_is_not_there():
    with pytest.raises(CheckpointError, match=r"no model directory \./nowhere"):
        open_checkpoint("./nowhere")


def test_a_directory_without_a_config(tmp_path):
    assert "is empty" in refusal(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert "no config.json" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_directory(tmp_path):
    tmp_path.chmod(0)
    try:
        assert "cannot be read" in refusal(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_config_that_cannot_be_read(tmp_path):
    (tmp_path / "config.json").mkdir()
    assert "cannot be read" in refusal(tmp_path)


def test_a_config_that_is_not_json(tmp_path):
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in refusal(tmp_path)


def test_a_hub_id_without_a_network(monkeypatch):
    def no_address(*_, **__):
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="nobody/nothing is no directory"):
        open_checkpoint("nobody/nothing")
    assert time.monotonic() - started < 10


def test_a_hub_model_is_fetched_shard_by_shard(tmp_path, monkeypatch):
    remote, cache = tmp_path / "remote", tmp_path / "cache"
    save_tiny("llama", remote)
    cache.mkdir()
    fetched = []

    def snapshot(hub_id, *, allow_patterns, local_files_only, dry_run=False):
        if dry_run:
            found = (path for pattern in allow_patterns for path in remote.glob(pattern))
            return [SimpleNamespace(filename=one.name, file_size=1) for one in found]
        for pattern in allow_patterns:
            for path in remote.glob(pattern):
                shutil.copy(path, cache)
        return str(cache)

    def download(hub_id, name, *, local_files_only):
        fetched.append(name)
        return str(remote / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert describe("owner/model").directory == cache
    cpu_stage("owner/model", range(2, 3))
    weight_map = json.loads((remote / INDEX).read_text())["weight_map"]
    needed = {file for name, file in weight_map.items() if name.startswith("model.layers.2.")}
    assert set(fetched) == needed
    assert len(needed) < len(set(weight_map.values()))


def test_weights_that_are_not_safetensors(tmp_path):
    save_tiny("llama", tmp_path)
    for path in tmp_path.glob("*.safetensors*"):
        path.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "reads safetensors checkpoints only" in refusal(tmp_path)


def test_a_missing_shard(tmp_path):
    save_tiny("llama", tmp_path)
    shard_of(tmp_path, "model.layers.2.mlp.up_proj.weight").unlink()
    assert "lacks the weight file" in refusal(tmp_path)


def test_a_shard_of_another_stage_is_not_needed(tmp_path):
    save_tiny("llama", tmp_path)
    needed = {
        shard_of(tmp_path, name)
        for name in json.loads((tmp_path / INDEX).read_text())["weight_map"]
        if "layers.2." in name
    }
    for path in set(tmp_path.glob("*.safetensors")) - needed:
        path.unlink()
    cpu_stage(tmp_path, range(2, 3))


def test_a_tensor_missing_in_its_shard(tmp_path):
    save_tiny("llama", tmp_path)
    name = "model.layers.3.self_attn.q_proj.weight"
    shard = shard_of(tmp_path, name)
    tensors = load_file(shard)
    del tensors[name]
    save_file(tensors, shard, metadata={"format": "pt"})
    assert name in refusal(tmp_path)


def test_tensors_missing_in_the_index(tmp_path):
    save_tiny("llama", tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    weight_map = index["weight_map"]
    shard = weight_map["model.layers.3.self_attn.q_proj.weight"]
    index["weight_map"] = {name: file for name, file in weight_map.items() if file != shard}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert "lacks the tensor model.layers." in refusal(tmp_path)


def test_a_tensor_of_the_wrong_shape(tmp_path):
    save_tiny("llama", tmp_path)
    name = "model.layers.3.self_attn.q_proj.weight"
    shard = shard_of(tmp_path, name)
    tensors = load_file(shard)
    tensors[name] = tensors[name][:8].clone()
    save_file(tensors, shard, metadata={"format": "pt"})
    refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 1000])
def test_a_shard_cut_short(tmp_path, keep):
    save_tiny("llama", tmp_path)
    shard = shard_of(tmp_path, "model.layers.2.mlp.up_proj.weight")
    shard.write_bytes(shard.read_bytes()[:keep])
    assert "fetch it again" in refusal(tmp_path)


def test_an_index_never_leads_out_of_the_directory(tmp_path):
    save_tiny("llama", tmp_path)
    shutil.copy(shard_of(tmp_path, "lm_head.weight"), tmp_path.parent / "elsewhere.safetensors")
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "../elsewhere.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    said = refusal(tmp_path, range(LAYERS - 1, LAYERS))
    assert "lacks the weight file elsewhere.safetensors" in said


def test_an_unknown_architecture(tmp_path):
    facts = dict(num_hidden_layers=4, hidden_size=8, vocab_size=9, max_position_embeddings=10)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nonesuch", **facts}))
    assert "runs no code from checkpoints" in refusal(tmp_path, error=UnsupportedModelError)


def test_a_model_that_is_not_a_decoder(tmp_path):
    facts = dict(num_hidden_layers=4, hidden_size=8, vocab_size=9, max_position_embeddings=10)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **facts}))
    assert "not a decoder-only" in refusal(tmp_path, error=UnsupportedModelError)


def test_a_model_whose_text_part_looks_at_pictures(tmp_path):
    AutoConfig.for_model("mllama").save_pretrained(tmp_path)
    assert "not a decoder-only" in refusal(tmp_path, error=UnsupportedModelError)


@pytest.mark.parametrize("layers", [range(0), range(3, LAYERS + 1), range(4, 3)])
def test_layers_that_the_model_does_not_have(tmp_path, layers):
    save_tiny("llama", tmp_path)
    assert f"{LAYERS} layers" in refusal(tmp_path, layers, UserError)


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    save_tiny("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    cpu_stage(tmp_path, range(2, 3))


def test_describing_a_model_does_not_load_torch(tmp_path):
    save_tiny("gpt2", tmp_path)
    program = (
        "import sys; from molink.checkpoint.description import describe;"
        f"print(describe({str(tmp_path)!r}).layers, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == [str(LAYERS), "False"]


def test_a_description_names_what_the_ring_must_agree_on(tmp_path):
    save_tiny("gpt2", tmp_path, dtype="bfloat16")
    facts = describe(str(tmp_path))
    assert (facts.model_type, facts.layers, facts.hidden_size) == ("gpt2", LAYERS, 64)
    assert (facts.vocabulary_size, facts.model_len_max) == (160, 256)
    assert (facts.eos_token_ids, facts.dtype) == ((2,), "bfloat16")


def test_end_tokens_come_from_the_generation_config_first(tmp_path):
    save_tiny("llama", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert describe(str(tmp_path)).eos_token_ids == (7, 8)


def test_what_the_config_leaves_out_is_asked_of_its_class(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    assert (describe(str(tmp_path)).hidden_size, describe(str(tmp_path)).layers) == (768, 3)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        (dict(rope_type="default"), 4096),
        (dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024), 4096),
        (dict(rope_type="dynamic", factor=2.0), 4096),
        (dict(type="longrope", original_max_position_embeddings=1024), 1024),
    ],
)
def test_rope_that_changes_with_length_limits_the_length(tmp_path, rope, length):
    facts = dict(num_hidden_layers=4, hidden_size=8, vocab_size=9, max_position_embeddings=4096)
    config = {"model_type": "llama", **facts, "rope_scaling": rope}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert describe(str(tmp_path)).model_len_max == length
