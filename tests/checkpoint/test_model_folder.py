"""Folders as people give them: served as they were meant, or refused with what to do."""

import json
import re
import shutil
from codecs import BOM_UTF8
from functools import partial

import pytest
from safetensors.torch import load_file, save_file

from molink.checkpoint.checkpoint import INDEX, SINGLE, open_checkpoint
from molink.checkpoint.description import describe
from molink.checkpoint.shard_plan import WeightsLayout, plan_shards
from molink.errors import CheckpointError, UnsupportedModelError, UserError
from molink.models import DEMO_MODEL_DIR
from molink.serving.served_model import load_tokenizer, read_served_model
from tests.engine.cpu_stages import cpu_stage
from tests.engine.tiny_models import LAYERS, save_tiny

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 15165744\n"


@pytest.fixture
def demo(tmp_path):
    return shutil.copytree(DEMO_MODEL_DIR, tmp_path / "demo")


def change(path, **values) -> None:
    """Change a JSON file; None removes a key."""
    known = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: one for key, one in known.items() if one is not None}))


def refusal(model) -> str:
    with pytest.raises(UserError) as caught:
        describe(open_checkpoint(str(model))), open_checkpoint(str(model)).weight_map()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_clone_without_its_large_files(demo, name):
    (demo / name).write_text(POINTER)
    assert f"pointers of Git LFS for {name}: run `git lfs pull`" in refusal(demo)


@pytest.mark.parametrize("name", ["figure.png", "README.md", "consolidated.safetensors"])
def test_pointers_that_nobody_reads_are_left_alone(demo, name):
    (demo / name).write_text(POINTER)
    assert describe(open_checkpoint(str(demo)))


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("LlamaForSequenceClassification", "scores texts"),
        ("InternLM2ForRewardModel", "scores texts"),
        ("Qwen2ForProcessRewardModel", "scores texts"),
        ("BertForTokenClassification", "scores texts"),
        ("BertForQuestionAnswering", "scores texts"),
        ("LlamaModel", "turns its input into vectors"),
        ("CLIPModel", "turns its input into vectors"),
        ("SiglipVisionModel", "turns its input into vectors"),
        ("BertForMaskedLM", "turns its input into vectors"),
    ],
)
def test_a_model_that_writes_no_text_is_never_served(demo, architecture, said):
    change(demo / "config.json", architectures=[architecture])
    assert f"{said} ({architecture})" in refusal(demo)


@pytest.mark.parametrize(
    "architectures",
    [["LlamaForCausalLM"], ["GPT2LMHeadModel"], ["Qwen2_5OmniModel"], [], None, "LlamaForCausalLM"],
)
def test_models_that_write_are_let_through(demo, architectures):
    change(demo / "config.json", architectures=architectures)
    assert describe(open_checkpoint(str(demo))).layers == 9


def test_a_sentence_transformer_of_a_class_that_writes(demo):
    (demo / "modules.json").write_text("[]")
    assert "sentence-transformers" in refusal(demo)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"adapter_config.json": '{"base_model_name_or_path": "o/n"}'}, "adapter of o/n"),
        ({"adapter_config.json": "{}"}, "adapter of another model"),
        ({"model_index.json": "{}", "unet/config.json": "{}"}, "diffusers"),
        ({"m.Q4_K_M.gguf": "GGUF"}, "molink import"),
        ({"params.json": "{}", "consolidated.safetensors": ""}, "its makers' own form"),
        ({"model.safetensors": ""}, "no config.json: fetch"),
        ({"pytorch_model.bin": ""}, "no config.json: fetch"),
        ({"models--o--n/refs/main": "a"}, "several models of the hub's cache"),
        ({"final/config.json": "{}"}, "its folder final does"),
        ({"notes.md": ""}, "holds no config.json"),
        ({}, "is empty"),
    ],
)
def test_folders_without_a_config_say_what_they_are(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert said in refusal(tmp_path)


@pytest.mark.parametrize(("name", "said"), [("m.gguf", "molink import"), ("m.bin", "is a file")])
def test_a_file_where_a_folder_is_meant(tmp_path, name, said):
    (tmp_path / name).write_bytes(b"GGUF")
    assert said in refusal(tmp_path / name)


def hub_folder(tmp_path, *hashes: str):
    folder = tmp_path / "models--o--n"
    (folder / "blobs").mkdir(parents=True)
    (folder / "snapshots").mkdir()
    for one in hashes:
        shutil.copytree(DEMO_MODEL_DIR, folder / "snapshots" / one)
    return folder


def test_of_a_folder_of_the_hubs_cache_the_only_or_the_main_snapshot_is_taken(tmp_path):
    folder = hub_folder(tmp_path, "abc")
    assert open_checkpoint(str(folder)).directory == folder / "snapshots" / "abc"
    shutil.copytree(DEMO_MODEL_DIR, folder / "snapshots" / "def")
    assert "give one of its snapshots (snapshots/abc, snapshots/def)" in refusal(folder)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("def\n")
    assert open_checkpoint(str(folder)).directory == folder / "snapshots" / "def"
    assert "none is there yet" in refusal(hub_folder(tmp_path / "other"))


def test_byte_order_marks_in_front_of_every_text_file(demo):
    template = json.loads((demo / "tokenizer_config.json").read_text())["chat_template"]
    (demo / "chat_template.jinja").write_text(template)
    change(demo / "tokenizer_config.json", chat_template=None)
    (demo / "additional_chat_templates").mkdir()
    (demo / "additional_chat_templates" / "tool_use.jinja").write_text("T" + template)
    plain = read_served_model(str(demo), None)
    for path in (*demo.glob("*.json"), *demo.rglob("*.jinja")):
        path.write_bytes(BOM_UTF8 * 2 + path.read_bytes())
    marked = read_served_model(str(demo), None)
    turns = [{"role": "user", "content": "Hi"}]
    ids, others = (one.card.tokenizer.apply_chat_template(turns) for one in (plain, marked))
    assert ids == others and marked.card.name == "demo"
    assert marked.card.tokenizer.chat_template == plain.card.tokenizer.chat_template
    assert marked.card.tokenizer.chat_template["tool_use"] == "T" + template
    assert marked.card.sampling == plain.card.sampling
    assert marked.card.eos_token_ids == plain.card.eos_token_ids
    assert cpu_stage(demo, range(2)).description.layers == 9
    assert all(path.read_bytes().startswith(BOM_UTF8) for path in demo.glob("*.json"))


def test_a_model_of_code_of_its_own_is_not_taken_for_one_that_makes_vectors(demo):
    config = json.loads((demo / "config.json").read_text())
    own = {"model_type": "chatglm", "architectures": ["ChatGLMModel"]}
    (demo / "config.json").write_text(json.dumps(config | own))
    with pytest.raises(UnsupportedModelError, match=r"code of its own \(ChatGLMModel.*library"):
        describe(str(demo))


def test_a_config_in_another_encoding_is_named(demo):
    text = (demo / "config.json").read_text()
    (demo / "config.json").write_bytes(text.encode("utf-16"))
    assert "config.json" in refusal(demo) and "UTF-16" in refusal(demo)
    (demo / "config.json").write_bytes(text.replace("silu", "sil\u00fc").encode("latin-1"))
    assert "Latin-1" in refusal(demo)


def test_weights_of_any_name_and_indices_with_paths(demo):
    (demo / SINGLE).rename(demo / "weights.safetensors")
    named = open_checkpoint(str(demo)).weight_map()
    assert len(named) == 83 and set(named.values()) == {"weights.safetensors"}
    for path in (
        "./weights.safetensors",
        "/mnt/x/weights.safetensors",
        "C:\\x\\weights.safetensors",
    ):
        index = {"metadata": {}, "weight_map": dict.fromkeys(named, path)}
        (demo / INDEX).write_text(json.dumps(index))
        assert open_checkpoint(str(demo)).weight_map() == named
    assert cpu_stage(demo, range(2)).description.layers == 9
    for path in ("", "..", "x/", 7):
        (demo / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(named, path)}))
        assert "no weight map" in refusal(demo)


def test_one_of_several_files_is_missing(demo):
    (demo / SINGLE).rename(demo / "model-00001-of-00003.safetensors")
    assert "lacks the weight file model-00002-of-00003.safetensors" in refusal(demo)


def test_pickled_weights_are_refused_with_what_to_do(demo):
    (demo / SINGLE).rename(demo / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(demo) and "save_pretrained" in refusal(demo)


def test_weights_that_end_too_soon(demo):
    whole = (demo / SINGLE).read_bytes()
    (demo / SINGLE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="fetch it again"):
        cpu_stage(demo, range(2))


def in_layers(wrapper: str, name: str) -> str:
    return re.sub(r"(layers\.\d+\.)", rf"\1{wrapper}.", name)


@pytest.mark.parametrize(
    "wrapped_name",
    [
        "_orig_mod.{}".format,
        "module.{}".format,
        "_orig_mod.module.{}".format,
        "module._orig_mod.{}".format,
        "_fsdp_wrapped_module.{}".format,
        lambda name: name.replace("model.", "model._orig_mod.", 1),
        partial(in_layers, "_orig_mod"),
        partial(in_layers, "_fsdp_wrapped_module._checkpoint_wrapped_module"),
    ],
)
def test_weights_that_were_saved_within_what_trained_them(tmp_path, wrapped_name):
    """The same tensors in the same stage, and counted alike."""
    plain, wrapped = tmp_path / "plain", tmp_path / "wrapped"
    for folder in (plain, wrapped):
        save_tiny("llama", folder)
    index = json.loads((wrapped / INDEX).read_text())
    for path in wrapped.glob("*.safetensors"):
        tensors = {wrapped_name(name): tensor for name, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    index["weight_map"] = {wrapped_name(name): file for name, file in index["weight_map"].items()}
    (wrapped / INDEX).write_text(json.dumps(index))
    expected, found = (cpu_stage(one, range(2, 4)).model.state_dict() for one in (plain, wrapped))
    assert expected.keys() == found.keys()
    assert all((expected[name] == found[name]).all() for name in expected)
    maps = [open_checkpoint(str(one)).weight_map() for one in (plain, wrapped)]
    for layers in (range(2), range(2, 4), range(LAYERS - 1, LAYERS)):
        files = [plan_shards(one, WeightsLayout(LAYERS, True), layers).weight_map for one in maps]
        assert {wrapped_name(name): file for name, file in files[0].items()} == files[1]


def test_a_model_without_a_tokenizer_is_served_for_token_ids(demo):
    (demo / "tokenizer.json").unlink()
    assert load_tokenizer(describe(open_checkpoint(str(demo)))) is None
