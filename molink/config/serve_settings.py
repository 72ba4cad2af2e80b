"""What `molink serve` was asked for, checked as far as it can be without opening the model."""

import math
import re
from dataclasses import dataclass

from molink.config.layer_split import check_layers
from molink.config.link_schedule import LinkSchedule
from molink.config.ring_hosts import RingHosts
from molink.errors import UserError
from molink_scheduler.codec_choice import CODEC_CHOICES
from molink_scheduler.head.micro_batches import MICRO_BATCH_COUNT_MAX
from molink_scheduler.link.transmission import POLICIES, POLICY_DEFAULT

__all__ = ["ServeSettings"]

NODES_MAX = 64
"""Processes that one machine is asked to start at most; a real ring is shorter still."""

THREADS_MAX = 256
SPAN_TOKENS_MAX = 4096

DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
"""Whether it is there, only the stage can tell."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """A local ring and its API. Raises UserError for values out of range."""

    model: str
    nodes: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    link: LinkSchedule | None = None
    hosts: RingHosts | None = None
    """None: every stage on this machine's loopback."""
    layers: str | None = None
    """As typed: `0-4,4-8,8-12`; None splits evenly."""
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 1
    """Compute threads of each stage."""
    model_len_max: int | None = None
    kv_tokens: int | None = None
    micro_batch_count: int | None = None
    """None: the measured round decides."""
    span_tokens: int | None = None
    """None: as the links allow."""
    codec: str = "raw"
    """Codec of the activations between stages, or "auto"."""
    policy: str = POLICY_DEFAULT
    upload_mbps: float | None = None
    """Cap on everything that each node uploads."""

    def __post_init__(self) -> None:
        _check("--nodes", self.nodes, 1, NODES_MAX)
        _check("--port", self.port, 0, 65535)
        _check("--threads", self.threads, 1, THREADS_MAX)
        if not DEVICE.fullmatch(self.device):
            raise UserError(f"--device must be auto, cpu or cuda:N, got {self.device!r}.")
        if self.layers is not None:
            check_layers(self.layers, self.nodes)
        if self.span_tokens is not None:
            _check("--span-tokens", self.span_tokens, 1, SPAN_TOKENS_MAX)
        if self.micro_batch_count is not None:
            _check("--micro-batches", self.micro_batch_count, 1, MICRO_BATCH_COUNT_MAX)
        if self.codec not in CODEC_CHOICES:
            raise UserError(
                f"--wire must be one of {', '.join(CODEC_CHOICES)}, got {self.codec!r}."
            )
        if self.policy not in POLICIES:
            raise UserError(f"--policy must be one of {', '.join(POLICIES)}, got {self.policy!r}.")
        if self.upload_mbps is not None and not 0 < self.upload_mbps < math.inf:
            raise UserError(f"--upload-mbps must be above 0, got {self.upload_mbps:g}.")
        if self.model_len_max is not None:
            _check("--max-model-len", self.model_len_max, 2, 2**31)
        if self.kv_tokens is not None:
            _check("--kv-tokens", self.kv_tokens, 16, 2**31)
        if self.hosts is not None:
            _check_hosts(self.hosts, self.nodes, self.link)


def _check_hosts(hosts: RingHosts, nodes: int, link: LinkSchedule | None) -> None:
    if link is not None:
        raise UserError(
            "--link cannot be combined with --hosts: links between hosts are real and shape "
            "themselves."
        )
    if len(hosts.stages) != nodes:
        raise UserError(
            f"--hosts names {len(hosts.stages)} stages for {nodes} nodes: give one each."
        )


def _check(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UserError(f"{option} must be {low} to {high}, got {value}.")
