"""Runs llama.cpp's own converter over folders of checkpoints, in a process of its own.

    python tools/real/llama_cpp_convert.py LLAMA_CPP TYPE FOLDER...

Each FOLDER becomes FOLDER.gguf. Nothing of the converter is changed but the vocabulary: it
recognises published tokenizers by what they make of a text, and miniatures have none. One line for
each folder: its path, and what went wrong, if something did.
"""

import sys
import traceback
from pathlib import Path
from typing import Any


def _vocabulary(self: Any) -> None:
    """Some bytes as tokens, with a beginning and an end."""
    size = self.hparams["vocab_size"]
    letters = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    tokens = ["<pad>", "<s>", "</s>", *letters, *(f"w{n}" for n in range(size))][:size]
    self.gguf_writer.add_tokenizer_model("gpt2")
    self.gguf_writer.add_tokenizer_pre("llama-bpe")
    self.gguf_writer.add_token_list(tokens)
    self.gguf_writer.add_token_types([3, 3, 3] + [1] * (size - 3))
    self.gguf_writer.add_token_merges([])
    self.gguf_writer.add_bos_token_id(1)
    self.gguf_writer.add_eos_token_id(2)


def _convert(folder: Path, kind: str) -> None:
    import conversion
    import gguf
    import torch
    from conversion.base import ModelBase, get_model_architecture

    hparams = ModelBase.load_hparams(folder, False)
    name = get_model_architecture(hparams, conversion.ModelType.TEXT)
    model_class: Any = conversion.get_model_class(name)
    model_class.no_mtp = True  # A miniature predicts one token at a time.
    for one in model_class.__mro__:
        if "set_vocab" in one.__dict__:
            one.set_vocab = _vocabulary
    with torch.inference_mode():
        file_type = {"f32": gguf.LlamaFileType.ALL_F32, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
        out = folder.with_name(f"{folder.name}.gguf")
        model_class(folder, file_type[kind], out, eager=True).write()


def main() -> None:
    """Convert the folders that the command line names."""
    llama_cpp, kind, *folders = sys.argv[1:]
    sys.path.insert(0, llama_cpp)
    sys.path.insert(1, f"{llama_cpp}/gguf-py")
    for folder in map(Path, folders):
        try:
            _convert(folder, kind)
            print(f"{folder}\t", flush=True)
        except Exception as error:  # Somebody else's code, which may raise anything.
            traceback.print_exc()
            print(f"{folder}\t{type(error).__name__}: {error}".replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
