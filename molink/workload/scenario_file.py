"""A scenario of `molink sim compare`, from a TOML file.

    about = "Six streams, and a long prompt every two seconds"
    stages = 3
    kv_tokens = 32768              # of each stage's cache (that is the default)

    [link]                         # every hop, the coordinator's too
    mbps = 20
    one_way_ms = 30

    [serve]                        # as the options of `molink serve`, all may be left out
    wire = "raw"
    micro_batches = "auto"
    span_tokens = "auto"

    [[load]]                       # kinds and their numbers: `loads`
    kind = "streams"
    count = 6
    output_tokens = 320

Everything that a ring or a request depends on stands in the file, so that the real half and the
simulated one cannot be told different things. A field that means nothing is refused: a misspelt one
would silently measure something else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molink.config.link_schedule import LinkShape
from molink.config.toml_tables import number, read_toml, refuse_unknown, tables, text, whole
from molink.errors import UserError
from molink.workload.loads import Load, read_load
from molink_scheduler.batch import MICRO_BATCH_COUNT_MAX
from molink_scheduler.head.settings import SPAN_TOKENS_MAX

KEYS = {"about", "model", "stages", "kv_tokens", "link", "serve", "load"}
LINK_KEYS = {"mbps", "one_way_ms"}
SERVE_KEYS = {"wire", "micro_batches", "span_tokens"}

STAGES_MAX = 16
"""Processes on one machine; as many as it has memory for are fewer."""

KV_TOKENS = 32_768
"""Twenty of the longest requests of the mix; without a limit the machine's memory would decide."""

CODECS = ("raw", "lossless", "int8", "fp8")
"""Codecs but for `auto`: which codec a check of the model takes is not what is compared."""


@dataclass(frozen=True, slots=True)
class ValidationScenario:
    """Scenario of a comparison: one ring, and what is asked of it."""

    name: str
    about: str
    model: str | None
    """A directory or hub id, when the file names one."""
    stages: int
    link: LinkShape
    codec: str
    micro_batches: int | None
    """Number of micro-batches; None: as the ring chooses."""
    span_tokens: int | None
    kv_tokens: int
    loads: tuple[Load, ...]

    @property
    def serve_options(self) -> list[str]:
        """The options of `molink serve` that start this ring."""
        pairs = {
            "--nodes": self.stages,
            "--link": f"{self.link.rate_mbps:g}:{self.link.one_way_ms:g}",
            "--wire": self.codec,
            "--micro-batches": self.micro_batches or "auto",
            "--span-tokens": self.span_tokens or "auto",
            "--kv-tokens": self.kv_tokens,
        }
        return [str(part) for pair in pairs.items() for part in pair]


def read_scenario(path: Path) -> ValidationScenario:
    """Raises UserError, one sentence, for the first thing in the file that is wrong."""
    where, data = str(path), read_toml(path, "the scenario")
    refuse_unknown(where, data, KEYS)
    serve = _table(where, data, "serve", SERVE_KEYS)
    loads = _loads(where, data)
    return ValidationScenario(
        name=path.stem,
        about=text(where, data, "about", ""),
        model=text(where, data, "model") if "model" in data else None,
        stages=whole(where, data, "stages", 3, least=1, most=STAGES_MAX),
        link=_link(where, data),
        codec=_one_of(where, serve, "wire", CODECS, "raw"),
        micro_batches=_auto_or(where, serve, "micro_batches", MICRO_BATCH_COUNT_MAX),
        span_tokens=_auto_or(where, serve, "span_tokens", SPAN_TOKENS_MAX),
        kv_tokens=whole(where, data, "kv_tokens", KV_TOKENS, least=16, most=2**31),
        loads=loads,
    )


def _loads(where: str, data: Mapping[str, Any]) -> tuple[Load, ...]:
    loads = tuple(read_load(where, load) for load in tables(where, data, "load"))
    if not loads:
        raise UserError(f"{where} asks for nothing: give at least one [[load]].")
    return loads


def _link(where: str, data: Mapping[str, Any]) -> LinkShape:
    link = _table(where, data, "link", LINK_KEYS)
    mbps = number(f"{where}, [link]", link, "mbps", least=-math.inf)
    one_way_ms = number(f"{where}, [link]", link, "one_way_ms", least=-math.inf)
    try:
        return LinkShape(mbps, one_way_ms)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _table(where: str, data: Mapping[str, Any], key: str, known: set[str]) -> Mapping[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise UserError(f"{key} of {where} must be a table: write [{key}] above it.")
    refuse_unknown(f"[{key}] of {where}", table, known)
    return table


def _one_of(
    where: str, table: Mapping[str, Any], key: str, names: tuple[str, ...], default: str
) -> str:
    value = table.get(key, default)
    if value not in names:
        raise UserError(f"{key} of {where} is {value!r}: take one of {', '.join(names)}.")
    return str(value)


def _auto_or(where: str, table: Mapping[str, Any], key: str, most: int) -> int | None:
    if table.get(key, "auto") == "auto":
        return None
    return whole(f"[serve] of {where}", table, key, least=1, most=most)
