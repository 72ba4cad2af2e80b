"""Train the byte-level BPE on the corpus, then encode and pack the training text.

The tokenizer goes to ``work/tokenizer``. The training documents go, packed into rows of one
length with as little padding as a best fit leaves, to ``work/train_rows.npy``.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% set role = message['role'] %}"
    "{% if role in ['system', 'developer'] %}{{ '<|system|>' }}"
    "{% elif role == 'assistant' %}{{ '<|assistant|>' }}"
    "{% else %}{{ '<|user|>' }}{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_bpe(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE, so that any text can be encoded; it puts the bos in front."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    plain = (_without_special(text) for text in texts)
    core.train_from_iterator(plain, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A",
        pair="<|bos|> $A $B",
        special_tokens=[("<|bos|>", core.token_to_id("<|bos|>"))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        additional_special_tokens=SPECIAL[3:],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _without_special(text: str) -> str:
    for token in SPECIAL:
        text = text.replace(token, "\n")
    return text


def pack(documents: list[list[int]], length: int, pad: int, seed: int) -> np.ndarray:
    """Fill each row with the longest waiting documents that still fit, from a pool of 200."""
    random.Random(seed).shuffle(documents)
    waiting, pool = iter(documents), []
    rows: list[list[int]] = []
    while True:
        while len(pool) < 200 and (item := next(waiting, None)) is not None:
            pool.append(item[:length])
        if not pool:
            return np.array(rows, dtype=np.uint16)
        row = pool.pop(0)
        while fitting := [i for i, item in enumerate(pool) if len(item) <= length - len(row)]:
            row = row + pool.pop(max(fitting, key=lambda i: len(pool[i])))
        rows.append(row + [pad] * (length - len(row)))


def main() -> None:
    """Tokenizer, then rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"))
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--length", type=int, default=513, help="tokens of a row, one more is seen")
    args = parser.parse_args()
    lines = (args.work / "train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line) for line in lines]
    tokenizer = train_bpe(texts, args.vocab)
    tokenizer.save_pretrained(args.work / "tokenizer")
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    total, longest = sum(map(len, encoded)), max(map(len, encoded))
    rows = pack(encoded, args.length, tokenizer.pad_token_id, seed=1)
    np.save(args.work / "train_rows.npy", rows)
    used = float((rows != tokenizer.pad_token_id).mean())
    print(f"{len(tokenizer)} tokens; {total:,} in {len(texts):,} documents, longest {longest}")
    print(f"{len(rows):,} rows, {used:.1%} filled")


if __name__ == "__main__":
    main()
