"""The systems that are compared: three of the paper's Table 2, and MoLink as it ships.

    vllm    concurrent sends (TCP shares the link), whole prompts, two tensors per hop, as many
            micro-batches as stages, a prompt's prefill in place of its micro-batch's decode
    helix   the same, with one FIFO for each link
    paper   the paper's MoLink: Algorithm 1 with just-in-time chunks, 5 micro-batches
    molink  everything that we ship

The three compared systems run on vLLM 0.7.2. It hands hidden states and residual to the next stage
as two tensors (open vLLM pull request 41501 would join them), over connections whose window nobody
keeps open, and each worker waits for the batch that it was called for (`ring.sources.FifoSource`).
`paper.experiment` works out what that comes to. One set of constants serves every rate, bandwidth
and delay.
"""

from dataclasses import replace
from typing import Any

from molink.errors import UserError
from molink_sim.network.policies import PAPER_POLICY
from molink_sim.scenario import SystemSpec

WHOLE_PROMPT_TOKENS = 1 << 20
"""Tokens of a span, more than any prompt has: it is then the whole prompt."""

ONE_WAY_DELAYS_PER_HOP = 1.0
"""A message goes straight to the next stage; the trigger of the worker there left the head earlier,
and the response of the unary call holds nobody up. Three, as the slope of the paper's Table 4 (9 ms
of TPOT for each ms of delay, three hops) suggests, make 0.5 s at 0.1 requests per second where the
paper has 0.28: that table was made under a load that doubles whatever a round costs. What the delay
costs beyond is the window's doing (`network.line.Window`)."""

SOFTWARE_PER_HOP_S = 0.04
"""Copying two tensors from the device, serialising, an asyncio task, gRPC, a worker's call and the
driver's scheduling, both ends together. What whole answers take at 0.1 and 0.2 requests per second
leaves so much: of 0.32 s for each of 231 tokens at 0.1/s, delay is 0.09 s, arithmetic 0.02 s, and a
third is waiting behind prompts; three hops share the rest."""

TENSORS_PER_HOP = 2

PAPER_MICRO_BATCHES = 5
"""Micro-batches of the paper's experiments, for three stages."""

_VLLM = SystemSpec(
    name="vllm",
    policy="fair",
    micro_batches=None,
    span_tokens=WHOLE_PROMPT_TOKENS,
    tensors_per_hop=TENSORS_PER_HOP,
    hop_one_way_delays=ONE_WAY_DELAYS_PER_HOP,
    hop_software_s=SOFTWARE_PER_HOP_S,
    window_opens=True,
    paced=False,
    prefill_blocks_decode=True,
    survivors_stay=False,
)

SYSTEMS = {
    "vllm": _VLLM,
    "helix": replace(_VLLM, name="helix", policy="fifo"),
    "paper": replace(_VLLM, name="paper", policy=PAPER_POLICY, micro_batches=PAPER_MICRO_BATCHES),
    "molink": SystemSpec(),
}
"""Systems by name. Where `prefill_blocks_decode` is set, `micro_batches=None` means as many as
stages."""


def system_named(name: str, **changes: Any) -> SystemSpec:
    """A preset with changes; those that are None leave it as it is.

    Raises UserError for an unknown name.
    """
    if name not in SYSTEMS:
        raise UserError(f"There is no system {name!r}: take one of {', '.join(SYSTEMS)}.")
    given = {field: value for field, value in changes.items() if value is not None}
    return replace(SYSTEMS[name], **given)
