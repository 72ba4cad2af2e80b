"""Imports what llama.cpp's own converter wrote of a miniature of each family, and compares logits.

    python -m tools.real.gguf_architectures LLAMA_CPP [FAMILY...]

LLAMA_CPP is a folder with llama.cpp's sources (`vendor/llama.cpp` of the sdist llama-cpp-python).
Weights are random with outliers: norms from 0.1 to 10, negative ones too. Both models compute in
fp32; a family passes where log-probabilities differ by less than LIMIT everywhere.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from molink.importing.gguf.file import import_gguf
from tools.real.gguf_families import FAMILIES, miniature_settings

TOKENS = 24
LIMIT = 2e-3
"""Of log-probabilities: sums in another order differ by 1e-4, a lost setting by 0.1 and more."""

FORMER_NAMES = {"PhimoeForCausalLM": "PhiMoEForCausalLM"}
"""What published checkpoints call a class, where the library has renamed it since."""

CONVERTER = Path(__file__).with_name("llama_cpp_convert.py")


def write_miniature(name: str, folder: Path) -> Any:
    """Save the checkpoint of a miniature; returns its model."""
    settings = miniature_settings(name)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    model = with_outliers(AutoModelForCausalLM.from_config(config))
    model.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    missing = {key: settings[key] for key in settings if key not in saved or key == "layer_types"}
    saved["architectures"] = [FORMER_NAMES.get(one, one) for one in saved["architectures"]]
    (folder / "config.json").write_text(json.dumps(saved | missing))
    words = {f"w{number}": number for number in range(model.config.vocab_size)}
    tokenizer = {"added_tokens": [], "model": {"vocab": words}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return model


def with_outliers(model: Any) -> Any:
    """The model with weights far from their small or constant initial values."""
    model = model.float().eval()
    generator = torch.Generator().manual_seed(1)
    tensors = [*model.named_parameters()]
    tensors += [one for one in model.named_buffers() if one[0].endswith("bias")]
    with torch.no_grad():
        for name, tensor in tensors:
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() > 1:
                tensor.copy_(noise * tensor.shape[-1] ** -0.5)
            elif "norm" in name and name.endswith("weight"):
                tensor.copy_((tensor + noise * 0.3) * 10 ** (noise * 0.4).clamp(-1, 1))
            else:
                tensor.add_(noise * 0.1)
    return model


def log_probabilities(model: Any, vocabulary: int) -> torch.Tensor:
    """Of each next token, [tokens, words]."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, vocabulary, (1, TOKENS), generator=generator)
    with torch.inference_mode():
        return torch.log_softmax(model(ids, use_cache=False).logits[0].float(), -1)


def converted(llama_cpp: Path, kind: str, folders: list[Path]) -> dict[Path, str]:
    """What went wrong with each folder."""
    command = [sys.executable, str(CONVERTER), str(llama_cpp), kind, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
    (folders[0].parent / "converter.log").write_text(done.stderr)
    return {Path(folder): error for folder, error in lines}


def difference(folder: Path, model: Any) -> float:
    """Largest difference of log-probabilities between a model and its imported file."""
    imported = folder.with_name(f"{folder.name}-imported")
    import_gguf(folder.with_name(f"{folder.name}.gguf"), imported, None, lambda done, total: None)
    settings = json.loads((imported / "config.json").read_text())
    settings.pop("quantization_config")
    (imported / "config.json").write_text(json.dumps(settings))
    # A file without biases leaves those of the class, which are zeros, to the loader.
    new, loading = AutoModelForCausalLM.from_pretrained(
        imported, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading[what]:
            raise ValueError(f"{what}: {sorted(map(str, loading[what]))[:6]}")
    model.set_attn_implementation("eager")
    words = model.config.vocab_size
    wanted, found = log_probabilities(model, words), log_probabilities(new.eval(), words)
    return float((wanted - found).abs().max())


def tried(name: str, folder: Path, model: Any, error: str) -> str:
    """What is said of a family."""
    if error:
        return f"NOT CONVERTED {error[:150]}"
    try:
        apart = difference(folder, model)
    except Exception as problem:  # The library's loader raises anything.
        return f"FAILED {type(problem).__name__}: {str(problem)[:300]}"
    return f"{'ok' if apart < LIMIT else 'DIFFERS'} {apart:.1e}"


@click.command()
@click.argument("llama_cpp", type=click.Path(path_type=Path, exists=True))
@click.argument("families", nargs=-1)
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for what is written.")
def main(llama_cpp: Path, families: tuple[str, ...], keep: Path | None) -> None:
    """Print one line for each family; exits with 1 where one fails."""
    work = keep or Path(tempfile.mkdtemp(prefix="gguf-"))
    models, problems = {}, {}
    for name in families or FAMILIES:
        folder = work / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            models[folder] = (name, write_miniature(name, folder))
        except Exception as error:  # The library's constructors raise anything.
            problems[name] = f"NO MINIATURE {type(error).__name__}: {str(error)[:200]}"
    errors = converted(llama_cpp, "f32", [*models])
    said = dict(problems)
    for folder, (name, model) in models.items():
        shutil.rmtree(folder.with_name(f"{folder.name}-imported"), ignore_errors=True)
        said[name] = tried(name, folder, model, errors.get(folder, "it died"))
    for name, words in said.items():
        click.echo(f"{name:26} {words}")
    if keep is None:
        shutil.rmtree(work)
    sys.exit(any(not words.startswith("ok") for words in said.values()))


if __name__ == "__main__":
    main()
