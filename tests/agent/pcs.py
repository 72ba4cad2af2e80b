"""PCs that tests imagine."""

from molink_agent.probe.gpus import DriverGpu, GpuReport
from molink_agent.probe.machine import Machine
from molink_scheduler.units import GIB

__all__ = ["CARD", "ONE_CARD", "pc"]

CARD = DriverGpu(0, "RTX 3060", memory_bytes=12 * GIB, free_bytes=10 * GIB)
ONE_CARD = GpuReport((CARD,), driver="570.86.10", cuda=(12, 8))


def pc(**changes) -> Machine:
    facts = {
        "cpu_name": "Ryzen",
        "cpu_threads": 16,
        "multiplies_bfloat16": True,
        "memory_bytes": 32 * GIB,
        "memory_available_bytes": 20 * GIB,
        "disk_free_bytes": 200 * GIB,
    }
    return Machine(**(facts | changes))
