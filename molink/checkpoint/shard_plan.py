"""Choice of the files of a checkpoint, and of the tensors in them, that a stage needs.

Agents ask before they fetch any weights: tensor names alone decide, without torch. A
tensor's *home* is a layer or a place around the layers. The list of layers gives itself away: of
all dotted prefixes that are followed by a number, it is the one that counts through all layers of
the model. What lies around it is told by the names that pruning goes by; a tensor that no name
explains goes to everybody. So the plan may hold too much and never too little: what the loader then
takes, by the paths of real modules, is a part of it (a test compares them on every tiny
architecture).

Asking the loader itself was rejected: it needs torch and a skeleton of the model, some hundred
megabytes and seconds in an agent that shall idle in 80 MB.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from molink.checkpoint.description import ALIASES
from molink.checkpoint.model_config import LAYERS_MAX, text_settings
from molink.errors import CheckpointError, UserError

# Architectures have no common names for the modules around the decoder's layers, so these lists
# grew with the models that were tried. Two read them: pruning, which has the modules themselves at
# hand, and this plan, which has nothing but the names of tensors. So a name that is missing is a
# refusal there and a download too many here, never a wrong answer.

TOKEN_EMBEDDINGS = frozenset({"embed_tokens", "wte", "word_embeddings", "embed_in"})
"""Names of the token embeddings; with tied weights also the output matrix."""

OUTPUT_MATRICES = frozenset({"lm_head", "embed_out"})
"""Names of the matrix that turns hidden states into logits, where it is stored of its own."""

ADDED_POSITIONS = frozenset({"wpe", "embed_positions", "position_embeddings", "embed_pos"})
"""Names of position embeddings that are added to the token embeddings."""

BEFORE_LAYERS = frozenset(
    {
        "project_in",
        "word_embeddings_layernorm",
        "embed_norm",
        "emb_norm",
        "embed_tokens_layernorm",
        "emb_layer_norm",
        "embed_layer_norm",
        "embedding_layernorm",
    }
)
"""Names of modules between the token embeddings and the first layer."""

AFTER_LAYERS = frozenset(
    {
        "norm",
        "ln_f",
        "final_layer_norm",
        "final_layernorm",
        "project_out",
        "norm_f",
        "final_norm",
        "layer_norm",
        "embedding_norm",
    }
)
"""Names of modules after the last layer."""


TOKEN_TABLE = "embed_tokens_per_layer"
"""Name of the table of embeddings that has columns for every layer."""

TOKEN_INPUTS = frozenset({TOKEN_TABLE, "per_layer_model_projection", "per_layer_projection_norm"})
"""Names of modules that make, of token ids, what each layer reads beside its rows. A stage uses its
own layers' part of them, and the token embeddings."""

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Modules in which trainers wrap a model, or its layers."""

_WRAPPED_NAMES = {
    **{rf"^{one}\.": "" for one in WRAPPERS},
    **{rf"\.{one}\.": "." for one in WRAPPERS},
    r"^(module\.)+": "",
}

_PART_NAMES = {
    r"^model\.language_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^model\.text_model\.": "model.",
    r"^llm\.model\.": "model.",
    r"^thinker\.model\.": "model.",
    r"^(language_model|llm|thinker)\.lm_head\.": "lm_head.",
}

TEXT_NAMES = _WRAPPED_NAMES | _PART_NAMES
"""Beginnings of the names of text models' tensors, as patterns, in checkpoints that take more than
text or that a trainer has wrapped; and the beginnings in a checkpoint of text alone."""

BESIDE_TEXT = re.compile(
    r"(^|\.)(visual|vision_tower|vision_model|audio_tower|multi_modal_projector|talker|mtp|mtp_\w+)\."
)
"""Pattern in names of tensors that take pictures or sound, speak, or draft, where those of the text
model have names of their own."""

DRAFTS_BESIDE = re.compile(r"(^|\.)mtp\.(?!layers\.[1-9])")
"""Pattern in names of a drafting layer that lies beside the model, but for its further layers."""

COPIES = ("embed_tokens.", "shared_head.head.")
"""Beginnings of the names of what a drafting layer among the model's own has a copy of."""


class Place(StrEnum):
    """Place around the layers where a tensor belongs that is of none."""

    EMBEDDING = "embedding"
    """Token embeddings."""
    FIRST = "first"
    """Else in front of the layers."""
    LAST = "last"
    """Behind the layers, in front of the output matrix."""
    OUTPUT = "output"
    """The output matrix."""
    TOKEN_INPUTS = "token inputs"
    """Parts that make each layer's input of tokens: each stage gets them and the embeddings."""
    SHARED = "shared"
    """Tensors that no rule knows: every stage gets them."""
    BESIDE = "beside"
    """A part beside the text model, for pictures, sound or drafts: no stage gets it."""
    DRAFTS = "drafts"
    """The layer that drafts: the tail of a ring that drafts there gets it, and the embeddings."""


Home = int | Place
"""A layer's number, or a place around the layers."""


@dataclass(frozen=True, slots=True)
class WeightsLayout:
    """Layer count and table sharing of a checkpoint, as its config.json states them."""

    layers_total: int | None
    """None: it leaves that to its class; then the longest list counts."""
    tied: bool | None
    """Whether the output matrix is the token embeddings; None: it leaves that to its class."""


@dataclass(frozen=True, slots=True)
class FileNeed:
    """Tensors of one weight file that a stage needs."""

    name: str
    tensors: tuple[str, ...]
    """Sorted; never empty."""
    whole: bool
    """Whether that is all that the file holds."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Files and tensors of a checkpoint that a stage needs."""

    layers: range
    files: tuple[FileNeed, ...]
    """Needed files, by name."""
    homes: Mapping[str, Home]
    """Home of each needed tensor."""

    @property
    def weight_map(self) -> dict[str, str]:
        """File name of every needed tensor: the checkpoint's index, cut."""
        return {tensor: need.name for need in self.files for tensor in need.tensors}


def shape_of(config: Mapping[str, Any]) -> WeightsLayout:
    """The layout that a parsed config.json states. Raises CheckpointError for more layers than any
    model has: they are counted one by one."""
    facts = text_settings(config)
    names = ("num_hidden_layers", *ALIASES["num_hidden_layers"])
    counts = [facts[name] for name in names if isinstance(facts.get(name), int)]
    if counts and counts[0] > LAYERS_MAX:
        raise CheckpointError(f"the config names {counts[0]} layers: {LAYERS_MAX} are the most")
    tied = facts.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return WeightsLayout(counts[0] if counts else None, tied if isinstance(tied, bool) else None)


def plan_shards(
    weight_map: Mapping[str, str], shape: WeightsLayout, layers: range, drafts: bool = False
) -> ShardPlan:
    """Plan what the stage of `layers` needs of `weight_map` (tensor name to file name); `drafts`:
    its ring's tail drafts with a layer of the checkpoint.

    Raises UserError for layers that the model does not have.
    """
    homes = homes_of_tensors(weight_map, shape.layers_total)
    total = shape.layers_total or 1 + max(
        (home for home in homes.values() if isinstance(home, int)), default=layers.stop - 1
    )
    if not 0 <= layers.start < layers.stop <= total or layers.step != 1:
        raise UserError(f"a stage owns some of {total} layers, got [{layers.start}, {layers.stop})")
    wanted = _homes_of_stage(set(homes.values()), layers, total, shape.tied)
    if drafts and layers.stop == total:
        wanted |= {Place.DRAFTS, Place.EMBEDDING}
    needed = {name: home for name, home in homes.items() if home in wanted}
    return ShardPlan(layers, _by_file(weight_map, needed), needed)


def homes_of_tensors(names: Iterable[str], layers_total: int | None) -> dict[str, Home]:
    """The home of every tensor; the layer `layers_total` drafts, and further ones are extras that
    no stage loads."""
    text_names = _text_names(names)
    root = _layer_list([name for name in text_names.values() if name is not None], layers_total)
    homes = {name: _home(text_name, root) for name, text_name in text_names.items()}
    for name, home in homes.items():
        if home is Place.BESIDE and DRAFTS_BESIDE.search(name):
            homes[name] = Place.DRAFTS
        elif home == layers_total:
            is_copy = name.split(f".{home}.", 1)[-1].startswith(COPIES)
            homes[name] = Place.BESIDE if is_copy else Place.DRAFTS
    return homes


def stores_output_matrix(names: Iterable[str]) -> bool:
    """Whether a checkpoint has an output matrix beside its token embeddings."""
    text_names = _text_names(names).values()
    return any(name is not None and OUTPUT_MATRICES & set(name.split(".")) for name in text_names)


def _text_names(names: Iterable[str]) -> dict[str, str | None]:
    """Name of each tensor in a checkpoint of text alone; None: it is beside the text."""
    bare = {name: _renamed(name, _WRAPPED_NAMES) for name in names}
    renamed = {name: _renamed(one, _PART_NAMES) for name, one in bare.items()}
    is_part = bare != renamed
    return {
        name: renamed[name]
        if BESIDE_TEXT.search(one) is None
        and (not is_part or one != renamed[name] or OUTPUT_MATRICES & set(one.split(".")))
        else None
        for name, one in bare.items()
    }


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for pattern, beginning in names.items():
        name = re.sub(pattern, beginning, name, count=1)
    return name


def _layer_list(names: Iterable[str], layers_total: int | None) -> str | None:
    """The dotted prefix (with its last dot) before the layers' numbers; None when it is not
    plain."""
    numbers: dict[str, set[int]] = {}
    for name in names:
        steps = name.split(".")
        at = next((index for index, step in enumerate(steps) if _is_layer(step)), None)
        if at is not None:
            prefix = "".join(f"{step}." for step in steps[:at])
            numbers.setdefault(prefix, set()).add(int(steps[at]))
    if layers_total is None:
        layers_total = max((len(found) for found in numbers.values()), default=0)
    whole = set(range(layers_total))
    lists = [prefix for prefix, found in numbers.items() if whole and whole <= found]
    return lists[0] if len(lists) == 1 else None


def _is_layer(step: str) -> bool:
    """Whether a step of a tensor's name is the number of a layer."""
    return step.isdecimal() and len(step) <= len(str(LAYERS_MAX))


def _home(name: str | None, root: str | None) -> Home:
    """`root` is the prefix of layers, such as "model.layers."; what is around them shares its
    beginning "model." or stands at the top."""
    if name is None:
        return Place.BESIDE
    if root is None:
        return Place.SHARED
    if name.startswith(root):
        number = name[len(root) :].split(".", 1)[0]
        return int(number) if _is_layer(number) else Place.SHARED
    around = "".join(f"{step}." for step in root.split(".")[:-2])
    steps = name.removeprefix(around).split(".")
    if OUTPUT_MATRICES & set(steps):
        return Place.OUTPUT
    return _place(steps[0]) if name.startswith(around) else Place.SHARED


def _place(module: str) -> Place:
    if module in TOKEN_EMBEDDINGS:
        return Place.EMBEDDING
    if module in TOKEN_INPUTS:
        return Place.TOKEN_INPUTS
    if module in ADDED_POSITIONS or module in BEFORE_LAYERS:
        return Place.FIRST
    return Place.LAST if module in AFTER_LAYERS else Place.SHARED


def _homes_of_stage(homes: set[Home], layers: range, total: int, tied: bool | None) -> set[Home]:
    """Homes whose tensors the stage needs.

    A tail without an output matrix of its own multiplies with the embeddings. Where both are stored
    and the config is silent, it gets both: one of them too many is better than too few.
    """
    wanted: set[Home] = {Place.SHARED, Place.TOKEN_INPUTS, *layers}
    if Place.TOKEN_INPUTS in homes:
        wanted.add(Place.EMBEDDING)
    if layers.start == 0:
        wanted |= {Place.EMBEDDING, Place.FIRST}
    if layers.stop == total:
        wanted |= {Place.LAST, Place.OUTPUT}
        if tied is not False or Place.OUTPUT not in homes:
            wanted.add(Place.EMBEDDING)
    return wanted


def _by_file(weight_map: Mapping[str, str], needed: Mapping[str, Home]) -> tuple[FileNeed, ...]:
    held: dict[str, int] = {}
    wanted: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        held[file] = held.get(file, 0) + 1
        if tensor in needed:
            wanted.setdefault(file, []).append(tensor)
    return tuple(
        FileNeed(file, tuple(sorted(wanted[file])), len(wanted[file]) == held[file])
        for file in sorted(wanted)
    )
