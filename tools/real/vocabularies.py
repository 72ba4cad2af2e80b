"""Reads llama.cpp's test vocabularies and compares the tokens of its own tests.

    python -m tools.real.vocabularies FOLDER

FOLDER is `models/` of llama.cpp's sources: `ggml-vocab-NAME.gguf`, most with texts (`.inp`) and the
numbers of their tokens (`.out`). The vocabularies of encoders are named and left out. Texts are
tokenized as llama.cpp does there: nothing is added, and control tokens are no marks but text.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from molink.checkpoint.gguf.header import read_gguf
from molink.errors import MolinkError
from molink.importing.gguf.tokenizer import tokenizer_files

__all__ = ["Outcome", "main", "outcomes"]

BETWEEN_TEXTS = "\n__ggml_vocab_test__\n"

ENCODERS = ("bert-bge", "nomic-bert-moe", "jina", "roberta", "xlm")
"""Parts of the names of vocabularies that no decoder has."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one vocabulary gave."""

    name: str
    texts: int = 0
    right: int = 0
    refusal: str = ""
    wrong: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether it was read and every text gave the tokens of llama.cpp."""
        return not self.refusal and self.right == self.texts


def outcomes(folder: Path) -> list[Outcome]:
    """Of every vocabulary of a decoder in a folder."""
    paths = sorted(folder.glob("ggml-vocab-*.gguf"))
    return [_outcome(path) for path in paths if not any(one in path.name for one in ENCODERS)]


def _outcome(path: Path) -> Outcome:
    name = path.stem.removeprefix("ggml-vocab-")
    try:
        tokenizer = _tokenizer(path)
    except MolinkError as error:
        return Outcome(name, refusal=str(error))
    cases = _cases(path)
    wrong = [text for text, wanted in cases if _ids(tokenizer, text) != wanted]
    return Outcome(name, len(cases), len(cases) - len(wrong), wrong=tuple(wrong))


def _tokenizer(path: Path) -> Tokenizer:
    """As an import writes it and a stage reads it."""
    files = tokenizer_files(read_gguf(path), length_max=2048)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "tokenizer.json"
        written.write_bytes(files["tokenizer.json"])
        tokenizer = Tokenizer.from_file(str(written))
    tokenizer.encode_special_tokens = True
    return tokenizer


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _cases(path: Path) -> list[tuple[str, list[int]]]:
    texts, numbers = path.with_name(f"{path.name}.inp"), path.with_name(f"{path.name}.out")
    if not texts.is_file() or not numbers.is_file():
        return []
    inputs = texts.read_bytes().decode().split(BETWEEN_TEXTS)
    lines = numbers.read_text().splitlines()
    return [
        (text, [int(one) for one in line.split()])
        for text, line in zip(inputs[: len(lines)], lines, strict=True)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each vocabulary; 0 when all are right."""
    given = sys.argv[1:] if arguments is None else arguments
    found = outcomes(Path(given[0]))
    for one in found:
        print(f"{one.name:16} {one.refusal or f'{one.right} of {one.texts} texts right'}")
        for text in one.wrong:
            print(f"{'':16} wrong: {text!r}")
    return 0 if found and all(one.is_good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
