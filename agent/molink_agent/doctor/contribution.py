"""What can the cluster expect of this PC? Layers that fit, counted as roughly as it is known."""

from molink.control.messages.payloads import ModelSize
from molink_agent.doctor.facts import DoctorFacts
from molink_agent.doctor.finding import Finding, fail, ok
from molink_agent.limits.lent import Lent, lent_devices, lent_disk_bytes, nothing_left

__all__ = ["contribution", "layers_that_fit"]

TYPICAL = ModelSize(name="a typical 8B model", layers=32, layer_bytes=436_224_000)
"""218 million numbers a layer in 16 bits: hidden size 4,096, MLP 14,336, 8 KV heads of 128."""

WEIGHTS_SHARE = 0.75
"""Of what is lent; the rest is for KV and for what a step computes with."""


def contribution(facts: DoctorFacts) -> Finding:
    """Layers of the cluster's model, or of a typical one before it is known."""
    name, model = "contribution", facts.known.model or TYPICAL
    lent = lent_devices(facts.limits, facts.machine, facts.gpus)
    room = lent_disk_bytes(facts.limits, facts.machine.disk_free_bytes, facts.weights_bytes)
    trouble = nothing_left(facts.limits, lent, room, model)
    if trouble is not None:
        found, _, remedy = trouble.partition(": ")
        return fail(name, found, remedy[:1].upper() + remedy[1:])
    count = min(
        model.layers,
        sum(layers_that_fit(model, one) for one in lent),
        room // model.layer_bytes,
    )
    why = "" if facts.known.model else " (the cluster's model is not known yet)"
    return ok(name, f"about {count} of {model.layers} layers of {model.name}{why}")


def layers_that_fit(model: ModelSize, lent: Lent) -> int:
    """On one device, and at least one where a layer fits at all."""
    needed = model.held_bytes(lent.element_bytes)
    return max(int(lent.lent_bytes * WEIGHTS_SHARE) // needed, int(lent.lent_bytes >= needed))
