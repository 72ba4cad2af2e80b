"""Choice of the codec of a ring's links: int8 where it measurably keeps the model's answers.

Packing to int8 halves the bytes and disturbs the logits a little. How much depends on the
checkpoint: massive channels, depth, how sure the model is. So the ring runs the model's own prompts
with and without the codec when it loads, and `auto` takes int8 only if the answers stayed. Else it
takes lossless where that is quicker than sending raw bytes, else raw. A codec that a user names is
used whatever the check says, but the decision tells them.

A list of checkpoints known to be good was rejected: it is stale with the next fine-tune, and nobody
would measure the one that is not on it.

Measured over two cuts of a trained model: int8 disturbs the logits by 8e-4 and keeps 99.89 % of the
greedy tokens, fp8 3.5e-3 and 99.48 %, int4 1.5e-2 and 97.8 %; bfloat16 itself 2e-4 and 99.99 %.
"""

from dataclasses import dataclass

CODEC_CHOICES = ("auto", "raw", "lossless", "int8", "fp8")
"""Codecs that a user may ask for."""

AGREEMENT_MIN = 0.99
"""Share of greedy tokens that must stay. int8 in good order keeps 99.9 %, so it fails by chance
less than once in 10,000 checks; int4, which is felt, keeps 97.8 %. A model with random weights has
ties everywhere and may fail: rightly, its answers would change."""

LOGITS_ERROR_MAX = 5e-3
"""Six times what int8 costs over two cuts, room for the growth of errors over a dozen more, and a
third of int4. It catches what agreement misses on easy prompts: a model that is sure of every token
keeps them all while sampled answers already drift."""

TOKENS_MIN = 256
"""Positions that a check must have compared: with fewer, one changed token alone decides."""

TIME_SAVED_MIN = 0.1
"""Share of the link's time that lossless packing must save: less is lost again to a busy core."""


@dataclass(frozen=True, slots=True)
class CodecCheck:
    """The model's own prompts, run with and without a codec."""

    codec: str
    greedy_agreement: float
    """Share of positions, 0 to 1, whose most likely token stayed, each given the same text."""
    logits_error: float
    """Root mean square of the change of the logits over their own spread; nan when they broke."""
    tokens: int
    """Positions compared."""

    def __post_init__(self) -> None:
        if not 0 <= self.greedy_agreement <= 1:
            raise ValueError(f"agreement is a share of tokens, got {self.greedy_agreement}")
        if self.tokens < 0:
            raise ValueError(f"a check compares 0 or more tokens, got {self.tokens}")

    @property
    def passed(self) -> bool:
        """Whether answers with the codec can stand for answers without."""
        return self.fault is None

    @property
    def fault(self) -> str | None:
        """Why it did not pass."""
        if self.tokens < TOKENS_MIN:
            return f"only {self.tokens} of {TOKENS_MIN} tokens were compared"
        if not self.greedy_agreement >= AGREEMENT_MIN:
            return f"it kept {self._agreement} of greedy tokens, {AGREEMENT_MIN:.0%} are needed"
        if not self.logits_error <= LOGITS_ERROR_MAX:
            return (
                f"its logits error is {self.logits_error:.1e}, {LOGITS_ERROR_MAX:.0e} is the most"
            )
        return None

    @property
    def summary(self) -> str:
        """The figures of a check that passed."""
        return f"it kept {self._agreement} of greedy tokens with a logits error of {self._error}"

    @property
    def _agreement(self) -> str:
        return f"{self.greedy_agreement:.2%}"

    @property
    def _error(self) -> str:
        return f"{self.logits_error:.1e}"


@dataclass(frozen=True, slots=True)
class LosslessTrial:
    """Effect of lossless packing on the texts of a check, and the slowest link that it would be
    used on."""

    size_ratio: float
    """Packed over raw bytes."""
    encode_bytes_per_s: float
    """Raw bytes."""
    decode_bytes_per_s: float
    """Raw bytes."""
    link_bytes_per_s: float

    def __post_init__(self) -> None:
        rates = (self.encode_bytes_per_s, self.decode_bytes_per_s, self.link_bytes_per_s)
        if not all(figure > 0 for figure in (self.size_ratio, *rates)):
            raise ValueError(f"a trial has a size and speeds above 0, got {self}")

    @property
    def time_saved(self) -> float:
        """Share of the time that the raw bytes would take on the link; negative for a loss."""
        packing = self.link_bytes_per_s / self.encode_bytes_per_s
        unpacking = self.link_bytes_per_s / self.decode_bytes_per_s
        return 1 - self.size_ratio - packing - unpacking

    @property
    def summary(self) -> str:
        """Effect on the link's bytes and time, as a clause."""
        does = "saves" if self.time_saved >= 0 else "costs"
        mbps = self.link_bytes_per_s * 8 / 1e6
        return (
            f"lossless makes {self.size_ratio:.2f} of the bytes and, with the time to pack and "
            f"unpack them, {does} {abs(self.time_saved):.0%} of the time that a link of "
            f"{mbps:,.{0 if mbps >= 10 else 1}f} Mbps takes"
        )


@dataclass(frozen=True, slots=True)
class CodecDecision:
    """The codec of a ring's links."""

    codec: str
    reason: str
    """Sentence for a person who reads GET /cluster."""
    check_passed: bool | None
    """Whether the wanted codec passed its check; None where there was none."""


def choose_codec(
    wanted: str, check: CodecCheck | None, lossless: LosslessTrial | None = None
) -> CodecDecision:
    """The codec for what a user asked (`--wire`), given what was measured at load.

    A missing check counts as failed, a missing trial as no gain. Raises ValueError for a wish that
    is not one of CODEC_CHOICES.
    """
    if wanted not in CODEC_CHOICES:
        raise ValueError(
            f"the wire codec must be one of {', '.join(CODEC_CHOICES)}, got {wanted!r}"
        )
    if wanted != "auto":
        return _as_asked(wanted, check)
    fault = "it was not checked"
    if check is not None and check.codec == "int8":
        if check.fault is None:
            return CodecDecision("int8", f"int8 passed its check: {check.summary}.", True)
        fault = check.fault
    checked = None if check is None or check.codec != "int8" else False
    return _without_loss(f"int8 is out, {fault}", checked, lossless)


def _as_asked(wanted: str, check: CodecCheck | None) -> CodecDecision:
    if wanted in ("raw", "lossless"):
        return CodecDecision(wanted, f"{wanted} as asked; it changes no bit.", None)
    if check is None or check.codec != wanted:
        return CodecDecision(wanted, f"{wanted} as asked, not checked.", None)
    if check.fault is None:
        return CodecDecision(wanted, f"{wanted} as asked; {check.summary}.", True)
    return CodecDecision(wanted, f"{wanted} as asked, but its check failed: {check.fault}.", False)


def _without_loss(
    why_not_int8: str, check_passed: bool | None, trial: LosslessTrial | None
) -> CodecDecision:
    if trial is None:
        reason = f"{why_not_int8}; lossless was not tried, so raw."
        return CodecDecision("raw", reason, check_passed)
    if trial.time_saved < TIME_SAVED_MIN:
        reason = (
            f"{why_not_int8}; {trial.summary}, where it must save {TIME_SAVED_MIN:.0%}, so raw."
        )
        return CodecDecision("raw", reason, check_passed)
    return CodecDecision("lossless", f"{why_not_int8}; {trial.summary}.", check_passed)
