"""The systems that are compared: three of the paper's Table 2, and MoLink as it ships.

    vllm    concurrent sends (TCP shares the link), whole prompts, two tensors per hop, as many
            micro-batches as stages, a prompt's prefill in place of its micro-batch's decode
    helix   the same, with one FIFO for each link
    paper   the paper's MoLink: Algorithm 1 with just-in-time chunks, 5 micro-batches
    molink  everything that we ship

The three compared systems run on vLLM 0.7.2. It hands hidden states and residual to the next stage
as two tensors (open vLLM pull request 41501 would join them), as request and response: what a hop
costs beyond one delay was read off the paper's Table 4, where time per token grows by 9 ms for each
millisecond of one-way delay of a ring of three hops, from a base of some 70 ms of software per hop.
"""

from dataclasses import replace
from typing import Any

from molink.errors import UserError
from molink_sim.network.make import PAPER_POLICY
from molink_sim.scenario import SystemSpec

__all__ = ["PAPER_MICRO_BATCHES", "SYSTEMS", "system_named"]

WHOLE_PROMPT_TOKENS = 1 << 20
"""More than any prompt has: a span is then the whole prompt."""

ONE_WAY_DELAYS_PER_HOP = 3.0
"""A unary call, its trigger, and TCP's window that restarts after idling."""

SOFTWARE_PER_HOP_S = 0.05
"""Serialisation, event loops and triggers of both ends of a hop."""

TENSORS_PER_HOP = 2

PAPER_MICRO_BATCHES = 5
"""Of the paper's experiments, for three stages."""

_VLLM = SystemSpec(
    name="vllm",
    policy="fair",
    micro_batches=None,
    span_tokens=WHOLE_PROMPT_TOKENS,
    tensors_per_hop=TENSORS_PER_HOP,
    hop_one_way_delays=ONE_WAY_DELAYS_PER_HOP,
    hop_software_s=SOFTWARE_PER_HOP_S,
    paced=False,
    prefill_blocks_decode=True,
)

SYSTEMS = {
    "vllm": _VLLM,
    "helix": replace(_VLLM, name="helix", policy="fifo"),
    "paper": replace(_VLLM, name="paper", policy=PAPER_POLICY, micro_batches=PAPER_MICRO_BATCHES),
    "molink": SystemSpec(),
}
"""Where `prefill_blocks_decode` is set, `micro_batches=None` means as many as stages."""


def system_named(name: str, **changes: Any) -> SystemSpec:
    """A preset with changes; those that are None leave it as it is.

    Raises UserError for an unknown name.
    """
    if name not in SYSTEMS:
        raise UserError(f"There is no system {name!r}: take one of {', '.join(SYSTEMS)}.")
    given = {field: value for field, value in changes.items() if value is not None}
    return replace(SYSTEMS[name], **given)
