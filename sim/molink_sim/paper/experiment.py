"""The paper's experiment: three RTX 4090 in a ring, Qwen-7B, 100 Mbps, 30 ms, half an hour.

By hand, for a prompt of the mean 763 tokens that finds the ring empty. A compared system sends
763 x 16,384 B = 12.5 MB over two hops: 1.0 s each on the wire. Each hop then waits for TCP's window
to grow from 14.6 to 750 KB (`network.window`): six doublings, 6 x 60 ms less what they carry, about
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
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from molink_sim.even_ring import even_ring
from molink_sim.outcome import Outcome
from molink_sim.scenario import Arrival, LinkSpec, Scenario, SystemSpec
from molink_sim.simulate import simulate
from molink_sim.workload import generate, thin

__all__ = ["DURATION_S", "WARMUP_S", "Setting", "arrivals_of", "run_setting"]

MODEL, GPU, STAGES = "qwen-7b", "rtx4090", 3
MBPS, ONE_WAY_MS = 100.0, 30.0

WARMUP_S = 60.0
DURATION_S = WARMUP_S + 1800.0

DRAIN_S = 0.0
"""The paper's means at 0.3 and 0.7 requests per second are of a run that was cut off: its TTFT plus
231 tokens at its TPOT would be 1.3 to 1.8 times its own latency. So ours are cut off as well."""


@dataclass(frozen=True, slots=True)
class Setting:
    """System, rate and links of one run of the experiment."""

    system: SystemSpec
    rate_per_s: float
    mbps: float = MBPS
    one_way_ms: float = ONE_WAY_MS
    duration_s: float = DURATION_S
    seed: int = 0


def arrivals_of(setting: Setting, trace: Sequence[Arrival] | None) -> list[Arrival]:
    """A trace brought to the rate; without one, the project's generator of the same shape."""
    if trace is None:
        return generate(setting.rate_per_s, setting.duration_s, setting.seed)
    return thin(trace, setting.rate_per_s, setting.duration_s, setting.seed)


def run_setting(
    setting: Setting, trace: Sequence[Arrival] | None = None, *, record_timeline: bool = False
) -> Outcome:
    """Simulate it. Raises UserError when the trace is too short or a value impossible."""
    link = LinkSpec(setting.mbps, setting.one_way_ms / 1e3)
    return simulate(
        Scenario(
            rings=(even_ring(MODEL, GPU, STAGES, link),),
            arrivals=arrivals_of(setting, trace),
            system=replace(setting.system),
            duration_s=setting.duration_s,
            warmup_s=WARMUP_S,
            drain_s=DRAIN_S,
            seed=setting.seed,
            record_timeline=record_timeline,
        )
    )
