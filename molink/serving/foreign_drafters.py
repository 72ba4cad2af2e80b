"""Drafters of other kinds that people have and that cannot draft in a ring.

EAGLE-3 and DFlash read hidden states of several layers of the model that they draft for. In a ring
these lie on several stages, so three rows would go beside every row over every hop, of prompts too:
more than drafts bring over links between homes. Their folders are known by their config.json, in
their makers' own form or in that of the speculators library.
"""

from collections.abc import Mapping
from typing import Any

from molink.errors import UnsupportedModelError

EAGLE, DFLASH = "EAGLE", "DFlash"

WHY = (
    "{name} is a drafter of the kind {kind}, which reads hidden states of three layers: in a ring "
    "these lie on several stages, and three rows would go beside every row on every hop. Give a "
    "small model of the same words, or take copy or tail"
)


def check_drafts_here(name: str, config: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError, which says why, for the config.json of a drafter that cannot
    draft in a ring."""
    if (kind := foreign_kind(config)) is not None:
        raise UnsupportedModelError(WHY.format(name=name, kind=kind))


def foreign_kind(config: Mapping[str, Any]) -> str | None:
    """Name of the kind of drafter that a config.json describes, if it needs hidden states of
    several layers; None: it needs none."""
    classes = config.get("architectures")
    names = [str(one) for one in classes] if isinstance(classes, list) else []
    names += [str(config.get("speculators_model_type") or ""), str(config.get("model_type") or "")]
    speculators = config.get("speculators_config")
    if isinstance(speculators, Mapping):
        names.append(str(speculators.get("algorithm") or ""))
    lower = [one.lower() for one in names]
    if "dflash_config" in config or any("dflash" in one for one in lower):
        return DFLASH
    if any("eagle" in one for one in lower):
        return "EAGLE-3" if any("eagle3" in one or "eagle-3" in one for one in lower) else EAGLE
    return None
