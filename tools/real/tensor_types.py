"""A published model in every type that llama.cpp writes, after `molink import`, beside llama.cpp.

    MOLINK_LLAMA_CPP=... python -m tools.real.tensor_types [--out DIR] [TYPE...]

`llama-quantize` writes layers of Qwen2.5-Coder 0.5B anew in each of its types, mixtures as people
download them; the vocabulary, which is most of so small a model, stays as it is. Each of these
files is imported, and what a stage makes of its blocks is compared with what llama.cpp's own
library makes of the file's, each number relative to the largest of the 32 around it. Eight bits may
be off by half a step where a type is written anew; what stays as it is only by the rounding of an
addition.
"""

import ctypes
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import gguf
import numpy as np
import torch
from safetensors import safe_open

from molink.checkpoint.gguf.block_types import BLOCK_TYPES, PLAIN_TYPES, RECODED_TYPES
from molink.checkpoint.gguf.header import GgufTensor
from molink.engine.model.quantized.block_readers import read_blocks
from molink.errors import MolinkError, UserError
from molink.importing.gguf.file import import_gguf, read_model
from molink.importing.gguf.tensors import LAYER_TENSOR
from tools.real.llama_cpp import programs
from tools.real.published import cache_folder, fetch, read_manifest

__all__ = ["Outcome", "main"]

MODEL = "qwen2.5-coder-0.5b"

TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S"),
    *("Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4_MOE", "Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M"),
    *("IQ3_S", "IQ3_XS", "IQ3_XXS", "Q2_K", "Q2_K_S", "Q2_0", "IQ2_M", "IQ2_S", "IQ2_XS"),
    *("IQ2_XXS", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S", "Q1_0"),
)
"""All that `llama-quantize` names, without its second names for one and the same."""

PRUNED = ",".join(map(str, range(2, 22)))
"""Layers that are left out: 24 take long in types of few bits."""

NUMBERS = {one: number for number, one in (BLOCK_TYPES | PLAIN_TYPES | RECODED_TYPES).items()}

ROWS_MAX = 8192
"""Of a tensor are compared: of the vocabulary a part."""

GROUP = 32
KEPT_MAX, ANEW_MAX = 1e-5, 0.5 / 127 + 2**-10
"""Of what stays as it is, and of what becomes eight bits with a scale of fp16 for each group."""

SMALLEST = 1e-6
"""Below it the steps of a scale in fp16 are coarse; weights are a thousand times larger."""


@dataclass(slots=True)
class Outcome:
    """What became of one type."""

    type: str
    tensors: dict[str, int] = field(default_factory=dict)
    """How many tensors of the file are of which type."""
    anew: int = 0
    """How many are written anew."""
    kept_error: float = 0.0
    anew_error: float = 0.0
    refusal: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it was read, and means what llama.cpp says."""
        errors_fit = self.kept_error <= KEPT_MAX and self.anew_error <= ANEW_MAX
        return not self.refusal and errors_fit

    def line(self) -> str:
        """A row of the table."""
        held = ", ".join(f"{count} {name}" for name, count in sorted(self.tensors.items()))
        errors = f"{self.kept_error:.1e} | {f'{self.anew_error:.1e}' if self.anew else ''}"
        verdict = self.refusal or ("right" if self.is_right else "WRONG")
        return f"| {self.type} | {held} | {self.anew or ''} | {errors} | {verdict} |"


HEAD = """\
| type | tensors of the file | written anew | off, as they are | off, written anew | |
| --- | --- | ---: | ---: | ---: | --- |"""


def outcome_of(kind: str, source: Path, work: Path) -> Outcome:
    """What becomes of one type."""
    quantized, folder = work / f"{kind}.gguf", work / "imported"
    try:
        _quantize(source, quantized, kind, work)
        import_gguf(quantized, folder, None, lambda done, total: None)
        return _compared(kind, quantized, folder)
    except MolinkError as error:
        return Outcome(kind, refusal=str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        quantized.unlink(missing_ok=True)


def _quantize(source: Path, target: Path, kind: str, work: Path) -> None:
    """Write a file anew. The weights of the importance of inputs, without which types of two bits
    and less are refused, are all the same."""
    importance = work / "importance.gguf"
    if not importance.exists():
        _write_importance(source, importance)
    options = ["--allow-requantize", "--imatrix", str(importance), "--prune-layers", PRUNED]
    options += ["--token-embedding-type", "q5_0", "--output-tensor-type", "q8_0"]
    words = [str(programs() / "llama-quantize"), *options, str(source), str(target), kind]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise UserError(f"llama-quantize does not write {kind}: {said[-1] if said else 'it died'}")


def _write_importance(source: Path, path: Path) -> None:
    writer = gguf.GGUFWriter(str(path), arch="")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["none"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    for tensor in gguf.GGUFReader(source).tensors:
        if len(tensor.shape) == 2:
            writer.add_tensor(f"{tensor.name}.in_sum2", np.ones((1, tensor.shape[0]), np.float32))
            writer.add_tensor(f"{tensor.name}.counts", np.ones((1, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _compared(kind: str, quantized: Path, folder: Path) -> Outcome:
    model, architecture = read_model(quantized)
    found, numbers = Outcome(kind), dict(_of_molink(folder))
    stored = Counter((one.stored or one).type.name.upper() for one in model.header.tensors)
    found.tensors = dict(stored)
    for tensor in model.header.tensors:
        match = LAYER_TENSOR.fullmatch(tensor.name)
        part = (match[2], int(match[1])) if match else (tensor.name, None)
        off = _apart(numbers.pop(architecture.name(*part) or ""), _of_llama_cpp(tensor))
        if tensor.stored is not None:
            found.anew, found.anew_error = found.anew + 1, max(found.anew_error, off)
        else:
            found.kept_error = max(found.kept_error, off)
    if set(numbers) - {"lm_head.weight"}:
        found.refusal = f"more than the file has: {', '.join(numbers)}"
    return found


class _Traits(ctypes.Structure):
    """`ggml_type_traits`, up to the field that is used."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("values", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


def _of_llama_cpp(tensor: GgufTensor) -> torch.Tensor:
    """The numbers of a file's tensor in fp32, by the function that llama.cpp has for its type."""
    old = tensor.stored or tensor
    shape = (min(tensor.shape[0], ROWS_MAX), *tensor.shape[1:])
    count = int(np.prod(shape))
    size = count // old.type.values * old.type.size
    raw = np.fromfile(tensor.path, np.uint8, size, offset=old.start)
    if old.type.name == "F32":
        return torch.from_numpy(raw.view(np.float32)).reshape(shape)
    library = ctypes.CDLL(str(programs() / "libggml-base.so"))
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    traits = library.ggml_get_type_traits(NUMBERS[old.type]).contents
    if traits.name.decode().upper() != old.type.name.upper():
        raise UserError(f"{old.type.name} is {traits.name.decode()} to llama.cpp")
    numbers = np.empty(count, np.float32)
    traits.to_float(raw.ctypes.data, numbers.ctypes.data, count)
    return torch.from_numpy(numbers).reshape(shape)


def _of_molink(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of an imported checkpoint, as a stage multiplies them out."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in sorted(tensors.keys()):
                stored = tensors.get_slice(name)[:ROWS_MAX]
                if stored.dtype != torch.uint8:
                    yield name, stored.float()
                    continue
                plain_name, _, kind = name.partition(".weight_")
                packed = read_blocks(stored, kind, torch.float32)
                yield f"{plain_name}.weight", packed.dequantized(torch.float32)


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest number of its group."""
    if found.shape != wanted.shape:
        return float("inf")
    found, wanted = found.reshape(-1, GROUP), wanted.reshape(-1, GROUP)
    largest = wanted.abs().amax(1, keepdim=True).clamp_min(SMALLEST)
    return float(((found - wanted).abs() / largest).max())


@click.command()
@click.argument("types", nargs=-1, type=click.Choice(TYPES))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for JSON.")
def main(types: tuple[str, ...], out: Path | None) -> None:
    """Print a table of all types; exits with 1 where one is not right."""
    model = next(one for one in read_manifest() if one.name == MODEL)
    source = fetch(model, cache_folder())
    work = cache_folder() / "tensor-types"
    work.mkdir(exist_ok=True)
    found = []
    click.echo(HEAD)
    for kind in types or TYPES:
        found.append(outcome_of(kind, source, work))
        click.echo(found[-1].line())
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            told = json.dumps([asdict(one) for one in found], indent=2)
            (out / "tensor-types.json").write_text(told + "\n")
    shutil.rmtree(work)
    sys.exit(not all(one.is_right for one in found))


if __name__ == "__main__":
    main()
