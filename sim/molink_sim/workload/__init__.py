"""Who asks for how much, and when: the load that a simulated world is put under.

`files` reads traces (Azure's CSV, Mooncake's JSONL, our own CSV) with the live benchmark's reader,
so that both refuse the same mistakes. `arrivals` brings a trace to a rate by thinning it, or leaves
it and draws Poisson arrivals. The same seed gives the live benchmark's requests
too (`molink bench --trace FILE --rate R --seed S`), which is what makes the two comparable.
"""

from molink_sim.workload.arrivals import generate, thin
from molink_sim.workload.files import load_trace

__all__ = ["generate", "load_trace", "thin"]
