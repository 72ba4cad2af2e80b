"""Write the random llama of the speed benchmarks: 88M parameters, bf16.

    python tools/random_llama.py DIRECTORY [LAYERS [VOCABULARY [POSITIONS]]]

Hidden size 768, 12 layers, 12 heads, 4 KV heads, intermediate size 2048, vocabulary 8192. Its text
means nothing; its steps cost what those of a real model of this shape cost. Fewer layers put the
same bytes on every link with less compute between them; a larger vocabulary makes the ends heavier,
and more positions than 4,096 let it read longer contexts.
"""

from pathlib import Path

import click
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 0


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("layers", type=click.IntRange(1), default=12)
@click.argument("vocabulary", type=click.IntRange(8), default=8192)
@click.argument("positions", type=click.IntRange(8), default=4096)
def main(directory: Path, layers: int, vocabulary: int, positions: int) -> None:
    """Write the model into a folder."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=768,
        num_hidden_layers=layers,
        intermediate_size=2048,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=positions,
        initializer_range=0.06,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    main()
