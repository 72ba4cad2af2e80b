"""Reader of what config.json declares of quantized weights, and refusal of what is not read.

Of all that such a config holds little is believed. Which weights are quantized, their bits and
their groups are told by the tensors themselves (`recognised`): lists of exceptions are written in
three dialects of patterns, and are wrong in published models. Only what no tensor tells is taken
from here: the scheme, the zero of GPTQ's first version, the size of a short group.

What cannot be served is refused here, from the small files, before any weights are fetched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from molink.errors import UnsupportedModelError
from molink.printable import printable_line

Scheme = Mapping[str, Any]
"""JSON object of a config."""

SCHEME_KEYS = ("quantization_config", "compression_config")
"""Keys under which a config, or the text part of one, says how weights are quantized; the second
name is that of the first compressed-tensors."""

OTHER_METHODS = {
    "bitsandbytes": "bitsandbytes, whose codes belong to its own kernels",
    "modelopt": "ModelOpt (NVFP4 among its formats)",
    "exl2": "EXL2",
    "exl3": "EXL3",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "auto-round": "auto-round's own names",
}
"""Words for the commonest values of `quant_method` that are not read; others speak for
themselves."""

TAKE_INSTEAD = "take a version of it in compressed-tensors, AWQ, GPTQ or FP8, or the original model"

COMPRESSED_FORMATS = {
    "pack-quantized": (4, 8),
    "int-quantized": (8,),
    "float-quantized": (8,),
}
"""Formats of compressed-tensors that are read, and the bits that they may have."""

WHOLE_BYTES = ("int-quantized", 8)
"""Format and bits of an output head beside layers of four bits, as `molink import` makes them."""

SCALED_ACTIVATIONS = (
    *("starcoder2", "falcon", "mpt", "gptj", "gpt_neox", "gpt_bigcode", "bloom"),
    *("opt", "codegen"),
)
"""Model types whose AWQ checkpoints divide activations by scales that no linear layer holds."""

ACT_ORDER = (
    "act-order (desc_act), where neighbouring inputs belong to different groups, so that each "
    "layer would gather its input anew at every step"
)
WITHOUT_ACT_ORDER = "take its version without act-order (desc_act false)"

BLOCK = (128, 128)
"""Rows and inputs of an FP8 block where the config does not say."""

DIGITS_MAX = 9
"""Most digits of the sizes of a block: more are no size of any matrix."""

NAME_CHARACTERS_MAX = 60
"""Most characters that an error repeats of a word from a config."""


@dataclass(frozen=True, slots=True)
class DeclaredQuantization:
    """The part of a quantization config that tensors do not tell."""

    method: str | None = None
    """Method: compressed-tensors, awq, gptq, mxfp4, fp8 or gguf; None where nothing is declared."""
    bits: int | None = None
    """Bits of an integer code, where the config says."""
    group: int | None = None
    """Inputs of a group; None: a whole row, or not declared."""
    zero_offset: int = 0
    """Number that GPTQ's first version has subtracted from each zero point before it stored it."""
    block: tuple[int, int] = BLOCK
    """Rows and inputs of an FP8 block."""
    is_float: bool = False
    """Whether codes of compressed-tensors are FP8."""

    @property
    def words(self) -> str:
        """Format of the weights, to stand behind a model's name; empty: none is declared."""
        bits = f" of {self.bits} bits" if self.bits else ""
        group = f" in groups of {self.group}" if self.group else ""
        return f" in {self.method}{bits}{group}" if self.method else ""


def declared_quantization(name: str, config: Scheme) -> DeclaredQuantization:
    """Quantization that a parsed config.json declares. Raises UnsupportedModelError for a scheme
    that is not read, with one sentence that names another to take."""
    text = config.get("text_config")
    places = (config, text) if isinstance(text, Mapping) else (config,)
    found = [place.get(key) for place in places for key in SCHEME_KEYS]
    found += [one for one in [config.get("quantization")] if isinstance(one, Mapping)]  # MLX's.
    scheme = next((one for one in found if one), None)
    if scheme is None:
        return DeclaredQuantization()
    if not isinstance(scheme, Mapping):
        raise refusal(name, "a quantization_config that is no JSON object")
    method = str(scheme.get("quant_method") or "")
    if not method and "config_groups" in scheme:
        method = "compressed-tensors"
    if method == "compressed-tensors":
        return _compressed(name, scheme)
    if method == "awq":
        return _awq(name, scheme, str(config.get("model_type")))
    if method == "gptq":
        return _gptq(name, scheme)
    if method in ("mxfp4", "fp8", "gguf"):
        return DeclaredQuantization(method, block=_block(scheme.get("weight_block_size")))
    if not method and {"bits", "group_size"} <= scheme.keys():
        raise refusal(name, "MLX, whose codes belong to Apple's kernels")
    raise refusal(name, OTHER_METHODS.get(method, _word(method)) or "a scheme without a name")


# -- compressed-tensors ---------------------------------------------------------------------------


def _compressed(name: str, scheme: Scheme) -> DeclaredQuantization:
    groups = [group for group in _values(scheme.get("config_groups")) if isinstance(group, Mapping)]
    weights = [group["weights"] for group in groups if isinstance(group.get("weights"), Mapping)]
    kinds = {
        (
            str(group.get("format") or scheme.get("format")),
            _number(group["weights"].get("num_bits")),
        )
        for group in groups
        if isinstance(group.get("weights"), Mapping)
    }
    form, bit_count = _one_kind(name, kinds)
    if form not in COMPRESSED_FORMATS:
        raise refusal(name, f"the format {_word(form)} of compressed-tensors")
    if bit_count not in COMPRESSED_FORMATS[form]:
        raise refusal(name, f"{_word(bit_count)} bits in the format {form}")
    if any(str(one.get("actorder")).lower() in ("group", "dynamic", "true") for one in weights):
        raise refusal(name, f"compressed-tensors in {ACT_ORDER}", WITHOUT_ACT_ORDER)
    _refuse_transforms(name, scheme)
    return DeclaredQuantization(
        "compressed-tensors",
        bits=bit_count,
        group=_one_group(one.get("group_size") for one in weights),
        block=_block(weights[0].get("block_structure")),
        is_float=form == "float-quantized",
    )


def _one_kind(name: str, kinds: set[tuple[str, Any]]) -> tuple[str, Any]:
    """The format and bits that tensors do not tell: whole bytes beside packed words do, and no
    other two kinds are read at once."""
    rest = kinds - {WHOLE_BYTES} if len(kinds) > 1 else kinds
    if len(rest) != 1 or (rest != kinds and next(iter(rest))[0] != "pack-quantized"):
        words = sorted({form for form, _ in kinds} | {f"{bits} bits" for _, bits in kinds})
        raise refusal(name, f"several schemes at once ({_word(', '.join(words))})")
    return next(iter(rest))


def _refuse_transforms(name: str, scheme: Scheme) -> None:
    """Refuse changes to a model that compressed-tensors can make beside quantizing its weights."""
    if scheme.get("transform_config"):
        raise refusal(name, "rotations of activations (transform_config)")
    sparsity = scheme.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format") not in (None, "dense"):
        raise refusal(name, f"sparse weights ({_word(sparsity['format'])})")


# -- AWQ and GPTQ ---------------------------------------------------------------------------------


def _awq(name: str, scheme: Scheme, model_type: str) -> DeclaredQuantization:
    version = str(scheme.get("version") or scheme.get("format") or "gemm").lower()
    bits = _number(scheme.get("bits", scheme.get("w_bit", 4)))
    if version != "gemm":
        raise refusal(name, f"AWQ of the version {_word(version)}, not gemm")
    if bits != 4:
        raise refusal(name, f"AWQ of {_word(bits)} bits, not 4")
    if model_type in SCALED_ACTIVATIONS:
        raise refusal(name, f"AWQ of {model_type}, which scales activations too")
    group = scheme.get("group_size", scheme.get("q_group_size"))
    return DeclaredQuantization("awq", bits=4, group=_one_group([group]))


def _gptq(name: str, scheme: Scheme) -> DeclaredQuantization:
    layout = str(scheme.get("checkpoint_format") or scheme.get("format") or "gptq").lower()
    bits, group = _number(scheme.get("bits")), _one_group([scheme.get("group_size")])
    if layout not in ("gptq", "gptq_v2") or scheme.get("is_marlin_format"):
        layout = "marlin" if scheme.get("is_marlin_format") else layout
        raise refusal(name, f"GPTQ in the layout {_word(layout)}")
    if bits not in (4, 8):
        raise refusal(name, f"GPTQ of {_word(bits)} bits, not 4 or 8")
    if scheme.get("desc_act") and group is not None:
        raise refusal(name, f"GPTQ in {ACT_ORDER}", WITHOUT_ACT_ORDER)
    return DeclaredQuantization(
        "gptq", bits=bits, group=group, zero_offset=0 if layout == "gptq_v2" else 1
    )


# -- pieces ---------------------------------------------------------------------------------------


def _values(groups: Any) -> list[Any]:
    return list(groups.values()) if isinstance(groups, Mapping) else []


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _one_group(sizes: Any) -> int | None:
    """The group size that is declared, if it is one and not -1, a whole row."""
    found = {number for size in sizes if (number := _number(size)) and number > 0}
    return found.pop() if len(found) == 1 else None


def _block(value: Any) -> tuple[int, int]:
    """Rows and inputs of a block, from a list or from text such as "128x128"."""
    parts = value.split("x") if isinstance(value, str) else value
    if not isinstance(parts, list) or len(parts) != 2:
        return BLOCK
    texts = [str(part) for part in parts if str(part).isdecimal() and len(str(part)) <= DIGITS_MAX]
    sizes = [int(text) for text in texts if int(text) > 0]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else BLOCK


def _word(value: Any) -> str:
    return printable_line(str(value))[:NAME_CHARACTERS_MAX]


def refusal(name: str, scheme: str, instead: str = TAKE_INSTEAD) -> UnsupportedModelError:
    """The error for a scheme that is not read, given as a noun."""
    return UnsupportedModelError(
        f"{name} is quantized in a way that MoLink does not read: {scheme}; {instead}"
    )
