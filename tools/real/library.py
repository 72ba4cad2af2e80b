"""The library's answers for the same weights: what everything else is compared with.

The weights of a GGUF file are read by the library's own reader, not by ours, and saved as a plain
checkpoint. Of what `molink import` rounds, the codes are multiplied out here, as the format's
makers say, so that the library computes with the very weights that MoLink serves.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.utils.logging import disable_progress_bar

__all__ = ["WINDOW_TOKENS", "Library", "Vocabulary", "save_plain", "windows_of"]

WINDOW_TOKENS = 512
"""Scored at a time: the logits of 512 places and 262,144 words are half a gigabyte."""

PLAIN_SHARD = "500MB"

disable_progress_bar()

NIBBLES = torch.arange(0, 32, 4, dtype=torch.int32)


def save_plain(gguf: Path, folder: Path) -> None:
    """Write the weights of a GGUF file, multiplied out to fp32, as a checkpoint.

    The folder is there only when it is whole: the next run takes it as it is.
    """
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with redirect_stderr(StringIO()):  # Its progress bar asks nobody.
        read = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)
    tensors = read["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    tied = set(model._tied_weights_keys or ())
    assert not unexpected and set(missing) <= tied, (missing, unexpected)
    model.tie_weights()
    model.save_pretrained(partial, max_shard_size=PLAIN_SHARD)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
    partial.rename(folder)


class Vocabulary:
    """The library's tokenizer of a plain checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with those that the model wants before it."""
        return list(self._tokenizer.encode(text))

    def encode_chat(self, messages: Sequence[Any]) -> list[int] | None:
        """Tokens of a conversation by the model's template; None where it has none."""
        if not self._tokenizer.chat_template:
            return None
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def windows_of(vocabulary: Vocabulary, text: str) -> list[list[int]]:
    """Tokens of a text in pieces that are scored one by one, each begun as the model wants it."""
    begin = vocabulary.encode("")
    tokens = vocabulary.encode(text)[len(begin) :]
    step = WINDOW_TOKENS - len(begin)
    pieces = (tokens[at : at + step] for at in range(0, len(tokens), step))
    return [begin + piece for piece in pieces if len(piece) > 1]


class Library:
    """The library's model in one number format."""

    def __init__(self, plain: Path, dtype: torch.dtype, rounded: Path | None = None) -> None:
        """`rounded` is a checkpoint of `molink import --weights`, whose weights take the place of
        those of `plain`."""
        self._model = AutoModelForCausalLM.from_pretrained(plain, dtype=dtype).eval()
        if rounded is not None:
            self._take(rounded)

    def _take(self, rounded: Path) -> None:
        if self._model.config.tie_word_embeddings:
            # The rounded head is a matrix of its own.
            head = self._model.get_output_embeddings()
            head.weight = torch.nn.Parameter(head.weight.clone(), requires_grad=False)
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        for name, weight in _multiplied_out(rounded):
            parameters[name].data.copy_(weight)

    def logits(self, tokens: Sequence[int], last: int) -> torch.Tensor:
        """Logits at the last so many places of a text, in fp32."""
        with torch.inference_mode():
            found = self._model(torch.tensor([tokens]), use_cache=False, logits_to_keep=last)
        logits: torch.Tensor = found.logits[0].float()
        return logits


def _multiplied_out(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights of the rounded matrices of a checkpoint."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    for file in sorted(set(index.values())):
        with safe_open(folder / file, "pt") as tensors:
            names = set(tensors.keys())
            for scale in sorted(name for name in names if name.endswith(".weight_scale")):
                stem = scale.removesuffix("_scale")
                stored = {
                    part: tensors.get_tensor(f"{stem}{part}")
                    for part in ("", "_packed", "_scale", "_shape", "_zero_point")
                    if f"{stem}{part}" in names
                }
                yield stem, _weight(stored)


def _weight(stored: dict[str, torch.Tensor]) -> torch.Tensor:
    """The matrix that compressed-tensors stores as these parts."""
    scale = stored["_scale"].float()
    if "_packed" not in stored:
        return stored[""].float() * scale
    codes = _codes(stored["_packed"])
    zero = _codes(stored["_zero_point"].T).T[: codes.shape[0]]
    group = -(-codes.shape[1] // scale.shape[1])
    wide = [one.repeat_interleave(group, 1)[:, : codes.shape[1]] for one in (scale, zero.float())]
    outputs, inputs = stored["_shape"].tolist()
    return ((codes.float() - wide[1]) * wide[0])[:outputs, :inputs]


def _codes(words: torch.Tensor) -> torch.Tensor:
    """The eight codes of four bits in each word, lowest first."""
    return ((words.contiguous()[..., None] >> NIBBLES) & 15).flatten(1)
