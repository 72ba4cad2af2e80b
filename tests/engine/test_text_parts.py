"""The text model of a checkpoint that takes pictures, in stages, is the whole one's."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from molink.checkpoint.checkpoint import INDEX, open_checkpoint
from molink.checkpoint.layer_sizes import planned_model
from molink.checkpoint.shard_plan import Place, homes_of_tensors, plan_shards, shape_of
from molink.engine.model.weights import (
    StagePart,
    build_stage_class,
    load_model_config,
    needed_tensors,
)
from molink.errors import UnsupportedModelError
from tests.engine.cpu_stages import cpu_stage
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import generate
from tests.engine.tiny_wrappers import LAYERS, WRAPPERS, save_wrapper
from tests.sweeps import swept

CUTS = (0, 1, 3, LAYERS)
TOKENS = 9
PROMPTS = [[5 + i, 7, 9, 30 + i, 11, 3, 8, 2, 4][: 9 - 3 * i] for i in range(3)]


def answers(directory, **options) -> list[list[int]]:
    stages = load_stages(directory, CUTS, **options)
    return RingDriver(stages).run([Job(i, p, TOKENS) for i, p in enumerate(PROMPTS)])


SOME = ("gemma4 E2B", "glm4v_moe", "llava", "qwen3_5")
"""With layers that share KV, with experts, of the plainest kind, with states."""


@pytest.mark.parametrize("name", swept(sorted(WRAPPERS), *SOME))
def test_stages_answer_as_the_whole_does_without_a_picture(name, tmp_path):
    whole = save_wrapper(name, tmp_path)
    assert answers(tmp_path) == [generate(whole, prompt, TOKENS) for prompt in PROMPTS]


@pytest.mark.parametrize("name", swept(sorted(WRAPPERS), *SOME))
def test_no_stage_fetches_what_sees(name, tmp_path):
    whole = save_wrapper(name, tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    config, weight_map = load_model_config(checkpoint), checkpoint.weight_map()
    homes = homes_of_tensors(weight_map, LAYERS)
    assert Place.SHARED not in homes.values()
    unseen = {n for n, home in homes.items() if home is Place.BESIDE}
    assert len(unseen) == len(whole.state_dict()) - len(whole.model.language_model.state_dict()) - (
        Place.OUTPUT in homes.values() or whole.config.tie_word_embeddings
    )
    for start, end in ((0, 1), (1, 3), (3, LAYERS)):
        plan = plan_shards(weight_map, shape_of(checkpoint.config()), range(start, end))
        stage = build_stage_class(config, StagePart(range(start, end), LAYERS))
        assert plan.weight_map == needed_tensors(stage, config, weight_map)
        assert not unseen & set(plan.weight_map)


def test_a_plan_counts_the_text_models_bytes(tmp_path):
    whole = save_wrapper("qwen3_vl", tmp_path)
    cost = planned_model(str(tmp_path)).cost
    text = sum(p.nbytes for p in whole.model.language_model.parameters())
    assert cost.layers == LAYERS
    assert sum(cost.layer_bytes) + cost.head_bytes + cost.tail_bytes == (
        text + whole.lm_head.weight.nbytes
    )


def test_tensors_tell_whether_the_output_matrix_is_the_embeddings(tmp_path):
    """Qwen3-VL-MoE says that it is, and stores another."""
    whole = save_wrapper("qwen3_vl_moe", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert answers(tmp_path) == [generate(whole, prompt, TOKENS) for prompt in PROMPTS]


def test_a_whole_that_says_nothing_of_its_embeddings(tmp_path):
    whole = save_wrapper("qwen3_vl", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert answers(tmp_path) == [generate(whole, prompt, TOKENS) for prompt in PROMPTS]


def test_the_self_test_speaks_for_the_text_model(tmp_path):
    whole = save_wrapper("qwen3_vl", tmp_path)
    prompts = [generate(whole, prompt, TOKENS) for prompt in PROMPTS]
    assert answers(tmp_path, self_test=True) == prompts


def test_tensors_that_draft_are_left_where_they_are(tmp_path):
    """Qwen3.5's, `mtp.`, stand beside the model."""
    save_wrapper("qwen3_vl", tmp_path)
    save_file({"mtp.fc.weight": torch.ones(4, 4)}, tmp_path / "draft.safetensors")
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["mtp.fc.weight"] = "draft.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    (tmp_path / "draft.safetensors").write_bytes(b"never read")
    assert len(answers(tmp_path)) == len(PROMPTS)


def test_weights_of_the_text_model_that_are_missing_are_named(tmp_path):
    save_wrapper("gemma3", tmp_path)
    path = next(p for p in tmp_path.glob("*.safetensors") if "layers.2" in str(load_file(p).keys()))
    kept = {k: v for k, v in load_file(path).items() if "language_model.model.layers.2" not in k}
    save_file(kept, path, metadata={"format": "pt"})
    index = json.loads((tmp_path / INDEX).read_text())
    gone = [n for n, file in index["weight_map"].items() if file == path.name and n not in kept]
    for name in gone:
        del index["weight_map"][name]
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(Exception, match=r"lacks the tensor model\.layers\.2"):
        cpu_stage(tmp_path, range(1, 3))


@pytest.mark.parametrize("model_type", ["clip", "t5", "mllama", "granite_docling", "muse_spark"])
def test_what_has_no_decoder_of_text_alone_is_refused(model_type, tmp_path):
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="not a decoder-only"):
        cpu_stage(tmp_path, range(1), self_test=True)
