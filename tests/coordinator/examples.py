"""Messages of a node that is there and measured."""

from molink.control.messages.payloads import (
    AssignedWork,
    Device,
    Presence,
    Profile,
    StepCost,
    WeightsSource,
)
from molink.wire.protocol import PROTOCOL_VERSION
from molink_scheduler.model_cost import ModelCost

HERE = Presence(
    name="anna",
    incarnation="a" * 12,
    started_unix_s=1.0,
    version="1",
    protocol=PROTOCOL_VERSION,
    online=True,
)
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


def costs_of(cost):
    """Of a model that is not quantized, by the bytes of a number: stored in 16 bits."""
    wide = ModelCost(
        layer_bytes=tuple(2 * size for size in cost.layer_bytes),
        kv_bytes=2 * cost.kv_bytes,
        row_bytes=cost.row_bytes,
        head_bytes=2 * cost.head_bytes,
        tail_bytes=2 * cost.tail_bytes,
        tied=cost.tied,
    )
    return {2: cost, 4: wide}
