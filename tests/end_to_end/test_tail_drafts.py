"""A ring whose tail drafts with the checkpoint's own layer answers as one that does not."""

import torch
from transformers import AutoModelForCausalLM

from tests.end_to_end.clusters import cluster
from tests.end_to_end.test_drafts import MAX_TOKENS, OPTIONS, PROMPTS, answers_of, drafter_of
from tests.engine.drafting.tail_checkpoints import LAYERS, change_tensors, save_with_layer
from tools.cycle_model import BIAS, CYCLES_SEED, LAYER_SHARE, successors

DRAFTING = (*OPTIONS, "--drafter", "tail")

NEXTN_LAYER = f"model.layers.{LAYERS}."


def walking_cycles(tensors):
    """Text that runs in circles, and a layer that says the word behind the next token."""
    words, width = tensors["model.embed_tokens.weight"].shape
    after = successors(words, cycle=20, wrong=0.0)
    embedding = torch.randn(words, width, generator=torch.Generator().manual_seed(CYCLES_SEED))
    head = torch.zeros_like(embedding).index_add_(0, after, embedding) * (BIAS / width)
    quiet = {
        name: tensor * LAYER_SHARE
        for name, tensor in tensors.items()
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj"))
    }
    norms = "enorm", "hnorm", "shared_head.norm"
    own = {f"{NEXTN_LAYER}{one}.weight": torch.ones(width) for one in norms}
    own[f"{NEXTN_LAYER}eh_proj.weight"] = torch.eye(width, 2 * width)  # The next token alone.
    ends = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    return tensors | quiet | own | ends | {"model.norm.weight": torch.ones(width)}


def generated(directory, prompts) -> list[list[int]]:
    """What the library's own `generate` continues each prompt with, end tokens ignored."""
    model, answers = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32), []
    model.generation_config.eos_token_id = None
    for prompt in prompts:
        ids, settings = torch.tensor([prompt]), {"max_new_tokens": MAX_TOKENS, "do_sample": False}
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        answers.append(whole[0, len(prompt) :].tolist())
    return answers


async def test_a_layer_that_is_right_brings_several_tokens_a_round(tools, tmp_path):
    save_with_layer("glm4_moe", tmp_path)
    change_tensors(tmp_path, walking_cycles)
    expected = generated(tmp_path, PROMPTS)
    with tools.serving(str(tmp_path), *DRAFTING) as server:
        assert await answers_of(tools, server, PROMPTS, temperature=0) == expected
        own = await drafter_of(tools, server, "tail")
    assert own["acceptance"] > 0.8
    assert own["tokens_per_round"] > 1.5


async def test_a_layer_that_is_wrong_changes_nothing_beside_states(tools, tmp_path):
    """Layers with states go back behind each wrong draft. Drawn answers, too."""
    save_with_layer("qwen3_5_text", tmp_path)
    expected = generated(tmp_path, PROMPTS)
    drawn = []
    for options in (OPTIONS, DRAFTING):
        with tools.serving(str(tmp_path), *options) as server:
            assert await answers_of(tools, server, PROMPTS, temperature=0) == expected
            drawn.append(await answers_of(tools, server, PROMPTS, temperature=0.8))
            if options is DRAFTING:
                assert (await drafter_of(tools, server, "tail"))["acceptance"] < 0.5
    assert drawn[0] == drawn[1]


async def test_a_layer_that_is_half_there_costs_no_ring(tools, tmp_path):
    save_with_layer("glm4_moe", tmp_path)
    lost = f"{NEXTN_LAYER}hnorm.weight"
    change_tensors(tmp_path, lambda tensors: {k: v for k, v in tensors.items() if k != lost})
    expected = generated(tmp_path, PROMPTS[:1])
    half = f"The ring serves without drafts of its tail: its drafting layer lacks {lost}."
    with tools.serving(str(tmp_path), *DRAFTING) as server:
        assert await answers_of(tools, server, PROMPTS[:1], temperature=0) == expected
        assert "hnorm.weight" in "".join(server.stderr)
        found = await tools.get(server.url, "/cluster")
        assert found["rings"][0]["drafters"] == []
        assert found["trouble"] == [half]
    with cluster(tmp_path / "up", str(tmp_path), "--drafter", "auto") as made:
        assert (await tools.get(made.url, "/cluster"))["trouble"] == [half]
        made.up.line_with(half)


async def test_the_agent_that_holds_the_tail_fetches_the_layer(tools, tmp_path):
    """Of a model that agents fetch from their coordinator. Without delays no draft is worth it."""
    save_with_layer("glm4_moe", model := tmp_path / "model")
    change_tensors(model, walking_cycles)
    expected = generated(model, PROMPTS)
    options = ("--min-nodes", "2", "--wait", "--dtype", "float32", "--context-tokens", "256")
    with cluster(tmp_path, model, *options, "--split", "even", "--drafter", "tail") as made:
        for name in ("anna", "ben"):
            made.join(name, "--threads", "1", known_steps=True)
        made.up.line("ready")
        assert await answers_of(tools, made, PROMPTS, temperature=0) == expected
        (ring,) = (await tools.get(made.url, "/cluster"))["rings"]
        tail = ring["stages"][-1]["node"]
        held = [one for one in made.agents if list(made.data_dir(one).rglob("drafts*"))]
        assert held == [tail]
