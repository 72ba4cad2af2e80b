"""Which runs make a table, and what the paper says of each.

Constants are those of `molink_sim.systems` for every row: none depends on rate, bandwidth or delay.

Published are means of TTFT, TPOT and whole answers, in seconds: Jin et al., "MoLink", Findings of
EMNLP 2025, pages 17633-17642, Tables 2 and 5. Tables 3 to 5 are said to be made at 0.3 requests per
second, but their line for 100 Mbps and 30 ms is Table 2's line for 0.2, digit for digit; so 0.2 is
what we simulate for all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from molink_sim.paper.experiment import DURATION_S, Setting, run_setting
from molink_sim.report import summary
from molink_sim.scenario import Arrival, SystemSpec
from molink_sim.systems import SYSTEMS, WHOLE_PROMPT_TOKENS

__all__ = ["PUBLISHED", "TABLES", "Means", "Row", "rows_of"]


@dataclass(frozen=True, slots=True)
class Means:
    """Mean times in seconds; None where there is no value."""

    ttft_s: float | None
    tpot_s: float | None
    latency_s: float | None


RATES_PER_S = (0.1, 0.2, 0.3, 0.7)
ABLATION_RATE_PER_S = 0.2

PUBLISHED = {
    ("vllm", 0.7): Means(17.3, 3.49, 509),
    ("helix", 0.7): Means(14.2, 3.42, 497),
    ("paper", 0.7): Means(9.29, 3.01, 449),
    ("vllm", 0.3): Means(6.20, 1.69, 306),
    ("helix", 0.3): Means(5.66, 1.65, 299),
    ("paper", 0.3): Means(5.23, 1.30, 256),
    ("vllm", 0.2): Means(3.74, 0.50, 111),
    ("helix", 0.2): Means(3.42, 0.47, 106),
    ("paper", 0.2): Means(3.30, 0.41, 93),
    ("vllm", 0.1): Means(3.39, 0.28, 74),
    ("helix", 0.1): Means(3.27, 0.29, 75),
    ("paper", 0.1): Means(3.23, 0.26, 69),
}
"""Table 2, by system and requests per second."""

PUBLISHED_ABLATION = {
    "none": Means(3.56, 0.48, 107.45),
    "chunks only": Means(3.37, 0.44, 99.25),
    "micro-batches only": Means(3.60, 0.43, 97.23),
    "both": Means(3.30, 0.41, 93.07),
}
"""Table 5; "w/" in its labels means "with only". "none" is 4 % better than the vLLM of Table 2."""

SUSTAINED_RATE_PER_S = 1.5
"""Beyond what the paper tried: a rate that MoLink today is to hold."""

SWEEP_MBPS = (60.0, 100.0, 200.0, 400.0)
SWEEP_ONE_WAY_MS = (10.0, 20.0, 30.0, 50.0)
"""Of the paper's Tables 3 and 4."""

NO_MEANS = Means(None, None, None)


@dataclass(frozen=True, slots=True)
class Row:
    """One run beside what the paper reports of it; without a number of its own, None."""

    section: str
    name: str
    setting: Setting
    published: Means = NO_MEANS
    compared_with: str = ""
    """Whose published values, if not its own."""
    summary: dict[str, Any] = field(default_factory=dict)

    def simulated(self, figure: str) -> float | None:
        """The mean of `ttft_s`, `tpot_s` or `latency_s`."""
        found = self.summary.get(figure)
        return None if not found else found["mean"]

    def ratio(self, figure: str) -> float | None:
        """The simulated figure over the published one."""
        simulated, published = self.simulated(figure), getattr(self.published, figure)
        return None if simulated is None or published is None else simulated / published


def rows_of(
    table: int,
    trace: Sequence[Arrival] | None,
    seed: int,
    *,
    duration_s: float = DURATION_S,
    only: str | None = None,
) -> Iterator[Row]:
    """The rows of a table, each as soon as its run has ended; `only` one section of them."""
    for row in TABLES[table]():
        if only in (None, row.section):
            setting = replace(row.setting, seed=seed, duration_s=duration_s)
            yield replace(row, setting=setting, summary=summary(run_setting(setting, trace)))


def _table_2() -> Iterator[Row]:
    for rate in RATES_PER_S:
        for name in ("vllm", "helix", "paper"):
            yield Row("rate", name, Setting(SYSTEMS[name], rate), PUBLISHED[name, rate])
        yield _molink("rate", Setting(SYSTEMS["molink"], rate), PUBLISHED["paper", rate])
    yield _molink("rate", Setting(SYSTEMS["molink"], SUSTAINED_RATE_PER_S), NO_MEANS)
    int8 = replace(SYSTEMS["molink"], codec="int8")
    yield Row("rate", "molink, int8", Setting(int8, SUSTAINED_RATE_PER_S))
    for name in SYSTEMS:
        for mbps in SWEEP_MBPS:
            yield Row("bandwidth", name, Setting(SYSTEMS[name], ABLATION_RATE_PER_S, mbps=mbps))
        for one_way_ms in SWEEP_ONE_WAY_MS:
            setting = Setting(SYSTEMS[name], ABLATION_RATE_PER_S, one_way_ms=one_way_ms)
            yield Row("latency", name, setting)


def _molink(section: str, setting: Setting, published: Means) -> Row:
    return Row(section, "molink", setting, published, "" if published is NO_MEANS else "paper")


def _table_5() -> Iterator[Row]:
    for name, published in PUBLISHED_ABLATION.items():
        setting = Setting(_PAPER_PARTS[name], ABLATION_RATE_PER_S)
        yield Row("paper's mechanisms", name, setting, published)
    for name, system in _MOLINK_PARTS.items():
        yield Row("MoLink today", name, Setting(system, ABLATION_RATE_PER_S))


_PAPER, _VLLM, _MOLINK = SYSTEMS["paper"], SYSTEMS["vllm"], SYSTEMS["molink"]

_PAPER_PARTS: dict[str, SystemSpec] = {
    "none": _VLLM,
    "chunks only": replace(_PAPER, micro_batches=None),
    "micro-batches only": replace(_VLLM, micro_batches=_PAPER.micro_batches),
    "both": _PAPER,
}

_PLAIN = replace(_MOLINK, policy="fifo", micro_batches=3, span_tokens=WHOLE_PROMPT_TOKENS)
"""Our own transport and one tensor, but whole prompts in one queue and micro-batches as stages."""

_MOLINK_PARTS: dict[str, SystemSpec] = {
    "none": _PLAIN,
    "decode first only": replace(_PLAIN, policy=_MOLINK.policy),
    "spans only": replace(_PLAIN, span_tokens=None),
    "micro-batches only": replace(_PLAIN, micro_batches=None),
    "all": _MOLINK,
    "all, int8 on the wire": replace(_MOLINK, codec="int8"),
}

TABLES = {2: _table_2, 5: _table_5}
"""By the paper's number; 2 has the sweeps of Tables 3 and 4 beneath it."""
