"""Distil a two-layer drafter of the demo model on one CPU thread.

It sees the texts of ``corpus.py`` and learns, by the KL divergence, what the demo model would say
to each of their tokens: the whole distribution, because a draft counts where both models draw the
same token with the same number. The tokenizer is the demo model's, and stands there alone.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from train import export, optimizer_for, own_document, rate_at
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

DEMO = Path("molink/models/demo")
DEFAULT_OUT = Path("molink/models/demo_drafter")
WIDTH, INNER, LAYERS, HEADS, KV_HEADS = 128, 352, 2, 4, 2
ROW_TOKENS = 256


def drafter_config(demo: LlamaConfig) -> LlamaConfig:
    """Two narrow llama layers over the demo model's vocabulary."""
    return LlamaConfig(
        vocab_size=demo.vocab_size,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=demo.max_position_embeddings,
        rms_norm_eps=demo.rms_norm_eps,
        tie_word_embeddings=True,
        bos_token_id=demo.bos_token_id,
        eos_token_id=demo.eos_token_id,
        pad_token_id=demo.pad_token_id,
        initializer_range=0.03,
    )


def packed_rows(path: Path, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """The beginnings of the documents behind one another, cut into rows."""
    ids: list[int] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        ids += tokenizer.encode(json.loads(line), add_special_tokens=False)[:ROW_TOKENS]
    count = len(ids) // ROW_TOKENS
    return np.array(ids[: count * ROW_TOKENS], dtype=np.int64).reshape(count, ROW_TOKENS)


def distance(drafter: LlamaForCausalLM, demo: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """Mean KL divergence of a token's distribution from the demo model's, in nats."""
    mask = own_document(rows, demo.config.bos_token_id)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        said = drafter(input_ids=rows, attention_mask=mask, use_cache=False).logits.float()
        with torch.no_grad():
            goal = demo(input_ids=rows, attention_mask=mask, use_cache=False).logits.float()
    likely, wanted = said.log_softmax(-1).flatten(0, 1), goal.softmax(-1).flatten(0, 1)
    return nn.functional.kl_div(likely, wanted, reduction="batchmean")


def distil(
    drafter: LlamaForCausalLM, demo: LlamaForCausalLM, rows: np.ndarray, args: argparse.Namespace
) -> None:
    """Train for so many steps, and print how it goes."""
    order = np.random.default_rng(args.seed).permutation(len(rows))
    optimizer, begin, mean = optimizer_for(drafter, args.rate), time.monotonic(), 0.0
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, args.steps, args.rate, warmup=40)
        picked = [order[(step * args.rows + i) % len(order)] for i in range(args.rows)]
        loss = distance(drafter, demo, torch.from_numpy(rows[picked]))
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.item() if step == 0 else 0.95 * mean + 0.05 * loss.item()
        if step % 25 == 24:
            spent = time.monotonic() - begin
            print(f"step {step + 1} distance {mean:.3f} {spent:.0f} s", flush=True)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"))
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=6, help="rows of a step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Train, and write the checkpoint, without a tokenizer."""
    args = parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    demo = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    drafter = LlamaForCausalLM(drafter_config(demo.config)).train()
    rows = packed_rows(args.work / "train.jsonl", tokenizer)
    print(f"{sum(p.numel() for p in drafter.parameters()):,} parameters, {len(rows):,} rows")
    distil(drafter, demo, rows, args)
    export(drafter, tokenizer, args.out)
    for copy in args.out.glob("tokenizer*"):
        copy.unlink()


if __name__ == "__main__":
    main()
