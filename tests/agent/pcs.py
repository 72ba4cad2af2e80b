"""PCs that tests imagine."""

from molink_agent.limits.limits import GB
from molink_agent.probe.gpus import Gpu, GpuReport
from molink_agent.probe.machine import Machine

__all__ = ["CARD", "ONE_CARD", "pc"]

CARD = Gpu(0, "RTX 3060", memory_bytes=12 * GB, free_bytes=10 * GB)
ONE_CARD = GpuReport((CARD,), driver="570.86.10", cuda=(12, 8))


def pc(**changes) -> Machine:
    facts = {
        "cpu_name": "Ryzen",
        "cpu_threads": 16,
        "multiplies_bfloat16": True,
        "memory_bytes": 32 * GB,
        "memory_available_bytes": 20 * GB,
        "disk_free_bytes": 200 * GB,
    }
    return Machine(**(facts | changes))
