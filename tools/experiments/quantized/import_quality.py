"""What does what `molink import` rounds cost in quality?

    python -m tools.experiments.quantized.import_quality CORPUS --out DIR

Imports the demo model in fewer bits, as `molink import` does, unpacks what was written and computes
with it in fp32 on documents that the model was not trained on (CORPUS: `heldout.jsonl`, made by
`tools/demo_model/corpus.py`). Beside the plain model: KL divergence of the distributions at every
position, how often the likeliest token is the same, and perplexity. The model is small and the
text easy, so perplexity hardly moves: read the divergence.
"""

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import read_declared
from molink.checkpoint.quantized.recognised import part_names, quantized_weights
from molink.checkpoint.safetensors_header import read_header
from molink.engine.model.quantized.readers import read_weight
from molink.engine.model.quantized.tensor_files import TensorFiles
from molink.importing.plain_model import WeightBits, import_plain
from molink.models import DEMO_MODEL_DIR
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

DOCUMENT_TOKENS_MAX = 512

IMPORTS: Mapping[str, tuple[WeightBits, int]] = {
    "int8": ("int8", 128),
    "int4, groups of 32": ("int4", 32),
    "int4, groups of 64": ("int4", 64),
    "int4, groups of 128": ("int4", 128),
}
HEAD = "lm_head.weight"


@experiment
@click.argument("corpus", type=click.Path(exists=True, path_type=Path))
@click.option("--documents", default=60, show_default=True, help="Of the corpus, from its start.")
@click.option("--threads", default=1, show_default=True, help="That compute.")
def main(corpus: Path, out: Path, documents: int, threads: int) -> None:
    """Print KL and perplexity of the demo model in fewer bits."""
    torch.set_num_threads(threads)
    texts = _texts(corpus, documents)
    plain = _model()
    wanted = [_logits(plain, ids) for ids in texts]
    rows = [_measured("bf16", 16.0, wanted, wanted, texts)]
    for name, (bits, group) in IMPORTS.items():
        weights, per_weight = _imported(bits, group)
        parts = {"": weights}
        if name == "int8":
            parts = {", head only": {HEAD: weights[HEAD]}, "": weights}
        for what, some in parts.items():
            logits = [_logits(_model(some), ids) for ids in texts]
            rows.append(_measured(name + what, per_weight, wanted, logits, texts))
    tokens = sum(len(ids) - 1 for ids in texts)
    write_report(out, "import_quality", {"documents": len(texts), "tokens": tokens, "rows": rows})
    show(markdown_table(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows]))


def _texts(corpus: Path, count: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    lines = corpus.read_text(encoding="utf-8").splitlines()[:count]
    encoded = [tokenizer.encode(json.loads(line), add_special_tokens=False) for line in lines]
    return [ids[:DOCUMENT_TOKENS_MAX] for ids in encoded if len(ids) > 1]


def _model(weights: Mapping[str, torch.Tensor] | None = None) -> Any:
    """The demo model in fp32, with some of its weights replaced."""
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL_DIR, dtype=torch.float32).eval()
    for name, matrix in (weights or {}).items():
        module = model.get_submodule(name.removesuffix(".weight"))
        module.weight = torch.nn.Parameter(matrix, requires_grad=False)  # Unties the head.
    return model


def _imported(bits: WeightBits, group: int) -> tuple[dict[str, torch.Tensor], float]:
    """What an import's codes mean, by plain names, and the bits of a weight in its file."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "imported"
        import_plain(DEMO_MODEL_DIR, folder, bits, group, lambda done, total: None)
        checkpoint = open_checkpoint(str(folder))
        paths = sorted(folder.glob("*.safetensors"))
        tables = {path: read_header(path).tensors for path in paths}
        tensors = [one for table in tables.values() for one in table]
        stored = quantized_weights(checkpoint.name, tensors, read_declared(checkpoint))
        parts = part_names(stored)
        files = TensorFiles(
            {one.name: path for path in paths for one in tables[path] if one.name in parts}
        )
        weights = {
            name: read_weight(one, files, torch.float32).dequantized(torch.float32)
            for name, one in stored.items()
        }
        layers = [one for name, one in stored.items() if name != HEAD]
        size = sum(one.file_bytes for one in layers)
        return weights, 8 * size / sum(one.outputs * one.inputs for one in layers)


@torch.inference_mode()
def _logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0]
    return logits


def _measured(
    name: str,
    bits: float,
    wanted: Sequence[torch.Tensor],
    logits: Sequence[torch.Tensor],
    texts: Sequence[Sequence[int]],
) -> dict[str, Any]:
    divergence = same = loss = count = 0.0
    for exact, got, ids in zip(wanted, logits, texts, strict=True):
        likely, new = exact.log_softmax(-1), got.log_softmax(-1)
        divergence += float((likely.exp() * (likely - new)).sum())
        same += float((exact.argmax(-1) == got.argmax(-1)).sum())
        loss += float(cross_entropy(got, torch.tensor(ids[1:]), reduction="sum"))
        count += len(ids) - 1
    return {
        "weights": name,
        "bits": round(bits, 2),
        "KL, 1e-3": round(1e3 * divergence / count, 4),
        "same token, %": round(100 * same / count, 2),
        "perplexity": round(math.exp(loss / count), 4),
    }


if __name__ == "__main__":
    main()
