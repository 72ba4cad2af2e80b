"""Held-out loss of the demo model, next to that of an interpolated n-gram over the same tokens.

The weights are the rounded bfloat16 ones of the model folder, computed with in float32. Both
predict every token after the first of every held-out document, and both start each document anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

Loss = tuple[float, int]
Context = tuple[int, ...]

PROMPTS = [
    "Hello!",
    "Who are you?",
    "Tell me a story about a fox and a lighthouse.",
    "What is MoLink?",
    "What is a stage?",
    "What is a micro-batch?",
    "How does a volunteer help?",
    "What is the capital of France?",
    "Why does it rain?",
    "Give me a recipe for pancakes.",
]


def encode_lines(path: Path, tokenizer: PreTrainedTokenizerBase, longest: int) -> list[list[int]]:
    """The documents of a corpus file as token ids."""
    texts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [tokenizer.encode(text, add_special_tokens=False)[:longest] for text in texts]


class InterpolatedNgram:
    """Witten-Bell interpolation of the orders 1 to ``order``, on top of a uniform guess."""

    def __init__(self, order: int, vocab_size: int) -> None:
        self.order = order
        self.vocab_size = vocab_size
        self.counts: dict[Context, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.totals: dict[Context, int] = defaultdict(int)

    def learn(self, documents: list[list[int]]) -> None:
        """Count every token after each of its contexts."""
        for ids in documents:
            for at in range(1, len(ids)):
                for size in range(min(self.order, at + 1)):
                    context = tuple(ids[at - size : at])
                    self.counts[context][ids[at]] += 1
                    self.totals[context] += 1

    def probability(self, ids: list[int], at: int) -> float:
        """Probability of ``ids[at]`` after the tokens before it."""
        guess = 1.0 / self.vocab_size
        for size in range(min(self.order, at + 1)):
            context = tuple(ids[at - size : at])
            total = self.totals.get(context, 0)
            if not total:
                break
            seen = self.counts[context]
            guess = (seen.get(ids[at], 0) + len(seen) * guess) / (total + len(seen))
        return guess

    def loss(self, ids: list[int]) -> Loss:
        """Summed loss in nats and the number of predicted tokens."""
        total = -sum(math.log(self.probability(ids, at)) for at in range(1, len(ids)))
        return total, len(ids) - 1


@torch.no_grad()
def model_loss(model: torch.nn.Module, ids: list[int]) -> Loss:
    """Summed loss in nats and the number of predicted tokens."""
    row = torch.tensor([ids])
    logits = model(input_ids=row[:, :-1], use_cache=False).logits[0].float()
    return cross_entropy(logits, row[0, 1:], reduction="sum").item(), len(ids) - 1


def mean(losses: list[Loss]) -> float:
    """Loss of a token over many documents."""
    return sum(loss for loss, _ in losses) / sum(count for _, count in losses)


@torch.no_grad()
def print_samples(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Answers to ten prompts, greedy and sampled, and one plain continuation."""
    torch.manual_seed(0)
    texts = []
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        texts.append(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        )
    texts.append("<|bos|>Once upon a time")
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        for sampled in (False, True):
            how = {"temperature": 0.7, "top_p": 1.0, "top_k": 0} if sampled else {}
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=420,
                do_sample=sampled,
                **(how or {"temperature": None, "top_p": None}),
            )
            ended = int(out[0, -1]) in model.generation_config.eos_token_id
            name = "T=0.7 " if sampled else "greedy"
            print(f"--- {name} ended={ended} {text!r}")
            print(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def main() -> None:
    """Print one JSON line of losses, and samples on request."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"))
    parser.add_argument("--model", type=Path, default=Path("molink/models/demo"))
    parser.add_argument("--order", type=int, default=4, help="order of the n-gram")
    parser.add_argument("--longest", type=int, default=512, help="tokens kept of a document")
    parser.add_argument("--samples", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    heldout = encode_lines(args.work / "heldout.jsonl", tokenizer, args.longest)
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    kinds = ["chat" if user in ids else "story" for ids in heldout]
    ngram = InterpolatedNgram(args.order, len(tokenizer))
    ngram.learn(encode_lines(args.work / "train.jsonl", tokenizer, args.longest))
    report: dict[str, float] = {"tokens": sum(len(ids) - 1 for ids in heldout)}
    scores = {
        "model": [model_loss(model, ids) for ids in heldout],
        f"{args.order}-gram": [ngram.loss(ids) for ids in heldout],
    }
    for name, losses in scores.items():
        report[f"{name} loss"] = mean(losses)
        report[f"{name} perplexity"] = math.exp(mean(losses))
        for kind in ("story", "chat"):
            part = [loss for loss, k in zip(losses, kinds, strict=True) if k == kind]
            report[f"{name} loss, {kind}"] = mean(part)
    print(json.dumps({key: round(value, 4) for key, value in report.items()}, indent=2))
    if args.samples:
        print_samples(model, tokenizer)


if __name__ == "__main__":
    main()
