"""Write a llama whose greedy text walks round cycles of words, from any llama.

    python tools/cycle_model.py SOURCE DIRECTORY [--cycle 500] [--wrong 0.13]

Every word has one successor, and so many words in a row come back to the first: what a prompt holds
once, an answer copies. The layers cost what they did and change next to nothing. With --wrong that
share of the words has another successor than without: a drafter of set acceptance, for a model of
the same vocabulary and --cycle, whatever the sizes of both. The text means nothing.
"""

from pathlib import Path

import click
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

FIRST_WORD = 4
"""The words before are a tokenizer's marks, which follow themselves."""

CYCLES_SEED, WRONG_SEED = 1, 2

BIAS = 4.0
"""Logit of the successor: far above all others, as random words are nearly at right angles."""

LAYER_SHARE = 0.02
"""Share of what layers add: enough to be computed, too little to change a word."""


def successors(vocabulary: int, cycle: int, wrong: float) -> torch.Tensor:
    """The word that follows each word, [V]."""
    order = torch.Generator().manual_seed(CYCLES_SEED)
    words = torch.randperm(vocabulary - FIRST_WORD, generator=order) + FIRST_WORD
    after = torch.arange(vocabulary)
    for first in range(0, len(words), cycle):
        run = words[first : first + cycle]
        after[run] = run.roll(-1)
    drawn = torch.rand(vocabulary, generator=torch.Generator().manual_seed(WRONG_SEED))
    bad = drawn < wrong
    after[bad] = after[after[bad]]
    return after


@torch.no_grad()
def make_cyclic(model: PreTrainedModel, after: torch.Tensor) -> None:
    """Set embedding and head so that the likeliest word is the successor of the last."""
    words, width = model.config.vocab_size, model.config.hidden_size
    embedding = torch.randn(words, width, generator=torch.Generator().manual_seed(CYCLES_SEED))
    head = torch.zeros_like(embedding).index_add_(0, after, embedding)
    model.config.tie_word_embeddings = False
    model.model.embed_tokens.weight.copy_(embedding)
    model.lm_head.weight = torch.nn.Parameter(head * (BIAS / width))
    model.model.norm.weight.fill_(1.0)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(LAYER_SHARE)
        layer.mlp.down_proj.weight.mul_(LAYER_SHARE)


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--cycle", type=click.IntRange(2), default=500, show_default=True)
@click.option("--wrong", type=click.FloatRange(0, 1), default=0.0, show_default=True)
def main(source: Path, directory: Path, cycle: int, wrong: float) -> None:
    """Write a cyclic model of SOURCE's shape into DIRECTORY."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    make_cyclic(model, successors(model.config.vocab_size, cycle, wrong))
    model.to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    main()
