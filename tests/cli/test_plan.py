"""`molink plan`: what it prints, and one sentence for each mistake."""

import json

import pytest
from click.testing import CliRunner

from molink.checkpoint.model_config import KNOWN_CONFIGS
from molink.cli.main import cli
from molink.errors import UserError
from tests.checkpoint.drafting_checkpoints import with_nextn
from tests.engine.tiny_models import save_tiny
from tests.importing.gguf_models import save_gguf

PC = '[[nodes]]\nname = "{}"\ngpu = "{}"\nupload_mbps = {}\ndownload_mbps = 100\none_way_ms = 8\n'
THREE = PC.format("anna", "rtx3060", 40) + PC.format("ben", "rtx4090", 20)
OLD = (
    '[[nodes]]\nname = "old"\nlends_gib = 2\ndecode_fixed_ms = 40\ndecode_row_ms = 2\n'
    "prefill_row_ms = 1\nupload_mbps = 5\ndownload_mbps = 50\n"
)
TINY = OLD.replace('"old"', '"tiny"').replace("lends_gib = 2", "lends_gib = 0.2")


@pytest.fixture
def nodes(tmp_path):
    path = tmp_path / "nodes.toml"
    path.write_text(THREE + OLD + TINY)
    return path


def run(*arguments):
    result = CliRunner().invoke(cli, ["plan", *map(str, arguments)], catch_exceptions=False)
    return result.output


def refused(*arguments):
    with pytest.raises(UserError) as error:
        run(*arguments)
    return str(error.value)


def test_rings_and_standbys_in_words(nodes):
    output = run("qwen-7b", "--nodes", nodes)
    flat = " ".join(output.split())
    assert "qwen-7b, planned ring 1 of" in output
    assert "anna │ 0-9 │" in flat and "ben │ 10-31 │" in flat
    assert "Within 250 ms per token: 17 users at once, " in flat
    assert "Bottleneck: the memory of ben, full with 36,187 tokens." in flat
    assert "To fetch once: 14.4 GiB; ben takes longest, 14 min on its line." in flat
    assert "Standby: old would lengthen every token by " in flat
    assert "Standby: tiny lends too little memory for one layer" in flat


def test_host_memory_makes_the_longest_request_longer(nodes):
    """By 10,000 tokens of 22 of its 32 layers at most, 16 KiB each: 3.4 GiB."""
    asked = ("qwen-7b", "--nodes", nodes, "--split", "planned")
    plan = json.loads(run(*asked, "--json"))
    own = min(stage["kv_tokens"] for stage in plan["rings"][0]["stages"])
    flat = " ".join(run(*asked, "--kv-host-tokens", 10_000).split())
    assert f"more than {own:,} tokens, or {own + 10_000:,} where each PC lends up to 3.4" in flat
    assert plan["host"] == [] and "each PC lends" not in run(*asked)


def test_what_pcs_of_one_cell_lend_makes_the_longest_request_longer(tmp_path):
    """anna has the smallest room for KV, and ben in her LAN memory for much more."""
    path, home = tmp_path / "cells.toml", 'cell = "home"\n'
    anna, ben = PC.format("anna", "rtx3060", 40), PC.format("ben", "rtx4090", 20)
    path.write_text(anna + home + "lends_ram_gib = 64\n" + ben + home + "lends_ram_gib = 64\n")
    asked = ("qwen-7b", "--nodes", path, "--split", "even")
    stages = json.loads(run(*asked, "--json"))["rings"][0]["stages"]
    own = min(stage["kv_tokens"] for stage in stages)
    said, of_anna, of_ben = json.loads(run(*asked, "--json"))["host"]
    assert said.startswith(f"No request has more than {own:,} tokens, or ")
    longer = int(said.split(" or ")[1].split()[0].replace(",", ""))
    assert longer > own and "of ben" in said
    kept = [said.split("(anna ")[1].split(" of ben")[0], "64 GiB"]
    assert of_anna.startswith("anna: KV of its own ") and of_anna.endswith(f"{kept[0]} borrowed.")
    assert of_ben.startswith("ben: KV of its own ") and f", {kept[0]} of 64" in of_ben
    near = '[[links]]\nbetween = ["anna", "ben"]\none_way_ms = 0.1\n'
    before = path.read_text()
    path.write_text(before + near)
    waits = json.loads(run(*asked, "--json"))["host"][-1]
    count = sum(stage["layers"][1] - stage["layers"][0] for stage in stages)
    assert waits.startswith(f"A token over what is lent waits {0.2 * count:.3g} ms more")
    path.write_text(before)
    far = '[[links]]\nbetween = ["anna", "ben"]\none_way_ms = 15\n'
    path.write_text(path.read_text() + far)
    first, second, last = json.loads(run(*asked, "--json"))["host"]
    assert first.startswith(("anna lends ben nothing: ", "ben lends anna nothing: "))
    assert "layers x 30 ms are" in first and "layers x 30 ms are" in second
    assert (
        last == f"No request has more than {own:,} tokens: nobody lends the stage that has least."
    )


def test_a_card_that_holds_no_stage_lends_to_its_own_pc_without_a_cell(tmp_path):
    path = tmp_path / "cards.toml"
    anna, ben = PC.format("anna", "rtx3060", 40), PC.format("ben", "rtx4090", 20)
    asked = ("qwen-7b", "--nodes", path, "--split", "even", "--json")
    path.write_text(anna + "lends_card_gib = 8\n" + ben)
    plan = json.loads(run(*asked))
    stages, (said, *pcs) = plan["rings"][0]["stages"], plan["host"]
    assert min(stages, key=lambda one: one["kv_tokens"])["name"] == "anna"
    assert "of anna's card)" in said
    lent = said.split("(anna ")[1].split(" of anna's card")[0]
    assert f"anna's card: {lent} of 8.0 GiB lent." in pcs
    path.write_text(anna + ben + "lends_card_gib = 8\n")
    assert "nobody lends the stage that has least" in json.loads(run(*asked))["host"][0]


def test_memory_that_is_lent_to_no_cell_is_refused(tmp_path):
    path = tmp_path / "cells.toml"
    path.write_text(PC.format("anna", "rtx3060", 40) + "lends_ram_gib = 8\n")
    assert "has lends_ram_gib 8, but no cell" in refused("qwen-7b", "--nodes", path)


def test_a_lender_outside_a_lan_is_refused_with_the_figure(nodes):
    far = " ".join(run("qwen-7b", "--nodes", nodes, "--lender-ms", 60).split())
    assert "A lender 60 ms away is refused" in far and "layers x 60 ms are" in far
    near = " ".join(run("qwen-7b", "--nodes", nodes, "--lender-ms", 0.3).split())
    assert "A lender 0.3 ms away is near enough: " in near and "layers x it are " in near


def test_latent_attention_has_no_room_in_host_memory(nodes, tmp_path):
    save_tiny("deepseek_v3", tmp_path)
    output = run(tmp_path, "--nodes", nodes, "--kv-host-tokens", 10_000)
    assert "lend nothing to their PCs' memory." in output


def test_it_fits_eighty_columns(nodes):
    assert max(map(len, run("qwen-7b", "--nodes", nodes).splitlines())) <= 80


def test_a_hybrid_model_shows_the_states_that_find_room(nodes, tmp_path):
    """In eighty columns, too: Qwen3.5-9B or about that."""
    config = dict(
        model_type="qwen3_5_text",
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=32,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=32_000,
        full_attention_interval=4,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = json.loads(run(tmp_path / "config.json", "--nodes", nodes, "--json"))
    stages = plan["rings"][0]["stages"]
    output = run(tmp_path / "config.json", "--nodes", nodes)
    assert max(map(len, output.splitlines())) <= 80
    assert "KV/states" in output
    for stage in stages:
        assert f" {stage['name']} " in output
        assert f" {stage['kv_tokens']:,}/{stage['state_slots']} " in output


def test_json_has_all_of_it(nodes):
    plan = json.loads(run("qwen-7b", "--nodes", nodes, "--json"))
    (ring,) = plan["rings"]
    assert plan["users"] == ring["users"] == 17
    assert [stage["layers"] for stage in ring["stages"]] == [[0, 10], [10, 32]]
    assert ring["tpot_alone_s"] <= ring["tpot_s"] <= plan["goal"]["tpot_s"] == 0.25
    assert [standby["name"] for standby in plan["standbys"]] == ["old", "tiny"]


def test_options_change_the_plan(nodes):
    def users(*options):
        return json.loads(run("qwen-7b", "--nodes", nodes, "--json", *options))["users"]

    assert users("--context-tokens", 4096) < 17 < users("--context-tokens", 512)
    assert users("--tpot-ms", 20) == 0
    demo = "molink/models/demo"
    rings = [
        len(json.loads(run(demo, "--nodes", nodes, "--json", "--rings", n))["rings"])
        for n in ("auto", 1, 2)
    ]
    assert rings[0] >= 2 and rings[1:] == [1, 2]


def test_an_even_split_stands_beside_the_planned_one(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(THREE)
    planned, even = (
        json.loads(run("qwen-7b", "--nodes", path, "--json", "--split", split))
        for split in ("planned", "even")
    )
    assert [stage["layers"] for stage in even["rings"][0]["stages"]] == [[0, 16], [16, 32]]
    assert even["users"] < planned["users"]


def test_a_plan_is_made_for_the_load_that_is_told(nodes):
    def users(*options):
        return json.loads(run("qwen-7b", "--nodes", nodes, "--json", *options))["users"]

    assert users("--prompt-tokens", 0) >= users() == 17
    assert users("--prompt-tokens", 20_000, "--answer-tokens", 10) < 17


def test_nobody_within_the_bound_is_said(nodes):
    flat = " ".join(run("qwen-7b", "--nodes", nodes, "--tpot-ms", 20).split())
    assert "No user within 20 ms per token." in flat
    assert "of a lonely token's" in flat


def test_four_bits_fit_where_sixteen_do_not(tmp_path):
    """A card of 8 GiB, and a model of 7.6 billion weights."""
    nodes, model = tmp_path / "nodes.toml", tmp_path / "model"
    nodes.write_text(PC.format("anna", "rtx3060", 40) + "lends_gib = 8\n")
    model.mkdir()
    plain = KNOWN_CONFIGS["qwen2.5-7b"]
    (model / "config.json").write_text(json.dumps(plain))
    assert "GiB more are needed" in refused(model / "config.json", "--nodes", nodes)
    scheme = {"quant_method": "awq", "bits": 4, "group_size": 128}
    (model / "config.json").write_text(json.dumps({**plain, "quantization_config": scheme}))
    output = run(model / "config.json", "--nodes", nodes)
    assert "│   0-27 │ 5.3 GiB │" in output
    small = nodes.read_text().replace("lends_gib = 8", "lends_gib = 4")
    nodes.write_text(small)
    sentence = refused(model / "config.json", "--nodes", nodes)
    assert sentence.startswith("model does not fit: this PC is not enough: of 28 layers")


def test_a_model_that_is_too_large(nodes):
    sentence = refused("llama-2-70b", "--nodes", nodes)
    assert sentence.startswith("llama-2-70b does not fit: these 4 PCs are not enough: of 80 layers")
    assert "GiB more are needed for the other" in sentence
    assert sentence.endswith("; or round the model with `molink import --weights int4`.")


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--tpot-ms", 0), "--tpot-ms takes a number above 0"),
        (("--tpot-ms", "nan"), "--tpot-ms takes a number above 0"),
        (("--context-tokens", 0), "--context-tokens takes 1 to 131072 tokens, got 0"),
        (("--context-tokens", 200_000), "--context-tokens takes 1 to 131072 tokens"),
        (("--prompt-tokens", -1), "--prompt-tokens takes 0 to 131072 tokens, got -1"),
        (("--answer-tokens", 0), "--answer-tokens takes 1 to 131072 tokens, got 0"),
        (("--split", "even"), "does not fit: an even split gives tiny 8 of 32 layers, "),
        (("--rings", 0), "--rings takes auto or a number from 1 up, got 0"),
        (("--rings", "many"), "--rings takes auto or a whole number"),
    ],
)
def test_one_sentence_for_each_mistake(nodes, options, sentence):
    assert sentence in refused("qwen-7b", "--nodes", nodes, *options)


def test_files_that_are_not_there(nodes, tmp_path):
    assert "cannot read the PCs" in refused("qwen-7b", "--nodes", tmp_path / "none.toml")
    assert "there is no model directory" in refused(tmp_path / "a" / "b", "--nodes", nodes)


def test_a_gguf_file_is_planned_without_an_import(nodes, tmp_path):
    save_gguf("llama", tmp_path / "m.gguf")
    before = sorted(tmp_path.rglob("*"))
    output = run(tmp_path / "m.gguf", "--nodes", nodes)
    assert "m.gguf, planned ring 1 of" in output
    assert "What weights in gguf cost in quality was not measured" in " ".join(output.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_is_planned_as_it_would_be_rounded(nodes, tmp_path):
    save_tiny("llama", tmp_path / "plain")
    plan = json.loads(run(tmp_path / "plain", "--nodes", nodes, "--weights", "int8", "--json"))
    plain = json.loads(run(tmp_path / "plain", "--nodes", nodes, "--json"))
    fetched = [one["rings"][0]["stages"][0]["fetched_bytes"] for one in (plan, plain)]
    assert fetched[0] < 0.7 * fetched[1]
    assert (
        "`molink import --weights int8` was measured on the demo model only" in plan["quality"][0]
    )
    assert plain["quality"] == []
    assert run("qwen-7b", "--nodes", nodes, "--kv", "int8").count("KV in int8 was measured") == 1


def test_only_a_folder_can_be_rounded(nodes, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for model in ("qwen-7b", tmp_path / "m.gguf"):
        assert "--weights rounds a folder" in refused(model, "--nodes", nodes, "--weights", "int4")
    assert "m.gguf" in refused(tmp_path / "m.gguf", "--nodes", nodes)


def test_drafts_of_the_models_own_layer_are_told_with_what_is_assumed(nodes, tmp_path):
    model = with_nextn(tmp_path / "model")
    flat = " ".join(run(model, "--nodes", nodes).split())
    assert "With drafts of the model's own layer: " in flat
    assert "Assumed, as it was not measured: 74% of the drafts come true" in flat
    ring = json.loads(run(model, "--nodes", nodes, "--json"))["rings"][0]
    assert ring["drafts"]["acceptance"] == 0.74
    assert ring["drafts"]["tokens_per_s_alone"] > 0
    assert ring["drafts"]["tokens_a_round"] >= 1
    plain = json.loads(run(model, "--nodes", nodes, "--drafter", "none", "--json"))["rings"][0]
    assert plain["drafts"] is None
    assert plain["stages"][-1]["weights_bytes"] < ring["stages"][-1]["weights_bytes"]


def test_half_a_layer_is_said_where_it_would_have_drafted(nodes, tmp_path):
    model = with_nextn(tmp_path / "model", lost=("hnorm.weight",))
    said = "Planned without drafts of the tail: its drafting layer lacks model.layers."
    assert said in " ".join(run(model, "--nodes", nodes).split())
    assert "drafts" not in run(model, "--nodes", nodes, "--drafter", "none")


def test_drafts_of_a_small_model_are_told_and_its_bytes_are_the_heads(nodes, tmp_path):
    asked = ("qwen-7b", "--nodes", nodes, "--json")
    plain, found = (
        json.loads(run(*asked, "--drafter", one))["rings"][0] for one in ("copy", "llama-88m")
    )
    assert plain["drafts"] is None and found["drafts"]["at_tail"] is False
    assert found["drafts"]["tokens_per_s_alone"] > 1 / found["tpot_alone_s"]
    flat = " ".join(run("qwen-7b", "--nodes", nodes, "--drafter", "llama-88m").split())
    assert "With drafts of the small model: " in flat and "instead of" in flat
    (tmp_path / "eagle").mkdir()
    (tmp_path / "eagle" / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    drafter = ("--drafter", tmp_path / "eagle")
    assert "hidden states of three layers" in refused("qwen-7b", "--nodes", nodes, *drafter)


def test_nothing_is_said_of_drafts_where_nothing_drafts(nodes):
    assert "drafts" not in run("qwen-7b", "--nodes", nodes)
