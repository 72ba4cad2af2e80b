"""Catalogue of published models: what a plan needs of their configs, without a file of theirs.

`models.json` has the text model's settings of each entry, as far as `shape_of_config` reads them,
with the source and its date. Sizes are not stored: they are made of the settings, as for a
config.json, for each format in which the model can be served.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from molink.checkpoint.kv_format import KvDtype
from molink.checkpoint.model_config import shape_of_config
from molink.checkpoint.model_shape import ModelShape, PlannedModel
from molink.checkpoint.quantized.declared import declared_quantization
from molink.errors import UnsupportedModelError

Format = Literal["16 bits", "8 bits", "4 bits", "MXFP4"]

GROUP = 128
"""Weights that share a scale in four bits, as `molink import` rounds them."""

ROUNDED: Mapping[Format, tuple[int, int | None]] = {"8 bits": (8, None), "4 bits": (4, GROUP)}
"""Bits of a weight and size of its group, in the formats that `molink import` makes of 16 bits."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """Published model of the catalogue: its settings and where they come from."""

    name: str
    """Name that a user types, in lower case."""
    hub: str
    """Id on the hub."""
    title: str
    released: str
    """Day on which it was published, YYYY-MM-DD."""
    licence: str
    context: int
    """Tokens that a request may have by its config."""
    parameters: int
    """Parameters as published: with what sees, hears or drafts, which is not served."""
    source: str
    """Where its facts are from, with the date."""
    config: Mapping[str, Any]
    """Settings of its text model."""
    refused: str = ""
    """Why it cannot be served; empty: it is."""

    @property
    def formats(self) -> tuple[Format, ...]:
        """Formats in which it can be served, the most exact first."""
        return ("MXFP4",) if "quantization_config" in self.config else ("16 bits", *ROUNDED)

    @property
    def active_parameters(self) -> int:
        """Parameters that a token passes, the output matrix included."""
        shape = self.shape(self.formats[0])
        layer = shape.dense_parameters + shape.experts_per_token * shape.expert_parameters
        return shape.layers * layer + shape.head_parameters

    def shape(self, form: Format, kv_dtype: KvDtype = "auto") -> ModelShape:
        """The model's shape in a format. Raises UnsupportedModelError for one that is refused."""
        if self.refused:
            raise UnsupportedModelError(f"{self.title} is not served: {self.refused}")
        return replace(shape_of_config(self.name, self._settings(form)), kv_dtype=kv_dtype)

    def planned(self, form: Format, kv_dtype: KvDtype = "auto") -> PlannedModel:
        """The model as a plan takes it; raises as `shape`."""
        planned = PlannedModel.of_shape(self.shape(form, kv_dtype))
        declared = declared_quantization(self.name, self._settings(form))
        return replace(planned, declared=declared)

    def download_bytes(self, form: Format) -> int:
        """Weights of the whole model, as they are fetched."""
        cost = self.shape(form).cost
        return cost.fetched_bytes(0, cost.layers)

    def _settings(self, form: Format) -> Mapping[str, Any]:
        if form not in ROUNDED:
            return self.config
        bits, group = ROUNDED[form]
        weights = {"num_bits": bits, "group_size": group}
        groups = {"layers": {"format": "pack-quantized", "weights": weights}}
        scheme = {"quant_method": "compressed-tensors", "config_groups": groups}
        return {**self.config, "quantization_config": scheme}


@cache
def catalogue() -> tuple[CatalogueEntry, ...]:
    """All entries, in the order of the file."""
    path = files("molink.checkpoint.catalogue") / "models.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    sources = stored["sources"]
    return tuple(
        CatalogueEntry(**{**one, "source": sources[one["source"]]}) for one in stored["models"]
    )


def catalogue_entry(name: str) -> CatalogueEntry | None:
    """The entry of a name or a hub id, whatever the case; None: there is none."""
    asked = name.lower()
    return next((one for one in catalogue() if asked in (one.name, one.hub.lower())), None)
