"""The paper's experiment: three RTX 4090 in a ring, Qwen-7B, 100 Mbps, 30 ms, half an hour.

By hand, for a prompt of the mean 763 tokens that finds the ring empty. A compared system sends
763 x 16,384 B = 12.5 MB over two hops: 1.0 s each on the wire. Each hop then waits for TCP's window
to grow from 14.6 to 750 KB (`network.line`): six doublings, 6 x 60 ms less what they carry, about
0.29 s. With 30 ms of delay, 40 ms of software, and 3 x 35 ms of arithmetic TTFT is

    2 x (1.00 + 0.29 + 0.03 + 0.04) + 0.1 = 2.8 s, where the paper has 3.2 to 3.4 s at 0.1/s

the rest is waiting for others. A decode round that nobody disturbs is 3 x (30 + 40 + 8) ms = 0.23
s. A prompt stands in for its micro-batch's decode for 2.8 s: at R requests per second and three
micro-batches that is 0.93 R of all time, or 9 % at 0.1/s; and as much again and more for decode
that stays behind another micro-batch's prompt. 0.28 s of TPOT at 0.1/s fit that. Three one-way
delays and 70 ms of software per hop, as others read them off the paper's sweep of latencies, do
not: that is 0.50 s before anybody waits. The sweep was made at 0.2/s, where waiting doubles what
a round costs, so the slope of 9 ms per ms is no count of delays.

MoLink today sends one tensor in spans that overlap: 763 x 8,192 B = 6.25 MB and half a second on
each wire, the second hop beginning one span later: about 0.5 + 0.06 + 0.1 + a span = 0.75 s. A
round is 3 x (30 + 8) ms = 0.115 s.

Rows of a table are such runs, each beside what the paper says of it. Their constants are those of
`molink_sim.systems` for every row: none depends on rate, bandwidth or delay. Published are means of
TTFT, TPOT and whole answers, in seconds: Jin et al., "MoLink", Findings of EMNLP 2025, pages
17633-17642, Tables 2 to 5. Tables 3 to 5 are said to be made at 0.3 requests per second, but their
line for 100 Mbps and 30 ms is Table 2's line for 0.2, digit for digit; so 0.2 is what we simulate
for all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from molink.errors import UserError
from molink_sim.even_ring import even_ring
from molink_sim.outcome import Outcome
from molink_sim.report.summary import summary
from molink_sim.scenario import LinkSpec, RequestArrival, RingSpec, Scenario, SystemSpec
from molink_sim.simulate import simulate
from molink_sim.systems import SYSTEMS, WHOLE_PROMPT_TOKENS
from molink_sim.workload import generate, stretch, thin

MODEL, GPU, STAGES = "qwen-7b", "rtx4090", 3
MBPS, ONE_WAY_MS = 100.0, 30.0

WARMUP_S = 60.0
DURATION_S = WARMUP_S + 1800.0

DRAIN_S = 0.0
"""The paper's means at 0.3 and 0.7 requests per second are of a run that was cut off: its TTFT plus
231 tokens at its TPOT would be 1.3 to 1.8 times its own latency. So ours are cut off as well."""

KV_TOKENS_FOR_ALL = 10_000_000
"""More than all requests of a run have."""


@dataclass(frozen=True, slots=True)
class Setting:
    """System, rate and links of one run of the experiment."""

    system: SystemSpec
    rate_per_s: float
    mbps: float = MBPS
    one_way_ms: float = ONE_WAY_MS
    duration_s: float = DURATION_S
    seed: int = 0
    kv_is_bounded: bool = True
    """Whether KV ends where the devices' memory does."""
    requests_at_once_max: int | None = None
    """Requests under way; time of one that waits for that counts from when it is sent."""
    is_stretched: bool = False
    """Whether a trace is played slower from its beginning, and not thinned, to come to the rate."""


def arrivals_of(setting: Setting, trace: Sequence[RequestArrival] | None) -> list[RequestArrival]:
    """A trace brought to the rate; without one, the project's generator of the same shape."""
    if trace is None:
        if setting.is_stretched:
            raise UserError("A trace's first minutes are asked for: give one with --trace.")
        return generate(setting.rate_per_s, setting.duration_s, setting.seed)
    if setting.is_stretched:
        return stretch(trace, setting.rate_per_s, setting.duration_s)
    return thin(trace, setting.rate_per_s, setting.duration_s, setting.seed)


def run_setting(
    setting: Setting,
    trace: Sequence[RequestArrival] | None = None,
    *,
    record_timeline: bool = False,
) -> Outcome:
    """Simulate it. Raises UserError when the trace is too short or a value impossible."""
    return simulate(
        Scenario(
            rings=(_ring(setting),),
            arrivals=arrivals_of(setting, trace),
            system=replace(setting.system),
            duration_s=setting.duration_s,
            warmup_s=WARMUP_S,
            drain_s=DRAIN_S,
            requests_at_once_max=setting.requests_at_once_max,
            seed=setting.seed,
            record_timeline=record_timeline,
        )
    )


def _ring(setting: Setting) -> RingSpec:
    ring = even_ring(MODEL, GPU, STAGES, LinkSpec(setting.mbps, setting.one_way_ms / 1e3))
    if setting.kv_is_bounded:
        return ring
    stages = (replace(stage, kv_tokens=KV_TOKENS_FOR_ALL) for stage in ring.stages)
    return replace(ring, stages=tuple(stages))


@dataclass(frozen=True, slots=True)
class Means:
    """Mean times in seconds; None where there is no value."""

    ttft_s: float | None
    tpot_s: float | None
    latency_s: float | None


COMPARED = ("vllm", "helix", "paper")
"""Systems with published values of their own."""

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

PUBLISHED_BANDWIDTH = {
    ("vllm", 60.0): Means(8.07, 1.24, 229),
    ("helix", 60.0): Means(7.34, 1.21, 223),
    ("paper", 60.0): Means(7.32, 1.07, 213),
    ("vllm", 200.0): Means(2.02, 0.29, 68),
    ("helix", 200.0): Means(1.86, 0.28, 64),
    ("paper", 200.0): Means(1.83, 0.25, 58),
    ("vllm", 400.0): Means(1.45, 0.25, 56),
    ("helix", 400.0): Means(1.35, 0.23, 53),
    ("paper", 400.0): Means(1.26, 0.21, 47),
}
"""Table 3, by system and Mbps; its line for 100 Mbps is Table 2's for 0.2 requests per second."""

PUBLISHED_LATENCY = {
    ("vllm", 10.0): Means(3.25, 0.31, 72),
    ("helix", 10.0): Means(3.13, 0.31, 72),
    ("paper", 10.0): Means(3.12, 0.27, 63),
    ("vllm", 50.0): Means(3.81, 0.67, 143),
    ("helix", 50.0): Means(3.73, 0.65, 139),
    ("paper", 50.0): Means(3.70, 0.59, 127),
}
"""Table 4, by system and one-way delay in ms; that for 30 ms is Table 2's for 0.2 requests per
second, and for 20 ms there is none."""

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
"""One-way delays of the paper's Tables 3 and 4."""

NO_MEANS = Means(None, None, None)

BOUNDS = {"ttft_s": 0.15, "tpot_s": 0.25, "latency_s": 0.11}
"""Errors within which a row counts as reproduced."""

PUBLISHED_SWEEPS = {
    "bandwidth": {
        **PUBLISHED_BANDWIDTH,
        **{(name, MBPS): PUBLISHED[name, ABLATION_RATE_PER_S] for name in COMPARED},
    },
    "latency": {
        **PUBLISHED_LATENCY,
        **{(name, ONE_WAY_MS): PUBLISHED[name, ABLATION_RATE_PER_S] for name in COMPARED},
    },
}
"""Tables 3 and 4 whole, by section, system and what is varied."""


@dataclass(frozen=True, slots=True)
class PaperRow:
    """Run beside what the paper reports of it; without a number of its own, None."""

    section: str
    name: str
    setting: Setting
    published: Means = NO_MEANS
    compared_with: str = ""
    """System whose published values it is compared with, if not its own."""
    summary: dict[str, Any] = field(default_factory=dict)

    def simulated(self, figure: str) -> float | None:
        """The mean of `ttft_s`, `tpot_s` or `latency_s`."""
        found = self.summary.get(figure)
        return None if not found else found["mean"]

    def ratio(self, figure: str) -> float | None:
        """The simulated figure over the published one."""
        simulated, published = self.simulated(figure), getattr(self.published, figure)
        return None if simulated is None or published is None else simulated / published

    @property
    def is_reproduced(self) -> bool | None:
        """Whether all three means are within `BOUNDS`; None where nothing is published of it."""
        if self.compared_with or self.published is NO_MEANS:
            return None
        ratios = {figure: self.ratio(figure) for figure in BOUNDS}
        return all(
            ratio is not None and abs(ratio - 1) <= BOUNDS[figure]
            for figure, ratio in ratios.items()
        )


def rows_of(
    table: int,
    trace: Sequence[RequestArrival] | None,
    seed: int,
    *,
    duration_s: float = DURATION_S,
    only: str | None = None,
    assumed: Callable[[Setting], Setting] = lambda setting: setting,
) -> Iterator[PaperRow]:
    """The rows of a table, each as soon as its run has ended; `only` one section of them, and all
    under what is assumed."""
    for row in TABLES[table]():
        if only in (None, row.section):
            setting = assumed(replace(row.setting, seed=seed, duration_s=duration_s))
            yield replace(row, setting=setting, summary=summary(run_setting(setting, trace)))


def row_count(table: int, only: str | None = None) -> int:
    """Number of rows of a table, or of one section of it."""
    return sum(only in (None, row.section) for row in TABLES[table]())


def _table_2() -> Iterator[PaperRow]:
    for rate in RATES_PER_S:
        for name in COMPARED:
            yield PaperRow("rate", name, Setting(SYSTEMS[name], rate), PUBLISHED[name, rate])
        yield _molink("rate", Setting(SYSTEMS["molink"], rate), PUBLISHED["paper", rate])
    yield _molink("rate", Setting(SYSTEMS["molink"], SUSTAINED_RATE_PER_S), NO_MEANS)
    int8 = replace(SYSTEMS["molink"], codec="int8")
    yield PaperRow("rate", "molink, int8", Setting(int8, SUSTAINED_RATE_PER_S))
    yield from _table_3()
    yield from _table_4()


def _table_3() -> Iterator[PaperRow]:
    for name in SYSTEMS:
        for mbps in SWEEP_MBPS:
            setting = Setting(SYSTEMS[name], ABLATION_RATE_PER_S, mbps=mbps)
            yield _swept("bandwidth", name, setting, mbps)


def _table_4() -> Iterator[PaperRow]:
    for name in SYSTEMS:
        for one_way_ms in SWEEP_ONE_WAY_MS:
            setting = Setting(SYSTEMS[name], ABLATION_RATE_PER_S, one_way_ms=one_way_ms)
            yield _swept("latency", name, setting, one_way_ms)


def _swept(section: str, name: str, setting: Setting, value: float) -> PaperRow:
    own = "paper" if name == "molink" else name
    published = PUBLISHED_SWEEPS[section].get((own, value), NO_MEANS)
    if name == "molink":
        return _molink(section, setting, published)
    return PaperRow(section, name, setting, published)


def _molink(section: str, setting: Setting, published: Means) -> PaperRow:
    return PaperRow(section, "molink", setting, published, "" if published is NO_MEANS else "paper")


def _table_5() -> Iterator[PaperRow]:
    for name, published in PUBLISHED_ABLATION.items():
        setting = Setting(_PAPER_PARTS[name], ABLATION_RATE_PER_S)
        yield PaperRow("paper's mechanisms", name, setting, published)
    for name, system in _MOLINK_PARTS.items():
        yield PaperRow("MoLink today", name, Setting(system, ABLATION_RATE_PER_S))


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

TABLES = {2: _table_2, 3: _table_3, 4: _table_4, 5: _table_5}
"""Tables by the paper's number; 2 has those of 3 and 4 beneath it."""
