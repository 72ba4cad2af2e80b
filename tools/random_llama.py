"""Write the random llama of the speed benchmarks: 88M parameters, bf16.

    python tools/random_llama.py DIRECTORY [LAYERS [VOCABULARY [POSITIONS]]] [--width 768]

Hidden size 768, 12 layers, 12 heads, 4 KV heads, intermediate size 2048, vocabulary 8192. Its text
means nothing; its steps cost what those of a real model of this shape cost. Fewer layers put the
same bytes on every link with less compute between them; a larger vocabulary makes the ends heavier,
and more positions than 4,096 let it read longer contexts. With --width its rows, heads and MLPs are
smaller in proportion: 2 layers of width 128 and the same words are a drafter.
"""

from math import ceil, gcd
from pathlib import Path

import click
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 0

HEAD_SIZE, KV_HEADS_MAX = 64, 4

MLP_TIMES, MLP_MULTIPLE = 8 / 3, 32
"""Intermediate size as a multiple of the width, rounded up."""


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("layers", type=click.IntRange(1), default=12)
@click.argument("vocabulary", type=click.IntRange(8), default=8192)
@click.argument("positions", type=click.IntRange(8), default=4096)
@click.option("--width", type=click.IntRange(HEAD_SIZE), default=768, show_default=True)
def main(directory: Path, layers: int, vocabulary: int, positions: int, width: int) -> None:
    """Write the model into a folder."""
    if width % HEAD_SIZE:
        raise click.BadParameter(f"--width is a multiple of {HEAD_SIZE}: heads are so wide")
    torch.manual_seed(SEED)
    heads = width // HEAD_SIZE
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=MLP_MULTIPLE * ceil(width * MLP_TIMES / MLP_MULTIPLE),
        num_attention_heads=heads,
        num_key_value_heads=gcd(heads, KV_HEADS_MAX),
        max_position_embeddings=positions,
        initializer_range=0.06,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    main()
