"""The plan by names holds what the loader takes by modules: all of it, and hardly more."""

import json

import pytest
from safetensors.torch import load_file, save_file

from molink.checkpoint.checkpoint import INDEX, open_checkpoint
from molink.checkpoint.shard_plan import (
    Place,
    WeightsLayout,
    homes_of_tensors,
    plan_shards,
    shape_of,
)
from molink.engine.model.weights import (
    StagePart,
    build_stage_class,
    load_model_config,
    needed_tensors,
)
from molink.errors import CheckpointError, UserError
from tests.engine.tiny_models import ARCHITECTURES, LAYERS, save_tiny

RANGES = [range(2), range(2, 5), range(5, LAYERS), range(LAYERS)]


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_the_plan_is_what_the_loader_takes(name, tmp_path):
    save_tiny(name, tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    config, weight_map = load_model_config(checkpoint), checkpoint.weight_map()
    for layers in RANGES:
        plan = plan_shards(weight_map, shape_of(checkpoint.config()), layers)
        stage = build_stage_class(config, StagePart(layers, LAYERS))
        assert plan.weight_map == needed_tensors(stage, config, weight_map)
        assert plan.weight_map.items() <= weight_map.items()


def test_files_are_whole_where_all_of_them_is_needed(tmp_path):
    save_tiny("llama", tmp_path)
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    plan = plan_shards(weight_map, WeightsLayout(LAYERS, False), range(2, 4))
    for need in plan.files:
        held = {tensor for tensor, file in weight_map.items() if file == need.name}
        assert need.whole == (held == set(need.tensors))
    assert any(need.whole for need in plan.files)
    assert not all(need.whole for need in plan.files)


def test_a_bare_checkpoint_without_the_models_prefix(tmp_path):
    """As gpt2's own on the hub: `h.0.…`, `wte.weight`."""
    save_tiny("gpt2", tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        tensors = {k.removeprefix("transformer."): v for k, v in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    index = json.loads((tmp_path / INDEX).read_text())
    renamed = {k.removeprefix("transformer."): v for k, v in index["weight_map"].items()}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": renamed}))
    checkpoint = open_checkpoint(str(tmp_path))
    config = load_model_config(checkpoint)
    for layers in RANGES:
        plan = plan_shards(renamed, shape_of(checkpoint.config()), layers)
        stage = build_stage_class(config, StagePart(layers, LAYERS))
        assert plan.weight_map == needed_tensors(stage, config, renamed)


def test_names_that_nobody_knows_go_to_everybody():
    names = [*(f"model.layers.{n}.a" for n in range(4)), "model.enigma.weight", "odd"]
    homes = homes_of_tensors(names, 4)
    assert homes["model.enigma.weight"] is homes["odd"] is Place.SHARED
    plan = plan_shards(dict.fromkeys(names, "f"), WeightsLayout(4, None), range(1, 2))
    assert set(plan.weight_map) == {"model.layers.1.a", "model.enigma.weight", "odd"}


def test_two_lists_of_as_many_layers_are_not_told_apart():
    names = [f"{side}.layers.{n}.a" for side in ("left", "right") for n in range(4)]
    assert set(homes_of_tensors(names, 4).values()) == {Place.SHARED}


def test_numbers_inside_a_layer_are_no_layers():
    names = [f"model.layers.{n}.experts.{m}.w" for n in range(3) for m in range(8)]
    homes = homes_of_tensors(names, 3)
    assert all(homes[name] == int(name.split(".")[2]) for name in names)


def test_layers_beyond_the_models_are_of_no_stage():
    """A head that predicts several tokens is stored as one more layer."""
    weight_map = {f"model.layers.{n}.a": "f" for n in range(5)}
    plan = plan_shards(weight_map, WeightsLayout(4, False), range(2, 4))
    assert set(plan.weight_map) == {"model.layers.2.a", "model.layers.3.a"}


@pytest.mark.parametrize(
    ("tied", "stored", "wanted"),
    [
        (True, False, {"embed"}),
        (False, True, {"head"}),
        (None, False, {"embed"}),
        (None, True, {"embed", "head"}),
        (False, False, {"embed"}),
    ],
)
def test_what_a_tail_multiplies_with(tied, stored, wanted):
    names = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight"}
    held = [names["embed"], *([names["head"]] if stored else [])]
    weight_map = dict.fromkeys([*held, *(f"model.layers.{n}.a" for n in range(3))], "f")
    plan = plan_shards(weight_map, WeightsLayout(3, tied), range(2, 3))
    assert set(plan.weight_map) - {"model.layers.2.a"} == {names[one] for one in wanted}


@pytest.mark.parametrize("layers", [range(0), range(2, 5), range(3, 2), range(0, 4, 2)])
def test_layers_that_the_model_does_not_have(layers):
    weight_map = {f"model.layers.{n}.a": "f" for n in range(4)}
    with pytest.raises(UserError, match="some of 4 layers"):
        plan_shards(weight_map, WeightsLayout(None, None), layers)


def test_the_shape_under_its_other_names():
    assert shape_of({"n_layer": 3}) == WeightsLayout(3, None)
    text = {"num_hidden_layers": 5}
    assert shape_of({"text_config": text, "tie_word_embeddings": True}) == WeightsLayout(5, True)


def test_a_config_of_a_thousand_million_layers_is_refused_before_they_are_counted():
    with pytest.raises(CheckpointError, match="names 1000000000 layers: 10000 are the most"):
        shape_of({"num_hidden_layers": 10**9})


def test_a_name_with_thousands_of_digits_is_no_layer():
    names = [f"model.layers.{'9' * 5000}.a", "model.layers.0.a"]
    assert homes_of_tensors(names, 1) == {names[0]: Place.SHARED, names[1]: 0}
