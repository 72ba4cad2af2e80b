"""Description of a model that all on the ring must share: layers, sizes, limits, end tokens.

Read from config.json without torch. The same fact has several names there (`n_layer`,
`num_hidden_layers`), and a checkpoint may leave out what its class defaults; only for those is the
transformers config class asked, which loads torch as a side effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.layers_together import Runs, layers_together
from molink.checkpoint.model_config import COUNT_MAX, LAYERS_MAX, text_settings
from molink.checkpoint.model_folder import check_writes_text
from molink.checkpoint.quantized.declared import DeclaredQuantization, declared_quantization
from molink.errors import CheckpointError, UnsupportedModelError
from molink.json_object import JsonObject

ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "vocab_size": (),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "n_ctx"),
}
"""Our name for a fact, then its older names in configs of single architectures."""

MODEL_LEN_UNBOUNDED = 32768
"""Length of architectures that state none (relative positions only)."""

OLD_GPTQ_FILE = "quantize_config.json"
"""File in which the first GPTQ checkpoints keep what later ones have in config.json."""


GENERATION_CONFIG = "generation_config.json"

ORIGINAL = "original_max_position_embeddings"

STRETCHED, FACTOR_MAX = ("yarn", "linear"), 10_000
"""Kinds of rope that are the same for every length and can mean more positions than are stated."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Facts of a checkpoint; they are the same whichever layers are loaded."""

    name: str
    directory: Path
    """Folder with config.json and the tokenizer's files."""
    model_type: str
    layers: int
    hidden_size: int
    vocabulary_size: int
    model_len_max: int
    """Most positions for which the stages compute what the architecture means."""
    eos_token_ids: tuple[int, ...]
    dtype: str
    """Format of the stored weights: "bfloat16", "float16" or "float32". Quantized ones whose config
    says float16 have "bfloat16": a GPU's four-bit kernel computes in nothing else."""
    together: Runs = ()
    """Layers that stay on one stage."""
    stated_len_max: int | None = None
    """Positions that are served where nobody asks for more: those that the config states, where its
    rope is stretched to more. None: all."""


def describe(model: str | Checkpoint) -> ModelDescription:
    """Describe a model directory or hub id. Raises CheckpointError or UnsupportedModelError."""
    checkpoint = open_checkpoint(model) if isinstance(model, str) else model
    facts = ConfigFacts(checkpoint)
    check_writes_text(checkpoint.directory, checkpoint.name, checkpoint.config())
    quantized = read_declared(checkpoint).method is not None  # Refuses what is not read.
    return ModelDescription(
        name=checkpoint.name,
        directory=checkpoint.directory,
        model_type=facts.model_type,
        layers=facts.number("num_hidden_layers"),
        hidden_size=facts.number("hidden_size"),
        vocabulary_size=facts.number("vocab_size"),
        model_len_max=facts.model_len_max(),
        stated_len_max=facts.stated_len_max(),
        eos_token_ids=facts.eos_token_ids(),
        dtype="bfloat16" if quantized and facts.dtype() == "float16" else facts.dtype(),
        together=layers_together(facts.text, facts.number("num_hidden_layers")),
    )


def read_declared(checkpoint: Checkpoint) -> DeclaredQuantization:
    """Quantization that a checkpoint declares. Raises UnsupportedModelError for a scheme that is
    not read."""
    config = checkpoint.config()
    if not isinstance(config.get("quantization_config"), dict):
        config = config | _old_gptq(checkpoint)
    return declared_quantization(checkpoint.name, config)


def _old_gptq(checkpoint: Checkpoint) -> JsonObject:
    if not (checkpoint.directory / OLD_GPTQ_FILE).is_file():
        return {}
    scheme = checkpoint.small_file(OLD_GPTQ_FILE)
    return {"quantization_config": {"quant_method": "gptq", **scheme}}


class ConfigFacts:
    """Reader of facts in a config: its text part, the whole, then the defaults of its class."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        whole = checkpoint.config()
        self._whole = whole
        self.text = text_settings(whole)
        """Settings of the text model as they stand in config.json."""
        if not isinstance(whole.get("model_type"), str):
            raise CheckpointError(f"config.json of {checkpoint.name} names no model_type")

    @property
    def model_type(self) -> str:
        """The architecture's name in transformers."""
        return str(self._whole["model_type"])

    def number(self, name: str) -> int:
        """A positive integer under one of its names, no larger than that of any model."""
        value, most = self._find(name), LAYERS_MAX if name == "num_hidden_layers" else COUNT_MAX
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise CheckpointError(
                f"config.json of {self._checkpoint.name} gives no usable {name} ({value!r:.40})"
            )
        return value

    def model_len_max(self) -> int:
        """The stated length, or the longer one to which YaRN and its kin stretch the original:
        makers write the factor down and leave the length."""
        ropes = [rope for rope in _rope_dicts(self.text) if _rope_kind(rope) in STRETCHED]
        factors = [self._factor(rope) for rope in ropes]
        lengths = [self._original_length(rope) for rope in ropes]
        stretched = (int(factor * length) for factor, length in zip(factors, lengths, strict=True))
        return max(self.stated_len_max(), *stretched, 0)

    def stated_len_max(self) -> int:
        """The stated length; where rope factors change with the length, only up to where they do.

        `longrope` switches every position to other factors once a sequence is longer than the
        original length, and `dynamic` rescales with each longer sequence: in a batch one long
        request would change the others. Up to that length both are plain rope and exact, so that is
        what is served.
        """
        stated = self._length(self._find("max_position_embeddings") or MODEL_LEN_UNBOUNDED)
        return min([stated, *self._rope_switch_lengths(stated)])

    def _length(self, value: Any) -> int:
        if type(value) not in (int, float) or not 1 <= value <= COUNT_MAX:
            raise CheckpointError(
                f"config.json of {self._checkpoint.name} gives no usable length ({value!r:.40})"
            )
        return int(value)

    def _factor(self, rope: Mapping[str, Any]) -> float:
        factor = rope.get("factor", 1.0)
        if type(factor) not in (int, float) or not 1 <= factor <= FACTOR_MAX:
            raise CheckpointError(
                f"config.json of {self._checkpoint.name} stretches its rope ({_rope_kind(rope)}) "
                f"by {factor!r:.40}: give its 'factor' as a number from 1 on, as its makers do"
            )
        return float(factor)

    def _original_length(self, rope: Mapping[str, Any]) -> int:
        """Length from which a rope is stretched. Few linear ropes name it, as their configs state
        the stretched length: 0."""
        length = rope.get(ORIGINAL) or self.text.get(ORIGINAL)
        if length is None and _rope_kind(rope) == "linear":
            return 0
        if type(length) is not int or not 1 <= length <= COUNT_MAX:
            raise CheckpointError(
                f"config.json of {self._checkpoint.name} stretches its rope ({_rope_kind(rope)}) "
                f"from {length!r:.40} positions: give '{ORIGINAL}' as its makers do"
            )
        return length

    def eos_token_ids(self) -> tuple[int, ...]:
        """End tokens of generation_config.json where it names some, else of the config; those that
        the model has rows for."""
        value = generation_config(self._checkpoint).get("eos_token_id")
        if value is None:
            value = self._whole.get("eos_token_id", self.text.get("eos_token_id"))
        ids, rows = value if isinstance(value, list) else [value], self.number("vocab_size")
        return tuple(one for one in ids if type(one) is int and 0 <= one < rows)

    def dtype(self) -> str:
        """Format of the stored weights in the words of config.json."""
        value = self._whole.get("dtype") or self._whole.get("torch_dtype")
        value = value or self.text.get("dtype") or self.text.get("torch_dtype") or "float32"
        return str(value).removeprefix("torch.")

    def _find(self, name: str) -> Any:
        for key in (name, *ALIASES[name]):
            if self.text.get(key) is not None:
                return self.text[key]
        return getattr(self._class_config, name, None)

    @cached_property
    def _class_config(self) -> Any:
        """The transformers config, which knows the class's defaults."""
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(
                self._checkpoint.directory, trust_remote_code=False
            ).get_text_config()
        except Exception as error:  # Each class checks its settings in its own way.
            raise UnsupportedModelError(
                f"transformers does not know the architecture {self.model_type!r} "
                f"of {self._checkpoint.name}"
            ) from error

    def _rope_switch_lengths(self, stated: int) -> list[int]:
        lengths = []
        for rope in _rope_dicts(self.text):
            kind = _rope_kind(rope)
            if kind == "longrope" or "dynamic" in kind:
                original = rope.get(ORIGINAL)
                original = original or self.text.get(ORIGINAL)
                lengths.append(self._length(original or stated))
        return lengths


def generation_config(checkpoint: Checkpoint) -> JsonObject:
    """Content of its generation_config.json; nothing where there is none. Raises CheckpointError
    when it cannot be read."""
    there = (checkpoint.directory / GENERATION_CONFIG).is_file()
    return checkpoint.small_file(GENERATION_CONFIG) if there else {}


def _rope_kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _rope_dicts(text: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rope settings of a config: one dictionary, or one per layer type."""
    found: list[Mapping[str, Any]] = []
    for key in ("rope_parameters", "rope_scaling"):
        value = text.get(key)
        if isinstance(value, Mapping):
            found.append(value)
            found += [part for part in value.values() if isinstance(part, Mapping)]
    return found
