"""Train the demo model on one CPU thread.

The rows come from ``corpus.py``, packed and encoded by ``train_tokenizer.py``. Now and then the
state goes to the work folder, and ``--resume`` goes on from there; the last step writes the
Hugging Face files, rounded to bfloat16, to ``--out``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

DEFAULT_WORK = Path("build/demo_model")
VOCAB_SIZE = 4096
PROMPTS = ["<|bos|>Once upon a time", "<|bos|><|user|>What is MoLink?<|end|><|assistant|>"]
DEFAULT_OUT = Path("molink/models/demo")


def demo_config(vocab_size: int, bos: int, eos: list[int], pad: int) -> LlamaConfig:
    """Nine small llama layers: enough to cut into three stages of three."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=9,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
        initializer_range=0.03,
    )


def calm_residuals(model: LlamaForCausalLM) -> None:
    """Scale the two projections that write to the residual stream by its depth."""
    factor = (2 * model.config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(factor)
            layer.mlp.down_proj.weight.mul_(factor)


def optimizer_for(model: nn.Module, rate: float) -> torch.optim.AdamW:
    """AdamW, with weight decay on the matrices and none on the norms."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.05},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.97), eps=1e-8)


def rate_at(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then a cosine down to two per cent of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))))


def own_document(rows: Tensor, bos: int) -> Tensor:
    """The causal mask in which a token sees only its own document of the packed row."""
    document = (rows == bos).cumsum(dim=1)
    same = document[:, :, None] == document[:, None, :]
    return same.tril()[:, None]


def loss_of(model: LlamaForCausalLM, rows: Tensor, bf16: bool, across: bool) -> Tensor:
    """Mean next-token loss in nats, without padding and, under the mask, without new starts."""
    seen, labels = rows[:, :-1], rows[:, 1:].reshape(-1)
    mask = None if across else own_document(seen, model.config.bos_token_id)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        logits = model(input_ids=seen, attention_mask=mask, use_cache=False).logits
    flat = logits.reshape(-1, logits.shape[-1]).float()
    skipped = labels == model.config.pad_token_id
    if not across:
        skipped |= labels == model.config.bos_token_id
    return nn.functional.cross_entropy(flat, labels.masked_fill(skipped, -100))


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: list[str]
) -> list[str]:
    """Greedy continuations, to look at while the training runs."""
    model.eval()
    texts = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        out = model.generate(ids, max_new_tokens=90, do_sample=False)
        texts.append(tokenizer.decode(out[0]))
    model.train()
    return texts


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write the weights in bfloat16 with their configuration and a plain tokenizer folder."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        max_new_tokens=384,
    )
    copy.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(out, save_jinja_files=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "pad_token": tokenizer.pad_token,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.config.max_position_embeddings,
        "chat_template": tokenizer.chat_template,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--rows", type=int, default=4, help="rows of a step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--fp32", action="store_true", help="no bfloat16 autocast")
    parser.add_argument("--across", action="store_true", help="no mask between packed documents")
    parser.add_argument("--begin", type=int, default=0, help="step at which the schedule begins")
    parser.add_argument("--stop", type=int, help="stop after the checkpoint of this step")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--save-every", type=int, default=150)
    return parser.parse_args()


def new_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """An untrained model for this tokenizer."""
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|end|>")]
    size = max(VOCAB_SIZE, len(tokenizer))
    model = LlamaForCausalLM(
        demo_config(size, tokenizer.bos_token_id, ends, tokenizer.pad_token_id)
    )
    calm_residuals(model)
    return model.train()


def train_step(
    model: LlamaForCausalLM,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    rate: float,
    args: argparse.Namespace,
) -> float:
    """One step of the optimizer; returns the loss before it."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = loss_of(model, batch, bf16=not args.fp32, across=args.across)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main() -> None:
    """Train and export."""
    args = parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.work / "tokenizer")
    model = new_model(tokenizer)
    optimizer = optimizer_for(model, args.rate)
    rows = np.load(args.work / "train_rows.npy", mmap_mode="r")
    state_path, first = args.work / "state.pt", 0
    if args.resume and state_path.exists():
        state = torch.load(state_path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(rows):,} rows")
    order = np.random.default_rng(args.seed).permutation(len(rows))
    begin, mean = time.monotonic(), 0.0
    for step in range(first, args.steps):
        rate = rate_at(step - args.begin, args.steps - args.begin, args.rate, warmup=60)
        picked = [order[(step * args.rows + i) % len(order)] for i in range(args.rows)]
        batch = torch.from_numpy(rows[picked].astype(np.int64))
        loss = train_step(model, optimizer, batch, rate, args)
        mean = loss if step == first else 0.95 * mean + 0.05 * loss
        if step % 10 == 9:
            speed = (step + 1 - first) * args.rows * rows.shape[1] / (time.monotonic() - begin)
            print(f"step {step + 1} loss {mean:.3f} rate {rate:.2e} {speed:.0f} tok/s", flush=True)
        if (step + 1) % args.save_every == 0 and step + 1 < args.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step + 1}, state_path)
            print("\n".join(sample(model, tokenizer, PROMPTS)), flush=True)
            if step + 1 == args.stop:
                return
    print(f"trained for {time.monotonic() - begin:.0f} s")
    export(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
