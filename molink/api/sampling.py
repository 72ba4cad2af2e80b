"""From a checked body to the `SamplingParams` of each choice: defaults, seeds, stops and lengths.

The `n` choices of a prompt need different random numbers, and the same ones again when the request
is repeated with its seed. Choice i adds i times an odd constant to the seed: an odd step visits
every 64-bit number once, so no two choices of a request share a seed, and choice 0 gives what the
request gives with n = 1.
"""

import secrets
from collections.abc import Iterator

from molink.api.errors import ApiError
from molink.api.prompts import checked_token_ids
from molink.api.schemas import SamplingBody
from molink.serving.service import GenerationRequest, ModelCard
from molink_scheduler.request import SamplingParams

__all__ = ["choice_seed", "generation_requests", "token_budget"]

SEED_MODULUS = 2**64
SEED_STEP = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, odd: neighbouring choices land far apart."""


def choice_seed(seed: int, choice: int) -> int:
    """The 64-bit seed of one choice; negative seeds wrap around."""
    return (seed + choice * SEED_STEP) % SEED_MODULUS


def token_budget(
    asked: int | None, prompt_tokens: int, card: ModelCard, *, default: int | None, param: str
) -> int:
    """max_tokens of a request; `default` is cut to what is left of the model's length (None: all
    that is left)."""
    left = card.model_len_max - prompt_tokens
    if asked is None and left > 0:
        return left if default is None else min(default, left)
    if asked is None:
        raise ApiError(
            f"The prompt's {prompt_tokens} tokens leave no room to answer in the model's length "
            f"of {card.model_len_max}: shorten the prompt.",
            param=param,
            code="context_length_exceeded",
        )
    wanted = asked
    if wanted <= left:
        return wanted
    raise ApiError(
        f"The prompt's {prompt_tokens} tokens and {wanted} tokens to generate are over the model's "
        f"length of {card.model_len_max}: shorten the prompt or lower '{param}'.",
        param=param,
        code="context_length_exceeded",
    )


def generation_requests(
    prompt_token_ids: tuple[int, ...],
    body: SamplingBody,
    card: ModelCard,
    *,
    max_tokens: int,
    logprobs: int | None,
    choices: int = 1,
) -> Iterator[GenerationRequest]:
    """One request for each choice of a prompt; without a seed, each prompt draws its own."""
    seed = secrets.randbits(64) if body.seed is None else body.seed
    stop_token_ids = _stop_token_ids(body, card)
    _check_stop_text(body, card)
    for choice in range(choices):
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=_or(body.temperature, 1.0),
            top_p=_or(body.top_p, 1.0),
            top_k=body.top_k or 0,
            min_p=_or(body.min_p, 0.0),
            seed=choice_seed(seed, choice),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            presence_penalty=_or(body.presence_penalty, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            stop=tuple(body.stop or ()),
            stop_token_ids=stop_token_ids,
            logprobs=logprobs,
        )
        yield GenerationRequest(prompt_token_ids, sampling)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop_token_ids(body: SamplingBody, card: ModelCard) -> tuple[int, ...]:
    own = (
        checked_token_ids(body.stop_token_ids, card, "stop_token_ids")
        if body.stop_token_ids
        else ()
    )
    ends = () if body.ignore_eos else card.eos_token_ids
    return tuple(dict.fromkeys(own + ends))


def _check_stop_text(body: SamplingBody, card: ModelCard) -> None:
    if body.stop and card.tokenizer is None:
        raise ApiError(
            "This model has no tokenizer, so its answers hold no text to stop at: use "
            "'stop_token_ids'.",
            param="stop",
        )
