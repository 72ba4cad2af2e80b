"""How much does a model's answer change when its weights are rounded?

    python -m tools.experiments.quantized.quality TEXTS --out DIR

Rounds the linears of the demo model to each packed form, by plain rounding, and reads TEXTS (a JSON
string on each line, as `tools/demo_model/corpus.py` writes `heldout.jsonl`) with what the form
gives back. Every number but the weights is fp32, so that nothing else is measured. Beside the loss
stand the divergence from the model as it is stored (KL, in thousandths of a nat) and how often the
likeliest word is the same: a model that learned its text by heart hides its damage in the loss.
"""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path

import click
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from transformers import AutoModelForCausalLM, AutoTokenizer

from molink.engine.kernels.packed_weights import (
    E2M1,
    EXPONENT_BIAS,
    MXFP4_GROUP,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    Mxfp4Weight,
    QuantizedWeight,
)
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

Round = Callable[[torch.Tensor], QuantizedWeight]

DEMO = Path(__file__).parents[3] / "molink" / "models" / "demo"

HEAD = "lm_head"


@experiment
@click.argument("texts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--documents", default=100, show_default=True)
def main(out: Path, texts: Path, documents: int) -> None:
    """Print loss, divergence and agreement of the demo model by the form of its weights."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    lines = texts.read_text(encoding="utf-8").splitlines()[:documents]
    rows = [tokenizer(json.loads(line), add_special_tokens=False)["input_ids"] for line in lines]
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    wanted = [_logprobs(model, ids) for ids in rows]
    results = {"as stored": _compared(wanted, wanted, rows)}
    for name, (layers, head) in _forms().items():
        rounded = _rounded(model, layers, head)
        results[name] = _compared([_logprobs(rounded, ids) for ids in rows], wanted, rows)
    write_report(out, "quality", {"documents": len(rows), "results": results})
    head_row = ["weights", "KL, 1e-3", "likeliest word, %", "loss", "perplexity"]
    table = [
        [
            name,
            f"{one['kl'] * 1e3:.3f}",
            f"{one['same'] * 100:.1f}",
            f"{one['loss']:.4f}",
            f"{math.exp(one['loss']):.4f}",
        ]
        for name, one in results.items()
    ]
    show(markdown_table(head_row, table))


def _forms() -> dict[str, tuple[Round | None, Round | None]]:
    """What the layers and the output head are rounded to, by name."""
    return {
        "int8 per output": (int8, None),
        "int8 per output, head too": (int8, int8),
        "FP8 per output": (fp8, None),
        "int4, groups of 32": (int4(32), None),
        "int4, groups of 32, head int8": (int4(32), int8),
        "int4, groups of 128": (int4(128), None),
        "int4, groups of 128, head int8": (int4(128), int8),
        "int4, groups of 128, head too": (int4(128), int4(128)),
        "MXFP4": (mxfp4, None),
    }


# -- reading text ---------------------------------------------------------------------------------


def _logprobs(model: nn.Module, ids: list[int]) -> torch.Tensor:
    """[T - 1, vocabulary]: of every next token."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), -1)


def _compared(
    found: list[torch.Tensor], wanted: list[torch.Tensor], rows: list[list[int]]
) -> dict[str, float]:
    """Means over all tokens."""
    got, true = torch.cat(found), torch.cat(wanted)
    target = torch.tensor([token for ids in rows for token in ids[1:]])
    return {
        "kl": float((true.exp() * (true - got)).sum(-1).mean()),
        "same": float((true.argmax(-1) == got.argmax(-1)).float().mean()),
        "loss": float(cross_entropy(got, target)),
    }


def _rounded(model: nn.Module, layers: Round | None, head: Round | None) -> nn.Module:
    """A copy of the model with the numbers that packed weights give back."""
    rounded = copy.deepcopy(model)
    for name, module in rounded.named_modules():
        form = head if name == HEAD else layers
        if isinstance(module, nn.Linear) and form is not None:
            exact = form(module.weight.detach()).dequantized(torch.float32)
            # A parameter of its own: tied embeddings stay as they are.
            module.weight = nn.Parameter(exact[:, : module.in_features], requires_grad=False)
    return rounded


# -- plain rounding -------------------------------------------------------------------------------


def _grouped(weight: torch.Tensor, group: int) -> torch.Tensor:
    """[N, G, g]: a short last group is filled with its last number."""
    missing = -weight.shape[1] % group
    filled = pad(weight[:, None], (0, missing), "replicate")[:, 0] if missing else weight
    return filled.reshape(len(weight), -1, group)


def int4(group: int) -> Round:
    """Four bits between the least and the largest number of each group, kept in bf16."""

    def rounded(weight: torch.Tensor) -> QuantizedWeight:
        parts = _grouped(weight, group)
        low, high = parts.amin(-1), parts.amax(-1)
        scale = ((high - low).clamp(min=1e-9) / 15).bfloat16()
        zero = (low + 8 * scale.float()).bfloat16()
        codes = (parts - zero.float()[..., None]) / scale.float()[..., None] + 8
        flat = codes.round().clamp(0, 15).to(torch.uint8).flatten(1)
        return Int4Weight(flat[:, 0::2] | flat[:, 1::2] << 4, scale, zero)

    return rounded


def int8(weight: torch.Tensor) -> QuantizedWeight:
    """Eight bits with a scale for each output."""
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    codes = (weight / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return Int8Weight(codes, scale)


def fp8(weight: torch.Tensor) -> QuantizedWeight:
    """Eight-bit floating point with a scale for each output."""
    scale = weight.abs().amax(1, keepdim=True) / 448
    return Fp8Weight((weight / scale).to(torch.float8_e4m3fn), scale)


def mxfp4(weight: torch.Tensor) -> QuantizedWeight:
    """Four-bit floating point with an exponent for 32 inputs."""
    parts = _grouped(weight, MXFP4_GROUP)
    exponent = parts.abs().amax(-1, keepdim=True).clamp(min=1e-30).log2().floor() - 2
    scaled = parts / 2**exponent
    positive = torch.tensor(E2M1[:8])
    codes = (scaled.abs()[..., None] - positive).abs().argmin(-1) + 8 * (scaled < 0)
    flat = codes.to(torch.uint8).flatten(1)
    exponents = (exponent[..., 0] + EXPONENT_BIAS).to(torch.uint8)
    return Mxfp4Weight(flat[:, 0::2] | flat[:, 1::2] << 4, exponents)


if __name__ == "__main__":
    main()
