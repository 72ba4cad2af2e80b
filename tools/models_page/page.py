"""Writes docs/models.md from the results of the trials and from the shapes of published models."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from molink.checkpoint.model_config import shape_of_config
from molink.checkpoint.model_shape import ModelShape
from molink.config.layer_split import even_split
from molink.engine.drafting.packaging import FED_BEHIND_NORM
from molink_sim.even_ring import MEMORY_SHARE
from tools.models_page.published import PUBLISHED, Published
from tools.models_page.trials import NO_DECODER, Trial, families

__all__ = ["PAGE", "RESULTS", "Results", "page", "pcs_needed", "read_results"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
RESULTS = Path(__file__).with_name("results.json")

CARDS_GB = (8, 12, 16, 24)
"""Memory of cards that people play with."""

USERS, CONTEXT_TOKENS = 4, 8192
"""Whose keys and values shall fit beside the weights, and for how many tokens each."""

PCS_MAX = 32

FOUR_BITS = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
"""As a config.json declares it, of most published checkpoints of four bits."""

FORMATS = ("16 bits", "4 bits")


INTRODUCTION = """\
# Models

<!-- Made by `make models`; do not edit. -->

Which models MoLink serves is found out, not listed by hand: before a stage loads weights, a tiny
random model of the same architecture is computed whole by transformers and in three stages by
MoLink, and what comes out different is refused with one sentence. This page is what that self-test
says of every family of transformers {version}.

Of {families} families that predict text, {served} are served, {refused} decoder-only ones are
refused, and {others} are no decoder-only language models.
"""

HOME_MODELS = """\
## What PCs they take

The fewest equal PCs whose cards hold the model's layers and, beside them, {users} users' contexts
of {tokens:,} tokens in 16 bits, in {share:.0%} of their memory. Calculated from the models' shapes,
not measured; `molink plan` counts with your own PCs. What layers with a state or a window keep of
each request, whatever its length, is in it, and not in the KV of 1,000 tokens. 4 bits are groups
of 128 weights with a scale and a zero
point, of gpt-oss its own MXFP4; tables of tokens have 16 bits.
"""

DRAFTS = """\
## Families with a layer that drafts

Published checkpoints of these hold a layer that guesses the token after next, with which the last
stage drafts: `--drafter tail`, or `auto`. Any model can draft by copying, or with a smaller one
([how drafts work](speculation.md)).

{families}
"""

PARTS = """\
## Models that take more than text

Their text model is served alone: no stage fetches what sees or hears.
"""


@dataclass(frozen=True, slots=True)
class Results:
    """What the trials found, and with which version of the library."""

    transformers: str
    trials: tuple[Trial, ...]


def read_results() -> Results:
    """Read the results of an earlier run from the file that keeps them."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    return Results(stored["transformers"], tuple(Trial(**one) for one in stored["trials"]))


def page(results: Results) -> str:
    """The whole page, as Markdown."""
    by_name = {trial.name: trial for trial in results.trials}
    causal = [by_name[name] for name in families()]
    decoders = [trial for trial in causal if trial.why != NO_DECODER]
    parts = [by_name[name] for name in by_name if name not in {*families(), *_published()}]
    served = [trial for trial in decoders if _rows_served(trial, by_name)]
    refused = [trial for trial in decoders if trial not in served]
    others = [trial for trial in causal if trial.why == NO_DECODER]
    return "\n".join(
        [
            INTRODUCTION.format(
                version=results.transformers,
                families=len(causal),
                served=len(served),
                refused=len(refused),
                others=len(others),
            ),
            *_home_models(by_name),
            *_served(served, by_name),
            DRAFTS.format(families=", ".join(f"`{name}`" for name in sorted(FED_BEHIND_NORM))),
            *_refused(refused, by_name),
            *_parts(parts, by_name),
            *_others(others),
        ]
    )


# -- models at home -------------------------------------------------------------------------------


def _home_models(by_name: dict[str, Trial]) -> Iterator[str]:
    columns = [f"{card} GB, {name}" for name in FORMATS for card in CARDS_GB]
    yield HOME_MODELS.format(users=USERS, tokens=CONTEXT_TOKENS, share=MEMORY_SHARE)
    yield from _table(
        ["model", "", "weights, 16 bits", "KV of 1,000 tokens", *columns],
        [_home_row(one, by_name[one.name]) for one in PUBLISHED if one.home],
    )


def _home_row(model: Published, trial: Trial) -> list[str]:
    shape, four_bits = shape_of(model), shape_of(model, model.four_bits or FOUR_BITS)
    needed = [
        _count(pcs_needed(one, card * 10**9)) for one in (shape, four_bits) for card in CARDS_GB
    ]
    weights = shape.stage_bytes(shape.layers, is_head=True, is_tail=True)
    kv = shape.kv_token_bytes * shape.layers * 1000
    status = "served" if trial.served else "refused"
    return [model.name, status, f"{weights / 1e9:.1f} GB", f"{kv / 1e6:.0f} MB", *needed]


def shape_of(model: Published, quantization: dict[str, Any] | None = None) -> ModelShape:
    """The shape of a published model, in 16 bits or as a `quantization_config` declares it."""
    config: dict[str, Any] = CONFIG_MAPPING[model.model_type](**model.settings).to_dict()
    config |= {"dtype": "bfloat16", "quantization_config": quantization}
    return shape_of_config(model.name, config)


def pcs_needed(shape: ModelShape, card_bytes: int) -> int | None:
    """The fewest equal PCs over which the model fits; None: more than anybody would join."""
    usable = round(card_bytes * MEMORY_SHARE)
    for count in range(1, min(shape.cost.stages_max, PCS_MAX) + 1):
        split = even_split(shape.layers, count, shape.together)
        stages = (
            shape.stage_bytes(end - first, number == 0, number == count - 1)
            + (end - first) * shape.kv_token_bytes * USERS * CONTEXT_TOKENS
            + sum(shape.cost.kept_of_request[first:end]) * USERS
            for number, (first, end) in enumerate(split)
        )
        if max(stages) <= usable:
            return count
    return None


def _count(pcs: int | None) -> str:
    return f"over {PCS_MAX}" if pcs is None else str(pcs)


# -- families -------------------------------------------------------------------------------------


def _served(served: Sequence[Trial], by_name: dict[str, Trial]) -> Iterator[str]:
    yield "## Families that are served"
    yield ""
    yield "By their model type; where settings of a published checkpoint were tried, with its name."
    yield ""
    yield from _table(
        ["model type", "with the defaults of its class", "published settings"],
        [
            [
                f"`{trial.name}`",
                "served" if trial.served else f"refused: {trial.why}",
                ", ".join(_verdict(one) for one in _rows(trial, by_name)),
            ]
            for trial in served
        ],
    )


def _verdict(trial: Trial) -> str:
    return f"{trial.name}: {'served' if trial.served else 'refused: ' + trial.why}"


def _refused(refused: Sequence[Trial], by_name: dict[str, Trial]) -> Iterator[str]:
    yield "## Decoder-only families that are refused"
    yield ""
    yield from _table(
        ["model type", "tried", "why"],
        [
            [f"`{family.name}`", "defaults" if one is family else one.name, one.why]
            for family in refused
            for one in (family, *_rows(family, by_name))
        ],
    )


def _parts(parts: Sequence[Trial], by_name: dict[str, Trial]) -> Iterator[str]:
    yield PARTS
    yield from _table(
        ["model type", "its text model", "with the defaults of its class", "published settings"],
        [
            [
                f"`{trial.name}`",
                f"`{trial.text_type}`",
                "served" if trial.served else f"refused: {trial.why}",
                ", ".join(_verdict(one) for one in _rows(trial, by_name)),
            ]
            for trial in parts
            if trial.text_type
        ],
    )
    without = ", ".join(f"`{trial.name}`" for trial in parts if not trial.text_type)
    yield f"Without a decoder-only text model of its own: {without}."
    yield ""


def _others(others: Sequence[Trial]) -> list[str]:
    names = ", ".join(f"`{trial.name}`" for trial in others)
    return ["## No decoder-only language models", "", f"{names}.", ""]


def _rows_served(trial: Trial, by_name: dict[str, Trial]) -> bool:
    return trial.served or any(one.served for one in _rows(trial, by_name))


def _rows(trial: Trial, by_name: dict[str, Trial]) -> list[Trial]:
    """Trials with published settings of a family."""
    return [by_name[one.name] for one in PUBLISHED if one.model_type == trial.model_type]


def _published() -> set[str]:
    return {one.name for one in PUBLISHED}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows)
    yield ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
