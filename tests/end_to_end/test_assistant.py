"""A ring whose tail drafts with an assistant of Gemma 4 answers as one that does not."""

import torch

from tests.end_to_end.test_drafts import OPTIONS, PROMPTS, answers_of, drafter_of
from tests.end_to_end.test_tail_drafts import generated
from tests.engine.drafting.assistant_checkpoints import save_assisted
from tests.engine.drafting.tail_checkpoints import change_tensors
from tools.cycle_model import BIAS, CYCLES_SEED, LAYER_SHARE, successors

TWO = ("--nodes", "2", *OPTIONS[2:])


def quiet(tensors):
    """Layers that hardly change what they are given."""
    ends = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
    own = {name: one * LAYER_SHARE for name, one in tensors.items() if name.endswith(ends)}
    return tensors | own | {"model.norm.weight": torch.ones_like(tensors["model.norm.weight"])}


def walking_cycles(directory):
    """Text that runs in circles, and an assistant that says the word behind the last one."""
    made = {}

    def target(tensors):
        words, width = tensors["model.embed_tokens.weight"].shape
        after = successors(words, cycle=20, wrong=0.0)
        generator = torch.Generator().manual_seed(CYCLES_SEED)
        made["embedding"] = torch.randn(words, width, generator=generator)
        head = torch.zeros_like(made["embedding"]).index_add_(0, after, made["embedding"])
        made["head"] = head * (BIAS / width)
        ends = {"model.embed_tokens.weight": made["embedding"], "lm_head.weight": made["head"]}
        return quiet(tensors) | ends

    def assistant(tensors):
        width = made["head"].shape[1]
        own = {"model.embed_tokens.weight": made["head"]}
        own["pre_projection.weight"] = torch.eye(width, 2 * width)  # The last token alone.
        return quiet(tensors) | own

    change_tensors(directory, target)
    change_tensors(directory / "assistant", assistant)


async def test_one_that_is_right_brings_several_tokens_a_round(tools, tmp_path):
    """The second time prompts begin with cached blocks."""
    of_both = {"tie_word_embeddings": False}
    save_assisted("plain", tmp_path, of_both=of_both, of_text={"hidden_size": 64})
    walking_cycles(tmp_path)
    prompts = [*PROMPTS, [7 + n % 90 for n in range(70)]]
    expected = generated(tmp_path, prompts)
    drafting = ("--drafter", str(tmp_path / "assistant"))
    with tools.serving(str(tmp_path), *TWO, *drafting) as server:
        for _ in range(2):
            assert await answers_of(tools, server, prompts, temperature=0) == expected
        own = await drafter_of(tools, server, "tail")
        assert (await tools.get(server.url, "/cluster"))["trouble"] == []
    assert own["acceptance"] > 0.8
    assert own["tokens_per_round"] > 1.5


async def test_one_that_is_wrong_changes_nothing(tools, tmp_path):
    """Of a model whose last layers share KV; drawn answers, too."""
    save_assisted("shares", tmp_path)
    expected = generated(tmp_path, PROMPTS)
    drawn = []
    for options in (TWO, (*TWO, "--drafter", str(tmp_path / "assistant"))):
        with tools.serving(str(tmp_path), *options) as server:
            assert await answers_of(tools, server, PROMPTS, temperature=0) == expected
            drawn.append(await answers_of(tools, server, PROMPTS, temperature=0.8))
    assert drawn[0] == drawn[1]


async def test_a_cut_between_the_layers_that_it_reads_is_named(tools, tmp_path):
    save_assisted("plain", tmp_path)
    expected = generated(tmp_path, PROMPTS[:1])
    options = ("--layers", "0-5,5-7", "--drafter", str(tmp_path / "assistant"))
    with tools.serving(str(tmp_path), *TWO, *options) as server:
        assert await answers_of(tools, server, PROMPTS[:1], temperature=0) == expected
        (sentence,) = (await tools.get(server.url, "/cluster"))["trouble"]
    assert sentence.startswith("The ring serves without the drafter assistant: ")
    assert "layers 4 to 6" in sentence and "cut the model at layer 4 or before" in sentence
