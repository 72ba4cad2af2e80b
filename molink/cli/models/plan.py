"""`molink plan`: which PCs would hold which layers, and what that would give, without doing it."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.cli.help.sections import PLAN as SECTIONS
from molink.cli.models.importing import GROUP
from molink.cli.options import (
    URL_VARIABLE,
    auto_or_count,
    key_option,
    model_argument,
    setting_option,
)
from molink.config.groups import (
    DRAFTERS,
    TAIL_DRAFTERS,
    TOKENS_MAX,
    TPOT_MS_MAX,
    GoalSettings,
    ModelSettings,
    RingSettings,
)
from molink.errors import UserError
from molink.terminal.command_line import SectionedCommand, shown_option
from molink.terminal.tables import data_dir_option

if TYPE_CHECKING:
    from molink.checkpoint.kv_format import KvDtype
    from molink.checkpoint.model_shape import PlannedModel
    from molink.importing.plain_model import WeightBits
    from molink_scheduler.placement import Goal, Plan

NOT_FOUND = 404

PLAN_TIMEOUT_S = 30.0
"""A plan of a hundred PCs takes two seconds."""


@click.command(cls=SectionedCommand, sections=SECTIONS)
@model_argument(required=False)
@click.option(
    "--nodes",
    "nodes_path",
    type=click.Path(path_type=Path),
    help="The PCs: a TOML file of [[nodes]], each with a name, a gpu and its line.",
)
@click.option(
    "--url",
    metavar="URL",
    help="Plan of a running coordinator instead of MODEL and --nodes, with its model and PCs as "
    "they were measured; without any of them the one in $MOLINK_URL.",
)
@key_option
@setting_option(GoalSettings, "tpot_ms", help="Most milliseconds between two tokens of an answer.")
@setting_option(
    GoalSettings,
    "context_tokens",
    default=2048,
    help="KV that a user keeps, prompt and answer together.",
)
@setting_option(GoalSettings, "prompt_tokens", default=768)
@setting_option(GoalSettings, "answer_tokens", default=256)
@setting_option(
    GoalSettings,
    "split",
    default=None,
    help="even: one ring of all PCs in their order with equal layers, to be compared; without it "
    "planned, of a coordinator as it was started.",
)
@shown_option(
    "--rings",
    "rings_max",
    default="auto",
    metavar="auto|N",
    callback=lambda context, option, value: auto_or_count("--rings", value),
    help="Most rings; auto takes as many as serve the most users.",
)
@setting_option(
    ModelSettings,
    "kv_dtype",
    help="Format of the KV cache: auto has as many bits as activations, int8 holds twice the "
    "tokens of 16 bits.",
)
@setting_option(RingSettings, "kv_host_tokens")
@click.option(
    "--lender-ms",
    type=click.FloatRange(0, 10_000, min_open=True),
    help="Round trip to a PC that is to lend each stage memory for KV: whether it is near enough.",
)
@click.option(
    "--weights",
    type=click.Choice(["int4", "int8"]),
    help="Plan a folder with plain weights, or a known model, as `molink import --weights` would "
    "round it.",
)
@shown_option(
    "--drafter",
    default="auto",
    metavar="auto|none|copy|tail|PATH",
    help="auto, tail: the tail holds the model's own layer that drafts, where it has one; PATH: "
    "the head holds this small model, which is named as MODEL is, or the tail this assistant; "
    "none, copy: nobody holds any.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@data_dir_option
def plan(
    model: str | None,
    nodes_path: Path | None,
    url: str | None,
    key: str | None,
    tpot_ms: float,
    context_tokens: int,
    prompt_tokens: int,
    answer_tokens: int,
    split: str | None,
    rings_max: int | None,
    kv_dtype: "KvDtype",
    kv_host_tokens: int,
    lender_ms: float | None,
    weights: "WeightBits | None",
    drafter: str,
    as_json: bool,
    data_dir: str | None,
) -> None:
    """Show how MODEL would be spread over a set of PCs, and forecast what they would do with it.

    MODEL is a directory, a hub id, a GGUF file, a config.json, `demo` or a name that
    `molink models` lists, such as qwen3-8b.
    """
    from molink.checkpoint.quantized.quality import quality_lines

    quality, room = list[str](), list[str]()
    url = _checked_url(model, nodes_path, url, rings_max)
    if url is not None:
        name, found = asyncio.run(_ask_coordinator(url, key, split, data_dir))
    else:
        assert model is not None and nodes_path is not None, "checked above"
        goal = _goal(tpot_ms, context_tokens, prompt_tokens, answer_tokens)
        planned = _planned(model, kv_dtype, weights)
        planned = _drafting(planned, model, drafter, goal)
        quality = quality_lines(
            planned.declared, is_import=weights is not None, is_kv_int8=kv_dtype == "int8"
        )
        quality += _recoded(model)
        if planned.undrafted and drafter in TAIL_DRAFTERS:
            quality.append(f"Planned without drafts of the tail: {planned.undrafted}.")
        name, found = planned.name, _make_plan(planned, nodes_path, goal, split, rings_max)
        room = _host_lines(planned, found, kv_host_tokens) + _cell_lines(planned, found, nodes_path)
    room += _lender_lines(found, lender_ms)
    _show(found, name, quality, room, as_json=as_json)


def _host_lines(planned: "PlannedModel", found: "Plan", host_tokens: int) -> list[str]:
    from molink.terminal.plan_report import host_line

    if not host_tokens:
        return []
    if planned.shape.expansion_parameters:
        return ["Layers with latent attention lend nothing to their PCs' memory."]
    kept = planned.cost.kept_of_token
    return [host_line(ring, kept, host_tokens) for ring in found.rings]


def _cell_lines(planned: "PlannedModel", found: "Plan", nodes_path: Path) -> list[str]:
    """What PCs of one cell lend each other, as far as the model's layers can lie at a lender."""
    from molink.cli.models.cell_plan import cell_lines
    from molink.config.node_file import read_node_file

    if planned.shape.expansion_parameters:
        return []
    return cell_lines(found, read_node_file(nodes_path), planned.cost.kept_of_token)


def _lender_lines(found: "Plan", lender_ms: float | None) -> list[str]:
    """Whether a lender with this round trip is near enough to each ring's longest stage."""
    from molink_scheduler.cell.far_lender import far_lender_sentence

    if lender_ms is None:
        return []
    layers = [max(one.layers[1] - one.layers[0] for one in ring.stages) for ring in found.rings]
    sentences = [far_lender_sentence(one, lender_ms / 1e3, found.goal.tpot_s) for one in layers]
    near = (
        f"A lender {lender_ms:g} ms away is near enough: {{}} layers x it are {{:.3g}} ms a token."
    )
    return [
        f"A lender {lender_ms:g} ms away is refused: {one}"
        if one
        else near.format(count, count * lender_ms)
        for one, count in zip(sentences, layers, strict=True)
    ]


def _show(
    found: "Plan", name: str, quality: Sequence[str], room: Sequence[str], *, as_json: bool
) -> None:
    import json

    from rich.console import Console

    from molink.terminal.plan_report import plan_fields, print_line, print_plan

    if as_json:
        click.echo(
            json.dumps(plan_fields(found, name) | {"quality": quality, "host": room}, indent=2)
        )
        return
    print_plan(found, name, Console())
    for line in (*room, *quality):
        print_line(Console(), line)


def _checked_url(
    model: str | None, nodes_path: Path | None, url: str | None, rings_max: int | None
) -> str | None:
    """The coordinator that is asked, if one is. Raises UserError where what is asked for does not
    fit together."""
    if rings_max is not None and rings_max < 1:
        raise UserError(f"--rings takes auto or a number from 1 up, got {rings_max}.")
    if url is not None and (model is not None or nodes_path is not None):
        raise UserError("--url asks a coordinator for its own model and PCs: give it alone.")
    if model is None and nodes_path is None:
        url = url or os.environ.get(URL_VARIABLE)
    if url is None and (model is None or nodes_path is None):
        raise UserError("Give MODEL and --nodes FILE, or --url of a running coordinator.")
    return url


def _planned(model: str, kv_dtype: "KvDtype", weights: "WeightBits | None") -> "PlannedModel":
    from molink.checkpoint.catalogue.entries import catalogue_entry
    from molink.checkpoint.layer_sizes import planned_model
    from molink.importing.planned import gguf_of, is_gguf, planned_gguf, planned_rounded
    from molink.models import DEMO_MODEL_DIR

    path = DEMO_MODEL_DIR if model == "demo" else Path(model).expanduser()
    entry = None if path.exists() else catalogue_entry(model)
    if weights is not None and entry is not None:
        return entry.planned("4 bits" if weights == "int4" else "8 bits", kv_dtype)
    if weights is not None and not path.is_dir():
        raise UserError(
            "--weights rounds a folder with plain weights: give that, or a known name, as MODEL."
        )
    if weights is not None:
        return planned_rounded(path, weights, GROUP, kv_dtype)
    if is_gguf(file := gguf_of(path)):
        return planned_gguf(file, kv_dtype)
    return planned_model(str(path) if model == "demo" else model, kv_dtype)


def _drafting(planned: "PlannedModel", model: str, drafter: str, goal: "Goal") -> "PlannedModel":
    """The model with what `--drafter` names. Raises UserError for what cannot draft."""
    from molink.checkpoint.checkpoint import open_checkpoint
    from molink.checkpoint.draft_layer import is_assistant
    from molink.coordinator.planning.drafter_plan import PlannedDrafter
    from molink.serving.foreign_drafters import check_drafts_here

    if drafter in DRAFTERS:
        return planned.drafting if drafter in TAIL_DRAFTERS else planned
    if Path(drafter).expanduser().is_dir():
        config = (checkpoint := open_checkpoint(drafter)).config()
        check_drafts_here(drafter, config)
        if is_assistant(config):
            return PlannedDrafter.assisting(checkpoint, model).beside(planned)
    small = PlannedDrafter.named(_planned(drafter, "auto", None), goal.context_tokens)
    return small.beside(planned)


def _recoded(model: str) -> list[str]:
    """What an import of a GGUF file would write anew."""
    from molink.importing.gguf.file import recoded_line
    from molink.importing.planned import gguf_of, is_gguf

    file = gguf_of(Path(model).expanduser())
    line = recoded_line(file) if is_gguf(file) else None
    return [line] if line else []


def _make_plan(
    planned: "PlannedModel",
    nodes_path: Path,
    goal: "Goal",
    split: str | None,
    rings_max: int | None,
) -> "Plan":
    from molink.config.node_file import read_node_file

    return read_node_file(nodes_path).plan(planned, goal, split, rings_max)


async def _ask_coordinator(
    url: str, key: str | None, split: str | None, data_dir: str | None
) -> "tuple[str, Plan]":
    """The plan of a running coordinator, and its model."""
    from molink.cli.own_server import client_of
    from molink.client.api_client import RefusedError
    from molink.errors import FrameError
    from molink.wire.schema import Rules, Schema
    from molink_scheduler.placement import Plan

    async with client_of(url, key, data_dir, silence_s_max=PLAN_TIMEOUT_S) as client:
        try:
            fields = await client.get(f"/plan{f'?split={split}' if split else ''}")
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            raise UserError(
                f"The server at {url} plans nothing: only one of `molink up` does. For MODEL on "
                "PCs of a file: molink plan MODEL --nodes FILE."
            ) from None
    try:
        if "shortage" in fields:
            raise UserError(f"{fields['model']} does not fit: {fields['shortage']}")
        return str(fields["model"]), Schema(Plan, Rules()).read(fields["plan"])
    except (TypeError, KeyError, FrameError):
        raise UserError(
            f"What answers at {url} is no coordinator: give the URL that `molink up` printed."
        ) from None


def _goal(tpot_ms: float, context_tokens: int, prompt_tokens: int, answer_tokens: int) -> "Goal":
    from molink_scheduler.placement import Goal

    if not 0 < tpot_ms <= TPOT_MS_MAX:
        raise UserError(f"--tpot-ms takes a number above 0 up to {TPOT_MS_MAX:g}, got {tpot_ms:g}.")
    if not 1 <= context_tokens <= TOKENS_MAX:
        raise UserError(f"--context-tokens takes 1 to {TOKENS_MAX} tokens, got {context_tokens}.")
    for option, tokens, least in (
        ("--prompt-tokens", prompt_tokens, 0),
        ("--answer-tokens", answer_tokens, 1),
    ):
        if not least <= tokens <= TOKENS_MAX:
            raise UserError(f"{option} takes {least} to {TOKENS_MAX} tokens, got {tokens}.")
    return Goal(
        tpot_s=tpot_ms / 1e3,
        context_tokens=context_tokens,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
    )
