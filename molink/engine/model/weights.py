"""Loads the weights of one stage and no others.

`from_pretrained` of transformers does the loading, so its conversions (fused experts), dtype plan
and tying apply unchanged; quantized weights alone are read past it (see `quantized`). It is given
the pruned class and a directory of links to just the shards that the stage needs, with an index cut
to the stage's tensors; it reads them as memory maps, so nothing else of a shard is ever touched.
Its one habit that must be watched: what is missing it fills with random numbers and a warning. We
refuse instead.
"""

import copy
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from molink.checkpoint.checkpoint import INDEX, Checkpoint
from molink.checkpoint.description import read_declared
from molink.checkpoint.shard_plan import TEXT_NAMES, stores_output_matrix
from molink.engine.kernels.cpu.packed_linear import PackedLinear
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.model.pruning import Skip, Zero, decoder_layers, stage_class
from molink.engine.model.quantized.filling import fill, stage_weights, with_shells
from molink.engine.model.tensor_names import TensorNames
from molink.engine.model.text_model import causal_class, text_part
from molink.engine.model.token_inputs import keep_own_columns
from molink.engine.model.token_table import StoredTable
from molink.errors import CheckpointError, MolinkError, UnsupportedModelError, UserError
from molink.printable import printable_line

WHY_CHARACTERS_MAX = 200
"""Characters of what the library says of a config."""

Progress = Callable[[float], None]
"""Called with the fraction done, 0 to 1, rising."""


FETCHED = 0.5
"""Progress when all files are here; then their tensors are converted."""

CONVERTED = 0.6
"""Progress when all plain tensors have been converted; then the quantized ones are packed."""


@dataclass(frozen=True, slots=True)
class StagePart:
    """The layers of a model that one stage owns."""

    layers: range
    layers_total: int
    drafts: bool = False
    """Whether the ring's tail drafts with a layer of the checkpoint: ids go round with rows."""

    def __post_init__(self) -> None:
        if not 0 <= self.layers.start < self.layers.stop <= self.layers_total:
            raise UserError(
                f"a stage owns some of {self.layers_total} layers, "
                f"got [{self.layers.start}, {self.layers.stop})"
            )

    @property
    def is_head(self) -> bool:
        """Whether it owns the token embeddings."""
        return self.layers.start == 0

    @property
    def is_tail(self) -> bool:
        """Whether it owns the output head."""
        return self.layers.stop == self.layers_total


def load_model_config(checkpoint: Checkpoint) -> Any:
    """The transformers config of a checkpoint, set to use MoLink's attention.

    From here on the library keeps its bars and its advice on training to itself.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        config = AutoConfig.from_pretrained(checkpoint.directory, trust_remote_code=False)
    except (ValueError, KeyError, OSError, TypeError) as error:
        raise UnsupportedModelError(
            f"transformers does not know the architecture of {checkpoint.name}, "
            "and MoLink runs no code from checkpoints"
        ) from error
    except Exception as error:  # Each class checks its settings in its own way.
        raise no_model(checkpoint, error) from error
    text = text_part(config)
    if text is None:
        raise UnsupportedModelError(
            f"{checkpoint.name} ({config.model_type}) is not a decoder-only language model"
        )
    text._attn_implementation = ATTENTION_NAME
    text._experts_implementation = EXPERTS_NAME
    if hasattr(text, "quantization_config"):
        del text.quantization_config  # Its quantizers stay away: `quantized` reads such weights.
    return text


def no_model(checkpoint: Checkpoint, error: Exception) -> CheckpointError:
    """Error to raise where the library's class refuses settings, whatever it raises."""
    why = printable_line(str(error) or type(error).__name__)[:WHY_CHARACTERS_MAX]
    return CheckpointError(
        f"the settings in config.json of {checkpoint.name} make no model ({why}): fetch it again"
    )


def build_stage_class(config: Any, part: StagePart) -> Any:
    """The pruned model class of one stage."""
    model_class = causal_class(config)
    around = {"is_head": part.is_head, "is_tail": part.is_tail}
    return stage_class(model_class, part.layers, **around, embeds=part.is_tail and part.drafts)


def load_model(
    checkpoint: Checkpoint,
    config: Any,
    part: StagePart,
    dtype: torch.dtype,
    progress: Progress = lambda fraction: None,
) -> nn.Module:
    """The stage's model with its weights, on the CPU. Raises CheckpointError for anything missing
    or broken.
    """
    weight_map = checkpoint.weight_map()
    if stores_output_matrix(weight_map):
        config.tie_word_embeddings = False  # Whatever it says: Qwen3-VL-MoE's is wrong.
    pruned_class = build_stage_class(config, part)
    weight_map = needed_tensors(pruned_class, config, weight_map)
    return load_tensors(checkpoint, pruned_class, config, part, weight_map, dtype, progress)


def load_tensors(
    checkpoint: Checkpoint,
    pruned_class: Any,
    config: Any,
    part: StagePart,
    weight_map: dict[str, str],
    dtype: torch.dtype,
    progress: Progress = lambda fraction: None,
    beginnings: Mapping[str, str] = TEXT_NAMES,
) -> nn.Module:
    """A model of the pruned class with the tensors of `weight_map`, on the CPU; `beginnings` of
    their names are told as `TensorNames` takes them. Raises CheckpointError as `load_model`."""
    paths = _fetched(checkpoint, weight_map, progress)
    skeleton, declared = _skeleton(pruned_class, config), read_declared(checkpoint)
    quantized = stage_weights(checkpoint.name, declared, skeleton, weight_map, paths, beginnings)
    converted = CONVERTED if quantized.places else 1.0
    plain = {name: file for name, file in weight_map.items() if name not in quantized.files.files}
    table = StoredTable.find(plain, paths, part.layers, part.layers_total)
    targets = quantized.targets
    if table is not None:
        del plain[table.tensor.name]
        targets.append(table.target(skeleton))
    model: nn.Module = _plain_model(
        with_shells(pruned_class, targets),
        config,
        plain,
        paths,
        dtype,
        checkpoint.name,
        lambda done: progress(FETCHED + (converted - FETCHED) * done),
        beginnings,
    )
    fill(model, quantized, dtype, lambda done: progress(converted + (1 - converted) * done))
    if table is not None:
        table.fill(model, dtype)
    keep_own_columns(model, part.layers, part.layers_total)
    progress(1.0)
    return model


def _fetched(
    checkpoint: Checkpoint, weight_map: dict[str, str], progress: Progress
) -> dict[str, Path]:
    """Path of each weight file, all of them on this machine."""
    files = sorted(set(weight_map.values()))
    paths: dict[str, Path] = {}
    for done, name in enumerate(files):
        paths[name] = checkpoint.weight_file(name)
        progress(FETCHED * (done + 1) / len(files))
    return paths


def _skeleton(pruned_class: Any, config: Any) -> Any:
    with torch.device("meta"):
        return pruned_class(copy.deepcopy(config))


def _plain_model(
    pruned_class: Any,
    config: Any,
    weight_map: dict[str, str],
    paths: dict[str, Path],
    dtype: torch.dtype,
    name: str,
    progress: Progress,
    beginnings: Mapping[str, str],
) -> Any:
    """The model with all weights that the library loads."""
    with tempfile.TemporaryDirectory(prefix="molink-stage-") as directory:
        _write_stage_directory(Path(directory), config, weight_map, paths)
        with _counted_tensors(progress):
            return _from_pretrained(pruned_class, directory, config, dtype, name, beginnings)


def needed_tensors(pruned_class: Any, config: Any, weight_map: dict[str, str]) -> dict[str, str]:
    """The entries of a weight map that the stage needs.

    A tensor is left out when its path, after the library's renames, runs into a part that another
    stage owns or that the text model does not have. Paths, not parameter names, are compared:
    quantizers add suffixes that only they understand.
    """
    skeleton = _skeleton(pruned_class, config)
    names = TensorNames(skeleton)
    needed = {}
    for name, file in weight_map.items():
        renamed = names.renamed(name)
        owned = renamed in names or name in names
        if owned or _is_owned(skeleton, renamed) or _is_owned(skeleton, name):
            needed[name] = file
    return needed


def _is_owned(model: Any, name: str) -> bool:
    """Whether a dotted path leads into a part of the model that was not replaced.

    The path begins at the model or, in a bare checkpoint, at its decoder.
    """
    inner = getattr(model, model.base_model_prefix, None)
    ends = [_end(root, name.split(".")) for root in (model, inner) if root is not None]
    decoder = model.get_decoder()
    layers = decoder.get_submodule(decoder_layers(model)[0])
    if any(isinstance(end, Skip | Zero) for end in ends):
        return False
    return any(end not in (model, inner, decoder, layers) for end in ends)


def _end(module: nn.Module, path: Iterable[str]) -> nn.Module:
    """The last module on a path that exists, or the first that was replaced."""
    for step in path:
        child = module._modules.get(step)
        if child is None or isinstance(module, Skip | Zero):
            break
        module = child
    return module


def _write_stage_directory(
    directory: Path, config: Any, weight_map: dict[str, str], paths: dict[str, Path]
) -> None:
    for name in set(weight_map.values()):
        _link(paths[name].resolve(), directory / name)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index), encoding="utf-8")
    config.save_pretrained(directory)


def _link(source: Path, target: Path) -> None:
    """Make a symbolic link, or a hard one where links need a privilege (Windows)."""
    try:
        target.symlink_to(source)
    except OSError:
        os.link(source, target)


def _from_pretrained(
    pruned_class: Any,
    directory: str,
    config: Any,
    dtype: torch.dtype,
    name: str,
    beginnings: Mapping[str, str],
) -> nn.Module:
    pruned_class._keys_to_ignore_on_load_unexpected = [r".*"]
    try:
        model, report = pruned_class.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            key_mapping=dict(beginnings),
            output_loading_info=True,
            use_safetensors=True,
        )
    except MolinkError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the weights of {name} cannot be loaded ({_first_line(error)}): fetch them again"
        ) from error
    _refuse_incomplete(report, name)
    return model.eval()  # type: ignore[no-any-return]


@contextmanager
def _counted_tensors(progress: Progress) -> Iterator[None]:
    """Report each tensor that the library loads within the block, where it would move its bar."""

    def counted(factory: Any, arguments: Any, options: Any) -> Any:
        return _counted(arguments[0], progress) if arguments else factory(**options)

    before = transformers_logging.set_tqdm_hook(counted)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(before)


def _counted(items: Collection[Any], progress: Progress) -> Iterator[Any]:
    for done, item in enumerate(items):
        yield item
        progress((done + 1) / len(items))


def _refuse_incomplete(report: Mapping[str, Any], name: str) -> None:
    for problem, words in (("missing_keys", "lacks"), ("mismatched_keys", "has a wrong shape for")):
        keys = sorted(map(str, report.get(problem, ())))
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise CheckpointError(f"{name} {words} the tensor {keys[0]}{more}; fetch it again")
    if report.get("error_msgs"):
        raise CheckpointError(f"the weights of {name} cannot be loaded: {report['error_msgs'][0]}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def held_bytes(model: nn.Module) -> int:
    """Bytes of all weights that a model holds."""
    tensors = {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}
    packed = [m.weights_bytes for m in model.modules() if isinstance(m, PackedLinear)]
    return sum(packed) + sum(int(t.numel()) * int(t.element_size()) for t in tensors.values())
