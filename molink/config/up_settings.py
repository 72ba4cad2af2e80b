"""What `molink up` was asked for, checked as far as it can be without opening the model."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from molink.config.serve_settings import SPAN_TOKENS_MAX
from molink.errors import UserError
from molink_scheduler.codec_choice import CODEC_CHOICES
from molink_scheduler.head.micro_batches import MICRO_BATCH_COUNT_MAX
from molink_scheduler.link.transmission import POLICIES, POLICY_DEFAULT
from molink_scheduler.placement import SPLITS

__all__ = ["UpSettings"]

MIN_NODES_MAX = 1024
TPOT_MS_MAX = 60_000.0
TOKENS_MAX = 131_072
"""As much KV as a stage offers at most."""

ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}")


@dataclass(frozen=True, slots=True)
class UpSettings:
    """A coordinator without stages of its own. Raises UserError for values out of range."""

    model: str
    data_dir: Path
    host: str = "0.0.0.0"
    port: int = 8000
    public_host: str = ""
    """Where agents reach it; empty: the first address of this PC's network, or `host`."""
    broker: str | None = None
    """A URL, mosquitto, embedded, or None for the best that is installed."""
    broker_port: int = 8001
    relay_port: int = 8002
    relay: str = ""
    """host:port of a relay that runs elsewhere; empty: one is started here."""
    relay_secret_file: str = ""
    tls_cert: str = ""
    """PEM files for the broker; empty: no TLS."""
    tls_key: str = ""
    tls_ca: str = ""
    """Who signed the certificate; empty: an authority that every system trusts."""
    min_nodes: int = 1
    dtype: str = "auto"
    model_len_max: int | None = None
    micro_batch_count: int | None = None
    span_tokens: int | None = None
    codec: str = "raw"
    policy: str = POLICY_DEFAULT
    tpot_ms: float = 250.0
    """Users are counted as served up to this time between two tokens."""
    context_tokens: int | None = None
    """KV that a user is planned with; None: a quarter of the model's length, at most 2,048."""
    weights_mbps: float | None = None
    """Cap on all downloads of weights from here together: tokens share the line with them."""
    prompt_tokens: int | None = None
    """Of the request that is planned for; None: half of `context_tokens`."""
    answer_tokens: int | None = None
    """Of its answer; None: an eighth."""
    split: str = "planned"
    """How the layers are divided: as a plan finds best, or evenly."""

    def __post_init__(self) -> None:
        for option, port in self.ports():
            _check(option, port, 0, 65535)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("--tls-cert and --tls-key belong together: give both or neither.")
        if bool(self.relay) != bool(self.relay_secret_file):
            raise UserError(
                "--relay and --relay-secret-file belong together: give both or neither."
            )
        if self.relay and not ADDRESS.fullmatch(self.relay):
            raise UserError(f"--relay takes HOST:PORT, got {self.relay!r}.")
        _check("--min-nodes", self.min_nodes, 1, MIN_NODES_MAX)
        for option, tokens, least, most in (
            ("--max-model-len", self.model_len_max, 2, 2**31),
            ("--micro-batches", self.micro_batch_count, 1, MICRO_BATCH_COUNT_MAX),
            ("--span-tokens", self.span_tokens, 1, SPAN_TOKENS_MAX),
            ("--context-tokens", self.context_tokens, 16, TOKENS_MAX),
            ("--prompt-tokens", self.prompt_tokens, 0, TOKENS_MAX),
            ("--answer-tokens", self.answer_tokens, 1, TOKENS_MAX),
        ):
            if tokens is not None:
                _check(option, tokens, least, most)
        if self.split not in SPLITS:
            raise UserError(f"--split must be one of {', '.join(SPLITS)}, got {self.split!r}.")
        if self.codec not in CODEC_CHOICES:
            raise UserError(
                f"--wire must be one of {', '.join(CODEC_CHOICES)}, got {self.codec!r}."
            )
        if self.policy not in POLICIES:
            raise UserError(f"--policy must be one of {', '.join(POLICIES)}, got {self.policy!r}.")
        if not (math.isfinite(self.tpot_ms) and 1 <= self.tpot_ms <= TPOT_MS_MAX):
            raise UserError(f"--tpot-ms must be 1 to {TPOT_MS_MAX:g}, got {self.tpot_ms:g}.")
        if self.weights_mbps is not None and not 0 < self.weights_mbps < math.inf:
            raise UserError(f"--weights-mbps must be above 0, got {self.weights_mbps:g}.")

    @property
    def weights_bytes_per_s(self) -> float | None:
        """The cap in bytes; None: none."""
        return None if self.weights_mbps is None else self.weights_mbps * 1e6 / 8

    def ports(self) -> list[tuple[str, int]]:
        """What is listened at here, with the option that chooses it; a broker or a relay of
        somebody else needs none."""
        found = [("--port", self.port)]
        if "://" not in (self.broker or ""):
            found.append(("--broker-port", self.broker_port))
        if not self.relay:
            found.append(("--relay-port", self.relay_port))
        return found


def _check(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UserError(f"{option} must be {low} to {high}, got {value}.")
