"""Layer of a checkpoint that drafts: what the model's makers trained to guess the token after next.

It reads the model's hidden state of a row and the embedding of the row's token, and lies in a
checkpoint in one of three packagings, which names of tensors tell. What a config says of it, or of
quantization, is not asked: quantized checkpoints keep the layer in 16 bits whatever they declare,
and several leave its count out. Whether it is whole is told by the model's own last layer of
attention, which has the same parts.

Where a checkpoint has several such layers, the first drafts; matrices that it stores once more
(embeddings, output) are the model's own and are left out, as the transformers library does.

An *assistant* of Gemma 4 is a checkpoint of its own: it has queries alone. Each of its layers reads
the keys and values of the model's last layer of the same kind that has its own: of one with full
attention, and of one with a window. So it drafts where these *sources* are, on the tail. What a
config leaves to its class is not told here; who loads the layers compares the shapes.

Names: vLLM's `qwen3_next_mtp.py` and `deepseek_mtp.py`, `MtpModel` and `gemma4_assistant` of
transformers. No torch.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from molink.checkpoint.held_weights import HeldWeight, held_weights
from molink.checkpoint.layers_together import SHARING
from molink.checkpoint.model_config import text_settings
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.quantized.recognised import SUFFIXES
from molink.checkpoint.safetensors_header import StoredTensor
from molink.checkpoint.shard_plan import Place, homes_of_tensors, shape_of


class Packaging(StrEnum):
    """How a drafting layer lies in a checkpoint."""

    MTP = "mtp"
    """`mtp.*` beside the model: Qwen3-Next, 3.5 and later."""
    NEXTN = "nextn"
    """One more of the model's numbered layers: DeepSeek-V3, GLM-4.5 and later."""
    GEMMA_ASSISTANT = "gemma assistant"
    """A checkpoint of its own, of queries that read the model's KV: Gemma 4."""


class LayerKind(StrEnum):
    """What a drafting layer is made of."""

    DENSE = "dense"
    """Full attention, with KV of its own, and an MLP."""
    EXPERTS = "experts"
    """Full attention, with KV of its own, and experts."""
    QUERIES = "queries"
    """Queries alone, over KV of the model's last layers."""


ASSISTANT_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
"""Model types of Gemma 4's drafting checkpoints."""

Config = Mapping[str, Any]

ASSISTED_TYPES = ("gemma4_text", "gemma4_unified_text")
"""Types of the text models that assistants draft for."""

KINDS = "layer_types"
"""Setting with the kind of each layer."""

FULL = "full_attention"
"""Kind of layers that attend to all tokens."""

HEAD_SIZES = {True: "global_head_dim", False: "head_dim"}
"""Setting of the size of a head, by whether the layer attends to all tokens."""

PARTS: Mapping[Packaging, Mapping[str, str]] = {
    Packaging.MTP: {
        "projection": "fc.weight",
        "embedding_norm": "pre_fc_norm_embedding.weight",
        "hidden_norm": "pre_fc_norm_hidden.weight",
        "norm": "norm.weight",
    },
    Packaging.NEXTN: {
        "projection": "eh_proj.weight",
        "embedding_norm": "enorm.weight",
        "hidden_norm": "hnorm.weight",
        "norm": "shared_head.norm.weight",
    },
    Packaging.GEMMA_ASSISTANT: {
        "projection": "pre_projection.weight",
        "back_projection": "post_projection.weight",
        "norm": "model.norm.weight",
        "embeddings": "model.embed_tokens.weight",
    },
}
"""Parts around the decoder block, by what they do, and their names behind the prefix."""

BLOCKS = {Packaging.MTP: "layers.0.", Packaging.NEXTN: "", Packaging.GEMMA_ASSISTANT: "model."}
"""Prefix of the decoder block's tensors, behind that of the layer."""

ORDERED = ("masked_embedding.centroids.weight", "masked_embedding.token_ordering")
"""Tensors of an assistant that looks among the likeliest words alone."""

ATTENTION = "self_attn."
"""Beginning of the names of a layer's attention: other layers of hybrids recur."""

MTP_NAME = re.compile(r"^(?P<prefix>(?:.*\.)?mtp\.)")
LAYER_NAME = re.compile(r"^(?P<prefix>(?:.*\.)?layers\.(?P<number>\d+)\.)")
EXPERT = re.compile(r"^(?P<experts>.*\bexperts\.)(?P<number>\d+)\.(?P<part>.+)$")


@dataclass(frozen=True, slots=True)
class DraftLayer:
    """The drafting layer of one checkpoint, as its names and formats of tensors tell."""

    packaging: Packaging
    model_type: str
    """Type of the text model, by which its family is known."""
    prefix: str
    """Beginning of the names of all its tensors, with its last dot; empty: a checkpoint of its
    own."""
    kind: LayerKind
    tensors: tuple[str, ...]
    """Names of its tensors as they are stored, sorted."""
    missing: tuple[str, ...] = ()
    """Names of plain weights that it lacks, sorted; some: it cannot draft."""
    weights: tuple[HeldWeight, ...] | None = None
    """What a stage holds of it; None where only names are known."""

    @property
    def parts(self) -> dict[str, str]:
        """Full names of the plain weights around the block: projection, embedding_norm and so
        on."""
        return {part: self.prefix + name for part, name in PARTS[self.packaging].items()}

    @property
    def block_prefix(self) -> str:
        """Beginning of the names of its decoder block; of an assistant, of all its layers."""
        return self.prefix + BLOCKS[self.packaging]

    @property
    def keeps_kv(self) -> bool:
        """Whether it has keys and values of its own."""
        return self.kind is not LayerKind.QUERIES

    @property
    def objection(self) -> str:
        """Why it cannot draft, as one clause; empty: it can."""
        if not self.missing:
            return ""
        others = len(self.missing) - 1
        more = f" and {others} other tensors" * (others > 0)
        return f"its drafting layer lacks {self.missing[0]}{more}"

    def held_bytes(self, element_bytes: int) -> int:
        """Bytes of its weights in a stage whose numbers take `element_bytes`; 0 where only names
        are known."""
        return sum(one.held_bytes(element_bytes) for one in self.weights or ())

    @property
    def file_bytes(self) -> int:
        """Bytes of its tensors in files; 0 where only names are known."""
        return sum(one.file_bytes for one in self.weights or ())


def draft_layer(config: Mapping[str, Any], names: Iterable[str]) -> DraftLayer | None:
    """The drafting layer among the tensors `names` of a checkpoint with this config.json; None:
    there is none in a packaging that is read."""
    names = list(names)
    if config.get("model_type") in ASSISTANT_TYPES:
        return _assistant(config, names)
    homes = homes_of_tensors(names, shape_of(config).layers_total)
    own = sorted(name for name, home in homes.items() if home is Place.DRAFTS)
    if not own:
        return None
    packaging = Packaging.MTP if MTP_NAME.match(own[0]) else Packaging.NEXTN
    found = (MTP_NAME if packaging is Packaging.MTP else LAYER_NAME).match(own[0])
    prefix = found["prefix"] if found else ""
    layer = DraftLayer(packaging, _type(config), prefix, LayerKind.DENSE, tuple(own))
    if packaging is Packaging.NEXTN and layer.parts["projection"] not in _plain_names(own):
        return None  # A layer too many is not yet one that drafts.
    wanted = {*layer.parts.values(), *_wanted_of_block(layer, homes)}
    missing = sorted(wanted - _in_one(_plain_names(own)) | _missing_experts(config, own))
    kind = LayerKind.EXPERTS if any(".experts." in one for one in own) else LayerKind.DENSE
    return replace(layer, kind=kind, missing=tuple(missing))


def measured(
    model: str, layer: DraftLayer, tensors: Iterable[StoredTensor], declared: DeclaredQuantization
) -> DraftLayer:
    """The layer with the sizes of its weights, which are among the stored `tensors` of the
    checkpoint `model`. Raises UnsupportedModelError and CheckpointError as `held_weights`."""
    own = set(layer.tensors)
    weights = held_weights(model, [one for one in tensors if one.name in own], declared)
    return replace(layer, weights=tuple(weights))


def _assistant(config: Mapping[str, Any], names: list[str]) -> DraftLayer:
    """Gemma's: all of a checkpoint of its own, whose layers have the same parts."""
    facts, plain = text_settings(config), _plain_names(names)
    first = {one.removeprefix("model.layers.0.") for one in plain if _number(one) == 0}
    layers = facts.get("num_hidden_layers")
    numbers = range(layers if isinstance(layers, int) else 1)
    first = first or {"self_attn.q_proj.weight"}
    wanted = {f"model.layers.{n}.{part}" for n in numbers for part in first}
    wanted |= set(PARTS[Packaging.GEMMA_ASSISTANT].values())
    wanted |= set(ORDERED if config.get("use_ordered_embeddings") else ())
    return DraftLayer(
        Packaging.GEMMA_ASSISTANT,
        str(config.get("model_type")),
        "",
        LayerKind.QUERIES,
        tuple(sorted(names)),
        tuple(sorted(wanted - plain)),
    )


def _type(config: Mapping[str, Any]) -> str:
    return str(text_settings(config).get("model_type") or config.get("model_type"))


def _number(name: str) -> int | None:
    found = LAYER_NAME.match(name)
    return int(found["number"]) if found else None


def _wanted_of_block(layer: DraftLayer, homes: Mapping[str, Any]) -> set[str]:
    """Weights of the model's last layer with attention, under the names of the drafting layer's
    block. A stage without such a layer knows none of them."""
    of_layers: dict[int, set[str]] = {}
    for name, home in homes.items():
        found = LAYER_NAME.match(name)
        if isinstance(home, int) and found:
            of_layers.setdefault(home, set()).add(name.removeprefix(found["prefix"]))
    attending = (n for n, own in of_layers.items() if any(p.startswith(ATTENTION) for p in own))
    model_own = of_layers.get(max(attending, default=-1), set())
    wanted = {part for part in _in_one(_plain_names(model_own)) if _is_due(part, model_own)}
    return {layer.block_prefix + part for part in wanted}


def _is_due(part: str, names: set[str]) -> bool:
    """Whether a part of one layer is one of every layer of its kind: a bias that came with the
    codes of a quantized weight is not."""
    if part.endswith(".bias"):
        return part.removesuffix(".bias") + ".weight" in names
    return part.endswith(("weight", "bias", "experts"))


def _plain_names(names: Iterable[str]) -> set[str]:
    """Names of the plain weights that stored tensors are, or are parts of."""
    return {_plain_name(name) for name in names}


def _plain_name(name: str) -> str:
    ends = ((end, plain) for end, plain in SUFFIXES.items() if name.endswith(end))
    end, plain = next(ends, ("", ""))
    return name.removesuffix(end) + plain


def _in_one(names: set[str]) -> set[str]:
    """Names in which all weights of a layer's experts are one, however they are packed."""
    return {re.sub(r"(\.experts)\..*", r"\1", name) for name in names}


def _missing_experts(config: Mapping[str, Any], own: list[str]) -> set[str]:
    """Weights of experts that are stored one by one, and of which some are not there."""
    found = [one for one in map(EXPERT.match, _plain_names(own)) if one]
    if not found:
        return set()
    facts = text_settings(config)
    counts = (facts.get(name) for name in ("num_experts", "n_routed_experts", "num_local_experts"))
    count = next((one for one in counts if isinstance(one, int)), 0)
    numbers = {*range(count), *(int(one["number"]) for one in found)}
    begin, parts = found[0]["experts"], {one["part"] for one in found}
    wanted = {f"{begin}{number}.{part}" for number in numbers for part in parts}
    return wanted - {one[0] for one in found}


# -- assistants -----------------------------------------------------------------------------------


def is_assistant(config: Config) -> bool:
    """Whether a config.json is an assistant's."""
    return config.get("model_type") in ASSISTANT_TYPES


def sources_of(config: Config) -> dict[str, int]:
    """The model's layer whose keys and values layers of each kind read, by its config.json; empty:
    it does not tell the kinds of its layers."""
    facts = text_settings(config)
    kinds, sharing = facts.get(KINDS), facts.get(SHARING)
    if not isinstance(kinds, list):
        return {}
    own = kinds[: len(kinds) - sharing] if isinstance(sharing, int) else kinds
    return {str(kind): number for number, kind in enumerate(own)}


def misfit(assistant: Config, model: Config, layer: DraftLayer | None) -> str:
    """Why an assistant cannot draft for a model, as a clause; empty: by what both config.json tell
    it can. `layer`: what names of its tensors tell of it; None: they are not known here."""
    facts, of_model = text_settings(assistant), text_settings(model)
    kind = of_model.get("model_type")
    if kind not in ASSISTED_TYPES:
        return f"it is an assistant of Gemma 4, and the model is of type {kind}"
    width, needed = of_model.get("hidden_size"), assistant.get("backbone_hidden_size")
    if None not in (width, needed) and width != needed:
        return f"it was made for a model of width {needed}, and this one's is {width}"
    words, own = of_model.get("vocab_size"), facts.get("vocab_size")
    if None not in (words, own) and words != own:
        return f"it has {own} words where the model has {words}"
    wanted, sources = facts.get(KINDS), sources_of(model)
    if not sources or not isinstance(wanted, list):
        return "the kinds of its layers, or of the model's, are not told in config.json"
    if missing := sorted(set(map(str, wanted)) - sources.keys()):
        return f"it reads layers of the kind {missing[0]}, of which the model has none"
    lacks = layer.objection if layer is not None else ""
    return _other_sizes(facts, of_model, {str(one) for one in wanted}) or lacks


def first_source(assistant: Config, model: Config) -> int:
    """The first layer that a tail must have for an assistant that fits the model."""
    sources = sources_of(model)
    return min(sources[str(kind)] for kind in text_settings(assistant)[KINDS])


def elsewhere(first: int, layers: int) -> str:
    """Why an assistant cannot draft on a tail without the first of its sources, as a clause;
    `layers`: of the model."""
    return (
        f"it reads the keys and values of layers {first} to {layers - 1}, and the last stage does "
        f"not hold all of them: cut the model at layer {first} or before"
    )


def _other_sizes(assistant: Config, model: Config, kinds: set[str]) -> str:
    """Why heads do not fit, where both configs tell their sizes."""
    for kind in sorted(kinds):
        name = HEAD_SIZES[kind == FULL]
        one, other = assistant.get(name), model.get(name)
        if None not in (one, other) and one != other:
            return f"its heads have {one} numbers in layers of {kind}, and the model's {other}"
    return ""
