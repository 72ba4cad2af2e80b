"""The catalogue for JSON: `molink models --json` and `GET /catalogue` tell the same fields."""

from collections.abc import Iterable
from dataclasses import asdict

from molink.catalogue.fits import CatalogueRow
from molink.checkpoint.catalogue.entries import CatalogueEntry
from molink.json_object import JsonObject


def entry_fields(entry: CatalogueEntry) -> JsonObject:
    """What is known of a model on whatever PCs; sizes in bytes, as they are downloaded."""
    served = not entry.refused
    return {
        "name": entry.name,
        "title": entry.title,
        "hub": entry.hub,
        "state": "served" if served else "refused",
        "why": entry.refused,
        "parameters": entry.parameters,
        "active_parameters": entry.active_parameters if served else None,
        "bytes": {form: entry.download_bytes(form) for form in entry.formats} if served else {},
        "context_tokens": entry.context,
        "licence": entry.licence,
        "released": entry.released,
        "source": entry.source,
    }


def row_fields(row: CatalogueRow) -> JsonObject:
    """The same with what it would be on the PCs: `fits`, `too_large` or `refused`."""
    if row.entry.refused:
        return entry_fields(row.entry) | {"fit": None}
    if row.fit is None:
        return entry_fields(row.entry) | {"state": "too_large", "why": row.why, "fit": None}
    return entry_fields(row.entry) | {"state": "fits", "fit": asdict(row.fit)}


def answer_fields(pcs: Iterable[tuple[str, int]], rows: Iterable[CatalogueRow]) -> JsonObject:
    """The whole answer; of each PC its name and the bytes that it lends."""
    return {
        "pcs": [{"name": name, "memory_bytes": lent} for name, lent in pcs],
        "models": [row_fields(row) for row in rows],
    }
