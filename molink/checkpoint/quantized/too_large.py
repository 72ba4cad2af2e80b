"""Refusal of a model that is too large for a device or for all PCs: how much it needs, how much
there is, and what to do."""

from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink_scheduler.units import gb_text

FOR_STAGE = "give it fewer layers there, fewer --kv-tokens or another node"
FOR_PC = "ask for fewer --kv-tokens, or share it with other PCs (`molink up`)"

FEWER_BITS = "round the model with `molink import --weights int4`"


def with_advice(sentence: str, declared: DeclaredQuantization) -> str:
    """A refusal that ends with the remedy; where weights are plain, with one remedy more."""
    if declared.method is not None:
        return sentence
    return f"{sentence.removesuffix('.')}; or {FEWER_BITS}."


def stage_refusal(
    what: str,
    needed_bytes: int,
    free_bytes: int,
    place: str,
    kv_tokens: int,
    declared: DeclaredQuantization,
    ways: str,
) -> str:
    """Why `what`, some layers or a model, is not loaded at a place, and the ways out; empty: it
    fits."""
    if needed_bytes <= free_bytes:
        return ""
    sentence = (
        f"{what} with KV for {kv_tokens:,} tokens needs {gb_text(needed_bytes, 2)} {place}, where "
        f"{gb_text(free_bytes, 2)} are free: {ways}."
    )
    return with_advice(sentence, declared)
