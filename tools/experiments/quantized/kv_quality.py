"""What int8 KV costs in quality: the demo model on text that it was not trained on.

    python tools/demo_model/corpus.py
    python -m tools.experiments.quantized.kv_quality --out DIR

The library computes the model in fp32, so that nothing but the KV differs: its keys (after
rotation) and values are rounded by the stages' own function on their way into attention. Every
document is read at once, which reads the same rounded keys and values as one token after another.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from molink.engine.memory.kv_rows import KvRows, quantize
from molink.models import DEMO_MODEL_DIR
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

NAME = "rounded_kv"
"""Under which the library finds this attention."""

TOKENS_MAX = 512
"""Of a document: the length that the demo model was trained with."""

Rounding = Callable[[torch.Tensor], torch.Tensor]


def _int8(rows: torch.Tensor) -> torch.Tensor:
    return KvRows(*quantize(rows)).numbers(torch.float32)


ROUNDINGS: dict[str, Rounding] = {
    "fp32": lambda rows: rows,
    "bf16": lambda rows: rows.bfloat16().float(),
    "int8": _int8,
}


@experiment
@click.option("--model", default=str(DEMO_MODEL_DIR), show_default=True, help="A directory.")
@click.option(
    "--text",
    type=click.Path(exists=True, path_type=Path),
    default="build/demo_model/heldout.jsonl",
    show_default=True,
)
@click.option("--documents", default=100, show_default=True)
def main(out: Path, model: str, text: Path, documents: int) -> None:
    """Print loss, perplexity, KL to fp32 and agreement of the likeliest token, by format of KV."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = text.read_text(encoding="utf-8").splitlines()[:documents]
    read = [tokenizer.encode(json.loads(line), add_special_tokens=False) for line in lines]
    ids = [torch.tensor([one[:TOKENS_MAX]]) for one in read]
    logits = {name: _logits(model, ids, rounding) for name, rounding in ROUNDINGS.items()}
    figures = {name: _figures(ids, logits["fp32"], logits[name]) for name in ROUNDINGS}
    names = list(figures["fp32"])
    cells = [[kv, *(f"{one[name]:.7g}" for name in names)] for kv, one in figures.items()]
    show(markdown_table(["KV", *names], cells))
    report = {"tokens": sum(one.shape[1] for one in ids), "documents": len(ids), "kv": figures}
    write_report(out, "kv_quality", report, "kv_quality")


@torch.no_grad()
def _logits(directory: str, ids: Sequence[torch.Tensor], rounding: Rounding) -> list[torch.Tensor]:
    """[tokens, vocabulary] of every document."""

    def attend(
        module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: Any, **options: Any
    ) -> Any:
        return sdpa_attention_forward(module, q, rounding(k), rounding(v), *mask, **options)

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation=NAME
    ).eval()
    return [model(input_ids=one).logits[0] for one in ids]


def _figures(
    ids: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> dict[str, float]:
    pairs = list(zip(exact, given, strict=True))
    losses = torch.cat(
        [
            cross_entropy(z[:-1], one[0, 1:], reduction="none")
            for z, one in zip(given, ids, strict=True)
        ]
    )
    divergence = torch.cat([_divergence(a, b) for a, b in pairs])
    agree = torch.cat([(a.argmax(-1) == b.argmax(-1)).float() for a, b in pairs])
    return {
        "loss": losses.mean().item(),
        "perplexity": losses.mean().exp().item(),
        "KL to fp32": divergence.mean().item(),
        "top 1, %": agree.mean().item() * 100,
    }


def _divergence(exact: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    a, b = exact.double().log_softmax(-1), given.double().log_softmax(-1)
    return (a.exp() * (a - b)).sum(-1)


if __name__ == "__main__":
    main()
