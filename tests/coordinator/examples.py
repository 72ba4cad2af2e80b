"""Messages of a node that is there and measured."""

from molink.control.messages.payloads import (
    AssignedWork,
    Device,
    Presence,
    Profile,
    StepCost,
    WeightsSource,
)

HERE = Presence(name="anna", incarnation="a" * 12, started_unix_s=1.0, version="1", online=True)
STEPS = StepCost(model="m", decode_fixed_s=0.001, decode_row_s=1e-5, prefill_row_s=1e-4)
PROFILE = Profile(
    devices=(Device(kind="cpu", name="cpu", memory_bytes=2**33, free_bytes=2**32),),
    cpu_threads=4,
    memory_bytes=2**33,
    disk_free_bytes=2**40,
    upload_mbps=20,
    download_mbps=100,
    steps=STEPS,
)
WORK = AssignedWork(layers=(0, 2), device="cpu", dtype="float32", weights=WeightsSource(model="m"))


def no_report(standbys, devices):
    """Instead of what GET /cluster shows beside the rings."""
    return {}
