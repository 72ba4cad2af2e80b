"""What `molink serve` and `molink up` were asked for, checked before the model is opened."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from molink.checkpoint.kv_format import KvDtype
from molink.config.layer_split import check_layers
from molink.config.link_schedule import LinkSchedule
from molink.config.parsers import AUTO
from molink.errors import UserError
from molink.printable import is_printable
from molink_scheduler.codec_choice import CODEC_CHOICES
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.placement import SPLITS
from molink_scheduler.routing.admission import TPOT_TARGET_MS_MAX, TTFT_TARGET_S_MAX, Targets
from molink_scheduler.routing.ring_choice import Routing
from molink_scheduler.waiting_line import WAIT_S

NODES_MAX = 64
"""Processes that one machine is asked to start at most; a real ring is shorter still."""

THREADS_MAX = 256

DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
"""Whether it is there, only the stage can tell."""

MODEL_NAMES_MAX = 64
"""All of them stand in every list of models."""

MODEL_NAME_CHARS_MAX = 256
"""A hub id has 96 at most; a name is compared with each request's."""

MIN_NODES_MAX = 1024
TPOT_MS_MAX = 60_000.0
TOKENS_MAX = 131_072
"""As much KV as a stage offers at most."""

QUEUE_S_MAX = 3600.0
"""No client waits longer; the number of sequences is bounded all the same."""

CACHE_GB_MAX = 65_536.0
"""No PC has more memory, and cached KV needs no more disk."""

ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """A local ring and its API. Raises UserError for values out of range."""

    model: str
    nodes: int = 1
    standbys: int = 0
    """Nodes beside them, for the layers of one that is lost."""
    shadow: bool = True
    """Whether they are sent rows as well, to hold its KV."""
    host: str = "127.0.0.1"
    port: int = 8000
    link: LinkSchedule | None = None
    layers: str | None = None
    """As typed: `0-4,4-8,8-12`; None splits evenly."""
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 1
    """Compute threads of each stage."""
    model_len_max: int | None = None
    kv_tokens: int | None = None
    kv_dtype: KvDtype = "auto"
    ring: RingTerms = field(default_factory=RingTerms)
    cache_ram_gb: float = 0.0
    """Memory of this PC for cached KV that devices have no room for, of all stages together."""
    cache_disk_gb: float = 0.0
    """Disk for what that has no room for."""
    codec: str = "raw"
    """Codec of the activations between stages, or "auto"."""
    upload_mbps: float | None = None
    """Cap on everything that each node uploads."""
    no_keys: bool = False
    """Whether nobody needs a key to ask for answers, wherever the API listens."""
    api_tls: bool = False
    """Whether the API is HTTPS."""
    api_tls_cert: str = ""
    """PEM files for it; empty: a certificate that is made."""
    api_tls_key: str = ""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which the API is reached without a key."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may use the API."""
    strict: bool = False
    """Whether fields of a request that would be ignored are refused."""
    shared_cache: bool = False
    """Whether users of different keys share cached KV."""
    queue_s: float = WAIT_S
    """Requests that are forecast to wait longer for their first token are refused."""
    routing: str = Routing.MOLINK
    """How the ring is chosen that serves a request."""
    ttft_target_s: float | None = None
    """Requests that are forecast a later first token are refused; None: none is for that."""
    tpot_target_ms: float | None = None
    """As are those with a longer time between two tokens."""
    served_model_names: tuple[str, ...] = ()
    """What users call the model; none: its own name."""
    generation_config: str = AUTO
    """Whether its makers' sampling settings hold where a request is silent, auto or none."""
    tool_parser: str = AUTO
    reasoning_parser: str = AUTO
    event_log: Path | None = None
    """Where each stage writes what it is told, with its number behind the name."""
    log_format: str = "text"
    """Of what the stages say on standard error, text or json."""

    def __post_init__(self) -> None:
        _check("--nodes", self.nodes, 1, NODES_MAX)
        _check("--standby", self.standbys, 0, NODES_MAX)
        _check("--port", self.port, 0, 65535)
        _check("--threads", self.threads, 1, THREADS_MAX)
        if not DEVICE.fullmatch(self.device):
            raise UserError(f"--device must be auto, cpu or cuda:N, got {self.device!r}.")
        if self.layers is not None:
            check_layers(self.layers, self.nodes)
        _check_codec(self.codec)
        if self.upload_mbps is not None and not 0 < self.upload_mbps < math.inf:
            raise UserError(f"--upload-mbps must be above 0, got {self.upload_mbps:g}.")
        if self.model_len_max is not None:
            _check("--max-model-len", self.model_len_max, 2, 2**31)
        _check_kv(self.kv_dtype)
        if self.kv_tokens is not None:
            _check("--kv-tokens", self.kv_tokens, 16, 2**31)
        _check_cache("--cache-ram-gb", self.cache_ram_gb)
        _check_cache("--cache-disk-gb", self.cache_disk_gb)
        _check_api_tls(self.api_tls, self.api_tls_cert, self.api_tls_key)
        _check_names(self.served_model_names)
        _check_queue(self.queue_s)
        targets_of(self.ttft_target_s, self.tpot_target_ms)


@dataclass(frozen=True, slots=True)
class UpSettings:
    """A coordinator without stages of its own. Raises UserError for values out of range."""

    model: str
    data_dir: Path
    host: str = "0.0.0.0"
    port: int = 8000
    public_host: str = ""
    """Where agents reach it; empty: the first address of this PC's network, or `host`."""
    broker: str = "embedded"
    """A URL, or embedded."""
    broker_port: int = 8001
    relay_port: int = 8002
    agents_port: int = 8003
    """Where agents join and fetch weights."""
    broker_users: str = ""
    """File of the nodes' users at a broker by URL; empty: it has none."""
    relay: str = ""
    """host:port of a relay that runs elsewhere; empty: one is started here."""
    relay_secret_file: str = ""
    tls_cert: str = ""
    """PEM files for broker and agents' port; empty: the coordinator's own certificate."""
    tls_key: str = ""
    tls_ca: str = ""
    """Who signed the certificate; empty: an authority that every system trusts."""
    no_keys: bool = False
    """Whether nobody needs a key to ask for answers, wherever the API listens."""
    api_tls: bool = False
    """Whether the API is HTTPS."""
    api_tls_cert: str = ""
    """PEM files for it; empty: a certificate that is made."""
    api_tls_key: str = ""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which the API is reached without a key, besides `public_host`."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may use the API."""
    strict: bool = False
    """Whether fields of a request that would be ignored are refused."""
    shared_cache: bool = False
    """Whether users of different keys share cached KV."""
    queue_s: float = WAIT_S
    """Requests that are forecast to wait longer for their first token are refused."""
    routing: str = Routing.MOLINK
    """How the ring is chosen that serves a request."""
    ttft_target_s: float | None = None
    """Requests that are forecast a later first token are refused; None: none is for that."""
    tpot_target_ms: float | None = None
    """As are those with a longer time between two tokens."""
    served_model_names: tuple[str, ...] = ()
    """What users call the model; none: its own name."""
    generation_config: str = AUTO
    """Whether its makers' sampling settings hold where a request is silent, auto or none."""
    tool_parser: str = AUTO
    reasoning_parser: str = AUTO
    min_nodes: int = 1
    standbys: int = 0
    """Nodes that are left free, to hold the layers of others, should these be lost."""
    shadow: bool = True
    """Whether they are sent rows as well, to hold the others' KV."""
    dtype: str = "auto"
    kv_dtype: KvDtype = "auto"
    model_len_max: int | None = None
    ring: RingTerms = field(default_factory=RingTerms)
    codec: str = "raw"
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
    audit_share: float = 0.0
    """Of the requests that another ring computes again; 0: none."""

    def __post_init__(self) -> None:
        for option, port in self.ports():
            _check(option, port, 0, 65535)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("--tls-cert and --tls-key belong together: give both or neither.")
        if self.tls_ca and not self.tls_cert:
            raise UserError("--tls-ca belongs to --tls-cert and --tls-key: give all or none.")
        if self.broker_users and "://" not in self.broker:
            raise UserError("--broker-users belongs to a --broker by URL: leave it out.")
        if bool(self.relay) != bool(self.relay_secret_file):
            raise UserError(
                "--relay and --relay-secret-file belong together: give both or neither."
            )
        if self.relay and not ADDRESS.fullmatch(self.relay):
            raise UserError(f"--relay takes HOST:PORT, got {self.relay!r}.")
        _check_kv(self.kv_dtype)
        _check("--min-nodes", self.min_nodes, 1, MIN_NODES_MAX)
        _check("--standby", self.standbys, 0, MIN_NODES_MAX)
        for option, tokens, least, most in (
            ("--max-model-len", self.model_len_max, 2, 2**31),
            ("--context-tokens", self.context_tokens, 16, TOKENS_MAX),
            ("--prompt-tokens", self.prompt_tokens, 0, TOKENS_MAX),
            ("--answer-tokens", self.answer_tokens, 1, TOKENS_MAX),
        ):
            if tokens is not None:
                _check(option, tokens, least, most)
        _check_api_tls(self.api_tls, self.api_tls_cert, self.api_tls_key)
        _check_names(self.served_model_names)
        _check_queue(self.queue_s)
        targets_of(self.ttft_target_s, self.tpot_target_ms)
        if self.split not in SPLITS:
            raise UserError(f"--split must be one of {', '.join(SPLITS)}, got {self.split!r}.")
        _check_codec(self.codec)
        if not (math.isfinite(self.tpot_ms) and 1 <= self.tpot_ms <= TPOT_MS_MAX):
            raise UserError(f"--tpot-ms must be 1 to {TPOT_MS_MAX:g}, got {self.tpot_ms:g}.")
        if self.weights_mbps is not None and not 0 < self.weights_mbps < math.inf:
            raise UserError(f"--weights-mbps must be above 0, got {self.weights_mbps:g}.")
        _check_share(self.audit_share)

    def api_url(self, port: int) -> str:
        """Where users reach the API, at the port that was found for it."""
        return f"http{'s' * self.api_tls}://{self.public_host}:{port}"

    @property
    def weights_bytes_per_s(self) -> float | None:
        """The cap in bytes; None: none."""
        return None if self.weights_mbps is None else self.weights_mbps * 1e6 / 8

    def ports(self) -> list[tuple[str, int]]:
        """What is listened at here, with the option that chooses it; a broker or a relay of
        somebody else needs none."""
        found = [("--port", self.port), ("--agents-port", self.agents_port)]
        if "://" not in self.broker:
            found.append(("--broker-port", self.broker_port))
        if not self.relay:
            found.append(("--relay-port", self.relay_port))
        return found


def _check_names(names: tuple[str, ...]) -> None:
    if len(names) > MODEL_NAMES_MAX:
        raise UserError(f"--served-model-name may be given {MODEL_NAMES_MAX} times at most.")
    for name in names:
        if not (0 < len(name) <= MODEL_NAME_CHARS_MAX and is_printable(name)):
            raise UserError(
                f"--served-model-name takes 1 to {MODEL_NAME_CHARS_MAX} printable characters, "
                f"got {name!r:.80}."
            )


def _check_api_tls(is_on: bool, certificate: str, key: str) -> None:
    if bool(certificate) != bool(key) or (certificate and not is_on):
        raise UserError(
            "--api-tls-cert and --api-tls-key belong together, and to --api-tls: give all or none."
        )


def _check_cache(option: str, size_gb: float) -> None:
    if not 0 <= size_gb <= CACHE_GB_MAX:
        raise UserError(f"{option} must be 0 to {CACHE_GB_MAX:g}, got {size_gb:g}.")


def _check_queue(queue_s: float) -> None:
    if not 0 <= queue_s <= QUEUE_S_MAX:
        raise UserError(f"--queue-s must be 0 to {QUEUE_S_MAX:g}, got {queue_s:g}.")


def targets_of(ttft_target_s: float | None, tpot_target_ms: float | None) -> Targets:
    """The operator's targets. Raises UserError for values out of range."""
    for option, value, most in (
        ("--ttft-target-s", ttft_target_s, TTFT_TARGET_S_MAX),
        ("--tpot-target-ms", tpot_target_ms, TPOT_TARGET_MS_MAX),
    ):
        if value is not None and not 0 < value <= most:
            raise UserError(f"{option} must be above 0 and at most {most:g}, got {value:g}.")
    return Targets(ttft_target_s, None if tpot_target_ms is None else tpot_target_ms / 1000)


def _check_codec(codec: str) -> None:
    if codec not in CODEC_CHOICES:
        raise UserError(f"--wire must be one of {', '.join(CODEC_CHOICES)}, got {codec!r}.")


def _check_share(audit_share: float) -> None:
    if not 0 <= audit_share <= 1:
        raise UserError(f"--audit-share must be 0 to 1, got {audit_share:g}.")


def _check_kv(kv_dtype: str) -> None:
    if kv_dtype not in get_args(KvDtype):
        names = ", ".join(get_args(KvDtype))
        raise UserError(f"--kv must be one of {names}, got {kv_dtype!r}.")


def _check(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UserError(f"{option} must be {low} to {high}, got {value}.")
