"""Layers of a model that must stay on one stage, by its config.

Two designs tie layers to each other. Layers that *share KV* compute none of their own: each reads
what the last layer of its kind before all of them has stored. And where a layer hands on *several
streams* instead of one row of the hidden size, nothing but a whole model has an entry and an exit
for rows that travel. What a layer needs of the token itself (per-layer embeddings) is no tie: token
ids go round with the rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from molink.errors import UserError

Runs = tuple[tuple[int, int], ...]
"""Runs [start, end) of layers that no cut may part; in order, and apart."""

STREAMS = "altup_num_inputs"
"""Setting of models that hand on several streams (Gemma 3n)."""

SHARING = "num_kv_shared_layers"
"""Setting of models whose last layers, so many, read the KV of earlier ones (Gemma 3n, Gemma 4)."""

Config = Mapping[str, Any]


def layers_together(config: Config, layers: int) -> Runs:
    """The runs of a model of so many layers, by the settings of its text model."""
    start = 0 if _number(config, STREAMS) > 1 else _first_tied(config, layers)
    return ((start, layers),) if layers - start > 1 else ()


def tied_from(runs: Runs, first: int, layers: int) -> Runs:
    """The runs of a model of so many layers whose layers from `first` on stay together, too."""
    start = min([first, *(begin for begin, end in runs if end > first)])
    before = tuple(run for run in runs if run[1] <= start)
    return (*before, (start, layers)) if layers - start > 1 else before


def check_cuts(model: str, layers: int, together: Runs, ranges: Sequence[tuple[int, int]]) -> None:
    """Raise UserError when stages part layers that stay together; it says where to cut."""
    bounds = {bound for one in ranges for bound in one}
    for first, end in together:
        cut = min((bound for bound in bounds if first < bound < end), default=None)
        if cut is not None and (first, end) == (0, layers):
            raise UserError(
                f"{model} cannot be cut into stages, because what its layers hand on does not "
                f"travel: give all {layers} layers to one stage, as --nodes 1 does."
            )
        if cut is not None:
            where = f"at layer {first} or before" if first else f"at layer {end} or behind"
            raise UserError(
                f"layers {first} to {end - 1} of {model} share keys and values and stay on one "
                f"stage, so it cannot be cut at layer {cut}: cut it {where}."
            )


def _first_tied(config: Config, layers: int) -> int:
    """The first layer whose KV later ones read: the last of some kind before those that share."""
    sharing = min(_number(config, SHARING), layers)
    kinds = config.get("layer_types")
    if not sharing:
        return layers
    if not isinstance(kinds, list) or len(kinds) != layers:
        return 0  # It is not told who reads whom.
    own, others = kinds[: layers - sharing], set(kinds[layers - sharing :])
    last = [max((n for n, kind in enumerate(own) if kind == one), default=0) for one in others]
    return min(last, default=0)


def _number(config: Config, name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
