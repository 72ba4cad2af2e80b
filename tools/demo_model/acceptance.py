"""Measure which of the demo model's tokens its drafter guesses, teacher forced on its own answers.

A draft counts only where those before it were right, and then its context is the text itself, so
one pass over an answer tells all depths. Greedy, both models take their likeliest token; at a
temperature both draw with the number that the request's seed has for the position, as a ring and
its drafter do.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from evaluate import PROMPTS
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from molink.engine.sampling.drawing import inverse_cdf, uniform

Text = tuple[list[int], int]
"""Token ids, and how many of them are the prompt's."""

DRAFTS = 4


def drawn(logits_RW: torch.Tensor, seed: int, first: int, temperature: float) -> list[int]:
    """The token of each row, which is at the answer's position `first` and those after it."""
    if not temperature:
        return logits_RW.argmax(-1).tolist()
    numbers = [uniform(seed, first + row) for row in range(len(logits_RW))]
    chances_RW = (logits_RW.double() / temperature).softmax(-1)
    return inverse_cdf(chances_RW, torch.tensor(numbers, dtype=torch.float64)).tolist()


@torch.inference_mode()
def answer(
    model: torch.nn.Module, prompt: list[int], seed: int, temperature: float, longest: int
) -> Text:
    """A prompt and what the model answers, up to its end."""
    ids, cache, new = list(prompt), None, prompt
    while len(ids) - len(prompt) < longest and ids[-1] not in (2, 3):
        out = model(input_ids=torch.tensor([new]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        new = drawn(out.logits[0, -1:].float(), seed, len(ids) - len(prompt), temperature)
        ids += new
    return ids, len(prompt)


@torch.inference_mode()
def agreement(drafter: torch.nn.Module, text: Text, seed: int, temperature: float) -> list[bool]:
    """Whether the drafter draws each token of the answer where the demo model drew it."""
    ids, begin = text
    logits = drafter(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    guesses = drawn(logits[begin - 1 : -1], seed, 0, temperature)
    return [guess == token for guess, token in zip(guesses, ids[begin:], strict=True)]


def tokens_a_round(agree: Sequence[bool], drafts: int) -> list[int]:
    """Tokens of each round that drafts so many."""
    found, at = [], 0
    while at < len(agree):
        right = 0
        while right < drafts and at + right < len(agree) and agree[at + right]:
            right += 1
        found.append(min(right + 1, len(agree) - at))
        at += right + 1
    return found


def chat_prompts(tokenizer: PreTrainedTokenizerBase, work: Path, count: int) -> list[list[int]]:
    """Questions in the chat template: those of the model card, then of held-out documents."""
    asked = list(PROMPTS)
    for line in (work / "heldout.jsonl").read_text(encoding="utf-8").splitlines():
        text = json.loads(line)
        if "<|user|>" in text:
            question = text.split("<|user|>")[1].split("<|end|>")[0]
            asked += [] if question in asked else [question]
    texts = [f"<|bos|><|user|>{one}<|end|><|assistant|>" for one in asked[:count]]
    return [tokenizer.encode(one, add_special_tokens=False) for one in texts]


def main() -> None:
    """Print acceptance and tokens a round, greedy and at a temperature."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"))
    parser.add_argument("--model", type=Path, default=Path("molink/models/demo"))
    parser.add_argument("--drafter", type=Path, default=Path("molink/models/demo_drafter"))
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--longest", type=int, default=160, help="tokens of an answer")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    demo = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    drafter = AutoModelForCausalLM.from_pretrained(args.drafter, dtype=torch.float32).eval()
    prompts = chat_prompts(tokenizer, args.work, args.prompts)
    for temperature in (0.0, 0.8):
        texts = [answer(demo, one, i, temperature, args.longest) for i, one in enumerate(prompts)]
        agree = [agreement(drafter, one, i, temperature) for i, one in enumerate(texts)]
        right, tokens = sum(map(sum, agree)), sum(map(len, agree))
        rounds = [count for one in agree for count in tokens_a_round(one, DRAFTS)]
        found = {"temperature": temperature, "tokens": tokens, "acceptance": right / tokens}
        found["tokens_a_round"] = sum(rounds) / len(rounds)
        print(json.dumps({name: round(value, 3) for name, value in found.items()}), flush=True)


if __name__ == "__main__":
    main()
