"""Groups of settings: each part of a server is given its own, whichever command it was typed for.

Help is the settings' documentation here. A group holds what somebody needs together.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from molink.config.parsers import AUTO, NONE, REASONING_PARSERS, TOOL_PARSERS
from molink.config.setting import (
    AUTO_OR_COUNT,
    AUTO_OR_GIGABYTES,
    GIGABYTES,
    check_settings,
    setting,
)
from molink.config.toml_tables import ABOVE_0
from molink.errors import UserError
from molink.printable import is_printable
from molink_scheduler.batch import DRAFTS_MAX, MICRO_BATCH_COUNT_MAX
from molink_scheduler.codec_choice import CODEC_CHOICES
from molink_scheduler.head.settings import (
    REPLAY_LOG_BYTES,
    REPLAY_LOG_BYTES_MAX,
    SPAN_TOKENS_MAX,
    RingTerms,
)
from molink_scheduler.routing.admission import (
    TBT_PERCENTILE,
    TBT_PERCENTILE_MAX,
    TBT_PERCENTILE_MIN,
    TPOT_TARGET_MS_MAX,
    TTFT_TARGET_S_MAX,
    Targets,
)
from molink_scheduler.routing.ring_choice import Routing
from molink_scheduler.units import GB
from molink_scheduler.waiting_line import WAIT_S

if TYPE_CHECKING:
    from molink.checkpoint.kv_format import KvDtype

MODEL_NAMES_MAX = 64
"""All of them stand in every list of models."""

MODEL_NAME_CHARS_MAX = 256
"""A hub id has 96 at most; a name is compared with each request's."""

NODES_MAX = 1024
TPOT_MS_MAX = 60_000.0
COUNT_MAX = 2**31

TOKENS_MAX = 131_072
"""KV that a stage offers at most."""

QUEUE_S_MAX = 3600.0
"""No client waits longer; the number of sequences is bounded all the same."""

TAIL_DRAFTERS = ("auto", "tail")
"""Drafters by which a layer of the checkpoint drafts on the tail, if it has one."""

DRAFTERS = (*TAIL_DRAFTERS, NONE, "copy")
"""Drafters that are no path of a model."""

CACHE_BYTES_MAX = 65_536 * GB
"""No PC has more memory, and cached KV needs no more disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Settings of the API: who may use it, and which of their requests are taken."""

    no_keys: bool = setting(
        "--no-keys",
        False,
        "Let everybody who reaches the API ask without a key; orders need one all the same.",
    )
    api_tls: bool = setting(
        "--api-tls",
        False,
        "HTTPS for the API, with a certificate that is made for it, or one of yours.",
    )
    api_tls_cert: str = setting(
        "--api-tls-cert FILE",
        "",
        "PEM: the certificate that users are shown, and those of its authorities.",
    )
    api_tls_key: str = setting("--api-tls-key FILE", "", "PEM: the private key of --api-tls-cert.")
    allowed_hosts: tuple[str, ...] = setting(
        "--allowed-host NAME",
        (),
        "Name by which the API is reached without a key; may be given again.",
    )
    cors_origins: tuple[str, ...] = setting(
        "--cors-origin ORIGIN",
        (),
        "Origin whose web pages may use the API, as https://chat.example, or * for any page "
        "that sends a key; may be given again.",
    )
    strict: bool = setting(
        "--strict",
        False,
        "Refuse requests with fields that would be ignored, instead of naming them in the "
        "header X-MoLink-Ignored.",
    )
    shared_cache: bool = setting(
        "--shared-cache",
        False,
        "Let users of different keys share what was computed for prompts that begin alike; "
        "from how soon an answer comes they can then tell what others have asked.",
    )
    queue_s: float = setting(
        "--queue-s SECONDS",
        WAIT_S,
        "Refuse requests (429) that are forecast to wait longer for their first token.",
        within=(0.0, QUEUE_S_MAX),
    )
    routing: str = setting(
        "--routing",
        Routing.MOLINK.value,
        "Which ring serves a request: molink takes the one that is forecast to begin its "
        "answer soonest, cache the one that has computed most of its prompt before.",
        choices=[one.value for one in Routing],
    )
    ttft_target_s: float | None = setting(
        "--ttft-target-s SECONDS",
        None,
        "Refuse requests (429) that are forecast to get their first token later.",
        within=(ABOVE_0, TTFT_TARGET_S_MAX),
    )
    tpot_target_ms: float | None = setting(
        "--tpot-target-ms MS",
        None,
        "Refuse requests (429) that are forecast to get further tokens more slowly.",
        within=(ABOVE_0, TPOT_TARGET_MS_MAX),
    )
    tbt_target_ms: float | None = setting(
        "--tbt-target-ms MS",
        None,
        "Refuse requests (429) that are forecast to get a longer gap between two tokens than this, "
        "but for the longest gaps (--tbt-percentile).",
        within=(ABOVE_0, TPOT_TARGET_MS_MAX),
    )
    tbt_percentile: float = setting(
        "--tbt-percentile PERCENT",
        TBT_PERCENTILE,
        "Percentile of gaps between tokens that --tbt-target-ms, or tbt_target_ms of a request, is "
        "for.",
        within=(TBT_PERCENTILE_MIN, TBT_PERCENTILE_MAX),
    )

    def __post_init__(self) -> None:
        check_settings(self)
        is_half = bool(self.api_tls_cert) != bool(self.api_tls_key)
        if is_half or (self.api_tls_cert and not self.api_tls):
            raise UserError(
                "--api-tls-cert and --api-tls-key belong together, and to --api-tls: give all or "
                "none."
            )

    @property
    def targets(self) -> Targets:
        """The operator's targets for answers."""
        return Targets.of_ms(
            self.ttft_target_s, self.tpot_target_ms, self.tbt_target_ms, self.tbt_percentile
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Settings of the model: its name, how its answers are read, how it is computed."""

    model: str
    served_model_names: tuple[str, ...] = setting(
        "--served-model-name NAME",
        (),
        "What users call the model; may be given again: the first stands in answers, "
        "without any the model's own name.",
    )
    generation_config: str = setting(
        "--generation-config",
        AUTO,
        "Sampling settings of a request that gives none: auto takes those that the model's "
        "makers publish in generation_config.json.",
        choices=(AUTO, NONE),
    )
    tool_parser: str = setting(
        "--tool-parser",
        AUTO,
        "How the model writes calls of tools; auto finds it from the chat template.",
        choices=TOOL_PARSERS,
    )
    reasoning_parser: str = setting(
        "--reasoning-parser",
        AUTO,
        "How the model writes what it thinks before it answers.",
        choices=REASONING_PARSERS,
    )
    dtype: str = setting(
        "--dtype",
        "auto",
        "Number format of weights and activations.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    model_len_max: int | None = setting(
        "--max-model-len",
        None,
        "Most tokens of prompt and answer together; without it the model's own length.",
        within=(2, COUNT_MAX),
    )
    kv_dtype: "KvDtype" = setting(
        "--kv",
        "auto",
        "Format of the KV cache: as --dtype, or int8, which holds twice the tokens of 16 bits.",
        choices=("auto", "int8"),
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if len(self.served_model_names) > MODEL_NAMES_MAX:
            raise UserError(f"--served-model-name may be given {MODEL_NAMES_MAX} times at most.")
        for name in self.served_model_names:
            if not (0 < len(name) <= MODEL_NAME_CHARS_MAX and is_printable(name)):
                raise UserError(
                    f"--served-model-name takes 1 to {MODEL_NAME_CHARS_MAX} printable characters, "
                    f"got {name!r:.80}."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSettings:
    """How the stages of a ring work together."""

    standbys: int = setting(
        "--standby K",
        0,
        "Nodes beside those that serve which hold layers of theirs, and take the place of one "
        "that is lost.",
        within=(0, NODES_MAX),
    )
    shadow: bool = setting(
        "--no-shadow",
        True,
        "Have standbys hold layers only, and no KV: their neighbours upload nothing for them.",
    )
    micro_batch_count: int | None = setting(
        "--micro-batches auto|K",
        None,
        "Decode groups that circle the ring.",
        within=(1, MICRO_BATCH_COUNT_MAX),
        typed=AUTO_OR_COUNT,
    )
    codec: str = setting(
        "--wire",
        "raw",
        "How activations are packed; auto takes int8 where a check at load lets it, "
        "else lossless where that is quicker than raw.",
        choices=CODEC_CHOICES,
    )
    span_tokens: int | None = setting(
        "--span-tokens auto|T",
        None,
        "Prompt tokens computed and sent at a time.",
        within=(1, SPAN_TOKENS_MAX),
        typed=AUTO_OR_COUNT,
    )
    replay_log_bytes: int = setting(
        "--replay-log-gb GB",
        REPLAY_LOG_BYTES,
        "Memory of each stage for rows that it has sent, from which a lost neighbour is "
        "replaced; requests beyond it are computed anew.",
        within=(0, REPLAY_LOG_BYTES_MAX),
        typed=GIGABYTES,
    )
    kv_host_tokens: int = setting(
        "--kv-host-tokens",
        0,
        "Tokens of KV that each stage may hold in its PC's memory too, within what is lent of it: "
        "for requests longer than its device has room for.",
        within=(0, COUNT_MAX),
    )
    prefix_cache: bool = setting(
        "--no-prefix-cache",
        True,
        "Compute every prompt whole, also where one that begins alike was computed before.",
    )
    drafter: str = setting(
        "--drafter auto|none|copy|tail|PATH",
        NONE,
        "Who guesses tokens that the ring then verifies several at a time, for the same answers "
        "sooner: copy what the text holds already, a layer of the checkpoint on the tail, or a "
        "small model of the same words beside it; auto takes the layer if there is one, and "
        "copies.",
    )
    draft_width_max: int = setting(
        "--draft-width-max", DRAFTS_MAX, "Most tokens guessed at a time.", within=(1, DRAFTS_MAX)
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def terms(self, api: ApiSettings) -> RingTerms:
        """What all stages of a ring are told of this."""
        return RingTerms(
            micro_batch_count=self.micro_batch_count,
            span_tokens=self.span_tokens,
            replay_log_bytes=self.replay_log_bytes,
            prefix_cache=self.prefix_cache,
            fifo_prompts=api.ttft_target_s is not None,
            draft_width_max=0 if self.drafter == NONE else self.draft_width_max,
            drafts_at_head=self.drafter != "tail",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalSettings:
    """What a plan is to reach, and for which requests."""

    tpot_ms: float = setting(
        "--tpot-ms",
        250.0,
        "Time between two tokens up to which a plan counts a user as served.",
        within=(1.0, TPOT_MS_MAX),
    )
    context_tokens: int | None = setting(
        "--context-tokens", None, "KV that a plan keeps for each user.", within=(16, TOKENS_MAX)
    )
    prompt_tokens: int | None = setting(
        "--prompt-tokens",
        None,
        "Prompt of the request that is planned for.",
        within=(0, TOKENS_MAX),
    )
    answer_tokens: int | None = setting(
        "--answer-tokens",
        None,
        "Answer of the request that is planned for.",
        within=(1, TOKENS_MAX),
    )
    split: str = setting(
        "--split",
        "planned",
        "Layers as a plan finds best, or evenly over all PCs in the order in which they came.",
        choices=("planned", "even"),
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Room for cached KV beside the devices' memory, of all stages of this PC together."""

    cache_ram_bytes: int | None = setting(
        "--cache-ram-gb auto|GB",
        None,
        "Memory of the PC, all stages together, for cached KV that a device has no room for; "
        "auto takes a part of what is idle when they load.",
        within=(0, CACHE_BYTES_MAX),
        typed=AUTO_OR_GIGABYTES,
    )
    cache_disk_bytes: int = setting(
        "--cache-disk-gb GB",
        0,
        "Disk for what that memory has no room for, encrypted; it is gone with the stages.",
        within=(0, CACHE_BYTES_MAX),
        typed=GIGABYTES,
    )

    def __post_init__(self) -> None:
        check_settings(self)
