"""Settings of `molink serve` and `molink up`, checked before the model is opened.

Both are sums of groups. The order of fields is that of the help, but for those that describe a ring
(`molink.cli.options`).
"""

import re
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from molink.config.groups import (
    COUNT_MAX,
    NODES_MAX,
    ApiSettings,
    CacheSettings,
    GoalSettings,
    ModelSettings,
    RingSettings,
)
from molink.config.link_schedule import LinkSchedule
from molink.config.setting import REQUIRED, Typed, check_settings, setting
from molink.config.toml_tables import ABOVE_0
from molink.errors import UserError
from molink_scheduler.routing.roles import Role, roles_of

PORTS = (0, 65_535)

PROCESSES_MAX = 64
"""Processes that one machine is asked to start at most; a real ring is shorter still."""

THREADS_MAX = 256

DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
KV_DEVICE = re.compile(r"(host|cuda(:\d{1,3})?)?")
"""Whether it is there, only the stage can tell."""

ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}")


def _written_roles(roles: tuple[Role, ...] | None) -> str:
    return "" if roles in (None, (Role.BOTH,)) else ",".join(roles or ())


def _check_hand_over(ring: RingSettings) -> None:
    """Raise UserError where rings have nothing to hand over."""
    if not ring.prefix_cache:
        raise UserError(
            "--roles hands over what a ring has cached, and --no-prefix-cache caches nothing: "
            "leave one of them out."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """A local ring and its API. Raises UserError for values out of range."""

    host: str = setting("--host", "127.0.0.1", "Where the API listens.")
    port: int = setting("--port", 8000, "Port of the API; 0 takes a free one.", within=PORTS)
    link: LinkSchedule | None = setting(
        "--link MBPS:MS|FILE",
        None,
        "Emulate a home link on every hop: rate and one-way delay, for example 100:30, or a file "
        "of steps `t_s, mbps, one_way_ms`.",
        typed=Typed(str, LinkSchedule.parse),
    )
    event_log: Path | None = setting(
        "--event-log FILE",
        None,
        "Write what each stage is told and decides to FILE.0, FILE.1, ..., for `molink sim "
        "replay`; prompts and answers are in it.",
    )
    api: ApiSettings = field(default_factory=ApiSettings)
    served: ModelSettings
    ring: RingSettings = field(default_factory=RingSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    nodes: int = setting(
        "--nodes",
        REQUIRED,
        "Stage processes to start; without it as many as --layers names, else 3.",
        within=(1, PROCESSES_MAX),
    )
    roles: tuple[Role, ...] = setting(
        "--roles ROLE,ROLE,...",
        (Role.BOTH,),
        "Several rings of --nodes stages each, and what each does: prefill computes prompts for a "
        "decode ring, which answers; both does both.",
        typed=Typed(str, roles_of, _written_roles),
    )
    layers: str | None = setting(
        "--layers A-B,C-D,...",
        None,
        "Layers of each stage, as 0-3,4-8; without it they are split evenly.",
    )
    device: str = setting("--device", "auto", "Where every stage computes: auto, cpu or cuda:N.")
    threads: int = setting(
        "--threads", 1, "Compute threads of each stage.", within=(1, THREADS_MAX)
    )
    attention_device: str = setting(
        "--attention-device",
        "",
        "Where KV lies and is attended to, host or cuda:N: in another process than each stage's "
        "weights, which then is replaced without a row lost. The weights lie on the CPU.",
    )
    kv_tokens: int | None = setting(
        "--kv-tokens",
        None,
        "Tokens that each stage's KV cache holds; without it as many as memory allows.",
        within=(16, COUNT_MAX),
    )
    upload_mbps: float | None = setting(
        "--upload-mbps MBPS",
        None,
        "Cap on everything that each node uploads, activations included.",
        within=(ABOVE_0, inf),
    )
    log_format: str = "text"
    """How stages write on standard error, text or json."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.ring.standbys > PROCESSES_MAX:
            raise UserError(f"--standby must be 0 to {PROCESSES_MAX}, got {self.ring.standbys}.")
        if not DEVICE.fullmatch(self.device):
            raise UserError(f"--device must be auto, cpu or cuda:N, got {self.device!r}.")
        if not KV_DEVICE.fullmatch(self.attention_device):
            got = repr(self.attention_device)[:80]
            raise UserError(f"--attention-device must be host or cuda:N, got {got}.")
        if self.attention_device and self.ring.kv_host_tokens:
            raise UserError(
                "--kv-host-tokens lends a stage room beside its own, and --attention-device has "
                "all of its KV elsewhere: leave one of them out."
            )
        self._check_roles()
        if self.layers is not None:
            from molink.config.layer_split import check_layers  # Its planner is loaded with it.

            check_layers(self.layers, self.nodes)

    def _check_roles(self) -> None:
        """Raise UserError for roles that do not go with other settings."""
        if len(self.roles) == 1:
            return
        if len(self.roles) * self.nodes > PROCESSES_MAX:
            rings = f"--roles has {len(self.roles)} rings of {self.nodes} stages"
            raise UserError(f"{rings}, and at most {PROCESSES_MAX} are started.")
        _check_hand_over(self.ring)
        if self.ring.standbys:
            raise UserError("--standby stands by for one ring, and --roles has several.")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """A coordinator without stages of its own. Raises UserError for values out of range."""

    host: str = setting("--host", "0.0.0.0", "Where everything listens.")
    port: int = setting("--port", 8000, "Port of the API; 0 takes a free one.", within=PORTS)
    public_host: str = setting(
        "--public-host NAME",
        "",
        "Where agents reach this machine; without it its first address at home.",
    )
    broker: str = setting(
        "--broker URL|embedded",
        "embedded",
        "mqtts://USER:PASSWORD@HOST:PORT of a broker that you run (better in $MOLINK_BROKER, "
        "which other users cannot read); without it one in the coordinator's process.",
        envvar="MOLINK_BROKER",
    )
    broker_port: int = setting(
        "--broker-port", 8001, "Port of the broker; 0 takes a free one.", within=PORTS
    )
    relay_port: int = setting(
        "--relay-port", 8002, "Port of the relay; 0 takes a free one.", within=PORTS
    )
    relay: str = setting(
        "--relay HOST:PORT",
        "",
        "Address of a `molink relay` elsewhere, as nodes reach it; without it one runs here.",
    )
    relay_secret_file: str = setting(
        "--relay-secret-file FILE", "", "The secret that the relay at --relay was started with."
    )
    agents_port: int = setting(
        "--agents-port",
        8003,
        "Where agents join and fetch weights; 0 takes a free one.",
        within=PORTS,
    )
    broker_users: str = setting(
        "--broker-users FILE", "", "Lines NODE_ID:PASSWORD: the nodes' users at a --broker by URL."
    )
    tls_cert: str = setting(
        "--tls-cert FILE",
        "",
        "PEM: what agents are shown; without it a certificate of the coordinator's own.",
    )
    tls_key: str = setting("--tls-key FILE", "", "PEM: the private key of --tls-cert.")
    tls_ca: str = setting(
        "--tls-ca FILE", "", "PEM: who signed --tls-cert, where not every system trusts them."
    )
    min_nodes: int = setting(
        "--min-nodes",
        1,
        "Nodes to wait for before a plan; each device of a PC is one.",
        within=(1, NODES_MAX),
    )
    wait: bool = setting("--wait", False, "Say `ready URL` when a ring serves.")
    roles: tuple[Role, ...] = setting(
        "--roles ROLE,ROLE,...",
        (Role.BOTH,),
        "What each of several rings does, in the order in which they stand: prefill computes "
        "prompts for a decode ring, which answers; both does both. For rings in one PC or cell.",
        typed=Typed(str, roles_of, _written_roles),
    )
    goal: GoalSettings = field(default_factory=GoalSettings)
    audit_share: float = setting(
        "--audit-share",
        0.0,
        "Share of the requests, 0 to 1, that another ring computes again, to find PCs that lie.",
        within=(0.0, 1.0),
    )
    weights_mbps: float | None = setting(
        "--weights-mbps",
        None,
        "Cap on what PCs fetch of weights from here, all together; without it what the line has.",
        within=(ABOVE_0, inf),
    )
    data_dir: Path = setting(
        "--data-dir FOLDER",
        REQUIRED,
        "Folder of keys, invites and nodes; without it $XDG_DATA_HOME/molink.",
        typed=Typed(str),
    )
    replaces: str = setting(
        "--replaces FOLDER",
        "",
        "Data folder of a coordinator of the same cluster, to take over from with another model.",
    )
    api: ApiSettings = field(default_factory=ApiSettings)
    served: ModelSettings
    ring: RingSettings = field(default_factory=RingSettings)

    def __post_init__(self) -> None:
        check_settings(self)
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
        if self.replaces and ("://" in self.broker or self.relay):
            raise UserError(
                "--replaces takes a broker and a relay of its own: leave --broker and --relay out."
            )
        if len(self.roles) > 1:
            _check_hand_over(self.ring)
        if self.relay and not ADDRESS.fullmatch(self.relay):
            raise UserError(f"--relay takes HOST:PORT, got {self.relay!r}.")

    def api_url(self, port: int) -> str:
        """URL at which users reach the API, with the port that was found for it."""
        return f"http{'s' * self.api.api_tls}://{self.public_host}:{port}"

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
