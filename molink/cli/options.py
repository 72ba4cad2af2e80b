"""Options that more than one subcommand takes."""

from collections.abc import Callable
from typing import Any

import click

__all__ = ["ring_options"]

Command = Callable[..., Any]

_RING_OPTIONS = (
    click.option("--nodes", default=3, show_default=True, help="Stage processes to start."),
    click.option(
        "--layers",
        metavar="A-B,B-C,...",
        help="Layers of each stage, ends not included; without it they are split evenly.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        show_default=True,
        help="Number format of weights and activations.",
    ),
    click.option(
        "--device", default="auto", show_default=True, help="auto, cpu or cuda:N, for every stage."
    ),
    click.option("--threads", default=1, show_default=True, help="Compute threads of each stage."),
    click.option(
        "--max-model-len",
        "model_len_max",
        type=int,
        help="Most tokens of prompt and answer together; without it the model's own length.",
    ),
    click.option(
        "--kv-tokens",
        type=int,
        help="Tokens that each stage's KV cache holds; without it as many as memory allows.",
    ),
    click.option(
        "--micro-batches",
        "micro_batch_count",
        default=1,
        show_default=True,
        help="Decode groups that circle the ring.",
    ),
    click.option(
        "--span-tokens",
        default=128,
        show_default=True,
        help="Prompt tokens computed and sent at a time.",
    ),
)


def ring_options(command: Command) -> Command:
    """Add the options that describe a local ring."""
    for option in reversed(_RING_OPTIONS):
        command = option(command)
    return command
