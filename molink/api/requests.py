"""From a checked body to the sequences to generate: token ids and sampling parameters.

Short texts are encoded on the spot; a long one goes to a thread, because tokenizing a hundred
thousand characters takes tens of milliseconds in which no other user's token would leave (the
tokenizer releases the interpreter lock meanwhile). Those threads are the API's own: in the pool of
asyncio, which joins, plans and the reading of weights share, a few users with long prompts would
make all of those wait.

The `n` choices of a prompt need different random numbers, and the same ones again when the request
is repeated with its seed. Choice i adds i times an odd constant to the seed: an odd step visits
every 64-bit number once, so no two choices of a request share a seed, and choice 0 gives what the
request gives with n = 1.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.api.schemas import SamplingBody
from molink.serving.model_card import ChatTokenizer, ModelCard
from molink.serving.service import GenerationRequest
from molink.serving.timeline import ARRIVAL, Arrival, RequestTimeline
from molink_scheduler.request import CONTEXT_TOKENS_MAX, SamplingParams
from molink_scheduler.routing.admission import Targets

Result = TypeVar("Result")

WORKERS_MAX = 2
"""Threads. Python's parser keeps the interpreter to itself, 20 ms for a megabyte, so more would
only take turns; tokenizers release it."""

_WORKERS = ThreadPoolExecutor(WORKERS_MAX, thread_name_prefix="api-worker")
"""Threads start with the first work."""

TEXT_CHARS_ON_LOOP_MAX = 8_000
"""Tokenizers take about half a microsecond for each character: 4 ms, less than a decode round."""

PROMPTS_MAX = 64
"""Prompts in one completion request; a client with more sends several requests, which are
batched all the same."""

TOKEN_ID_DIGITS_MAX = 9
"""No vocabulary has a billion words, and long numbers take long to read."""

TOO_LONG = (
    "This model's maximum context length is {length} tokens. However, your prompt has "
    "{prompt_tokens} tokens: shorten it."
)
"""Words for a prompt that is too long: clients of OpenAI's API look for the first sentence, and
shorten the conversation themselves."""

TOP_P_MIN = 1e-9
"""Smallest `top_p`, for which 0 stands too: the likeliest token alone."""

SESSION_KEEP_S = 600
"""How long a session's prompt stays cached: OpenAI keeps prompts five to ten minutes."""

SEED_MODULUS = 2**64
SEED_STEP = 0x9E3779B97F4A7C15
"""Step between seeds, 2**64 divided by the golden ratio, odd: choices' seeds land far apart."""


def check_model(name: str | None, card: ModelCard, elsewhere: Collection[str] = ()) -> None:
    """Raise a 404 unless `name` is absent, or one of the served model's that is not served
    `elsewhere`."""
    if name is not None and (name not in card.names or name in elsewhere):
        raise ApiError(
            f"The model '{name[:NAME_CHARS_SHOWN]}' is not served here: use '{card.shown_name}'.",
            status=404,
            param="model",
            code="model_not_found",
        )


def prompt_list(prompt: Any) -> list[str | list[Any]]:
    """The prompts of a completion request: OpenAI takes a string, strings, token ids, or lists
    of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(one, str) for one in prompt) or all(type(one) is list for one in prompt):
            return _limited(prompt)
        if type(prompt[0]) is int:
            return [prompt]
    raise ApiError(
        "'prompt' must be text or token ids: send a string, a list of strings, a list of whole "
        "numbers or a list of such lists, none of them empty.",
        param="prompt",
    )


def _limited(prompts: list[str | list[Any]]) -> list[str | list[Any]]:
    if len(prompts) > PROMPTS_MAX:
        raise ApiError(
            f"'prompt' holds {len(prompts)} prompts: send at most {PROMPTS_MAX} in one request.",
            param="prompt",
        )
    return prompts


async def tokens_of_prompt(
    prompt: str | list[Any], card: ModelCard, param: str = "prompt"
) -> tuple[int, ...]:
    """Token ids of one prompt, given as text or as token ids."""
    if not isinstance(prompt, str):
        return await tokens_of_ids(prompt, card, param)
    if not prompt:
        raise empty_prompt(param)
    token_ids = await encoded(tokenizer_of(card, param), prompt, add_special_tokens=True)
    if not token_ids:
        raise empty_prompt(param)
    return token_ids


async def tokens_of_ids(token_ids: Any, card: ModelCard, param: str) -> tuple[int, ...]:
    """Token ids of a prompt that is given as such. Raises ApiError for what is no list of them."""
    size = len(token_ids) if isinstance(token_ids, list) else 0
    return await on_loop_or_thread(size, partial(checked_token_ids, token_ids, card, param))


def checked_token_ids(token_ids: Any, card: ModelCard, param: str) -> tuple[int, ...]:
    """`token_ids` as a tuple, when it is a list of ids of this model's vocabulary and not empty."""
    if type(token_ids) is not list or not all(type(one) is int for one in token_ids):
        raise ApiError(
            f"'{param}' must be a list of whole numbers: send token ids in brackets.", param=param
        )
    if not token_ids:
        raise empty_prompt(param)
    if min(token_ids) < 0 or max(token_ids) >= card.vocabulary_size:
        wrong = next(one for one in token_ids if not 0 <= one < card.vocabulary_size)
        raise ApiError(
            f"'{param}' holds the token id {str(wrong)[:NAME_CHARS_SHOWN]}, which is outside the "
            f"vocabulary: use 0 to {card.vocabulary_size - 1}.",
            param=param,
        )
    return tuple(token_ids)


async def encoded(
    tokenizer: ChatTokenizer, text: str, *, add_special_tokens: bool
) -> tuple[int, ...]:
    """Token ids of a text, which may be empty."""
    encode = partial(tokenizer.encode, text, add_special_tokens=add_special_tokens)
    return tuple(await on_loop_or_thread(len(text), encode))


async def in_worker(work: Callable[[], Result]) -> Result:
    """Result of `work`, done in a thread after what was asked for before."""
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)


async def on_loop_or_thread(size: int, work: Callable[[], Result]) -> Result:
    """Result of `work`, which takes longer the more characters or token ids there are."""
    return work() if size <= TEXT_CHARS_ON_LOOP_MAX else await in_worker(work)


def tokenizer_of(card: ModelCard, param: str) -> ChatTokenizer:
    """The model's tokenizer. Raises ApiError when it has none."""
    if card.tokenizer is None:
        raise ApiError(
            "This model has no tokenizer: send token ids instead of text ('prompt_token_ids' to "
            "/generate, or a list of integers as the 'prompt' of /v1/completions).",
            param=param,
        )
    return card.tokenizer


def empty_prompt(param: str) -> ApiError:
    """Error about a prompt without a token, which `param` holds."""
    return ApiError(f"'{param}' is empty: send at least one token.", param=param)


def choice_seed(seed: int, choice: int) -> int:
    """The 64-bit seed of one choice; negative seeds wrap around."""
    return (seed + choice * SEED_STEP) % SEED_MODULUS


def token_budget(
    asked: int | None,
    prompt_tokens: int,
    card: ModelCard,
    *,
    param: str,
    default: int | None = None,
    too_long: str = TOO_LONG,
) -> int:
    """max_tokens of a request: what is `asked` for, or the `default`, cut to what is left of the
    model's length (None: all that is left). `param` holds the prompt. Raises ApiError, in the
    words `too_long` of the dialect, where nothing is left."""
    left = card.model_len_max - prompt_tokens
    if left <= 0:
        words = too_long.format(prompt_tokens=prompt_tokens, length=card.model_len_max)
        raise ApiError(
            f"{words} {card.bound}".rstrip(),
            param=param,
            code="context_length_exceeded",
        )
    wanted = default if asked is None else asked
    return left if wanted is None else min(wanted, left)


def generation_requests(
    prompt_token_ids: tuple[int, ...],
    body: SamplingBody,
    card: ModelCard,
    *,
    max_tokens: int,
    logprobs: int | None,
    usual_priority: int,
    grammar: str = "",
    choices: int = 1,
    skip_special_tokens: bool = True,
    quiet: tuple[tuple[str, str, bool], ...] = (),
    prompt_logprobs: int | None = None,
    continues: bool = True,
) -> list[GenerationRequest]:
    """One request for each choice of a prompt; without a seed, each prompt draws its own.
    `grammar` is checked (`grammars.fields`); `usual_priority` is the caller's; `quiet`: where stop
    strings end nothing; `continues`: whether answers go on with the prompt's text."""
    card.check_token_ids(prompt_token_ids)
    seed = secrets.randbits(64) if body.seed is None else body.seed
    _check_stop_text(body, card)
    sampling = SamplingParams(
        **_drawn(body, card),
        max_tokens=max_tokens,
        stop_token_ids=_stop_token_ids(body, card),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        min_tokens=_min_tokens(body, max_tokens),
        grammar=grammar,
        quiet=quiet if body.stop else (),
        context=prompt_token_ids[-CONTEXT_TOKENS_MAX:] if continues else (),
        skip_special_tokens=skip_special_tokens and body.skip_special_tokens is not False,
        kv_budget=_kv_budget(body, card),
    )
    return [
        GenerationRequest(
            prompt_token_ids,
            replace(sampling, seed=choice_seed(seed, choice)),
            priority=usual_priority if body.priority is None else body.priority,
            deadline_at=_deadline_at(body.timeout_s),
            **_cached(body, len(prompt_token_ids)),
            timeline=RequestTimeline(card.name, len(prompt_token_ids), max_tokens),
            targets=_targets(body),
        )
        for choice in range(choices)
    ]


def _drawn(body: SamplingBody, card: ModelCard) -> dict[str, Any]:
    """How tokens are drawn, as the request says, else as the model's makers publish; and which
    texts end them."""
    drawn = {
        name: usual if (given := getattr(body, name)) is None else given
        for name, usual in asdict(card.sampling).items()
    }
    return drawn | {
        "top_p": max(drawn["top_p"], TOP_P_MIN),
        "frequency_penalty": body.frequency_penalty or 0.0,
        "presence_penalty": body.presence_penalty or 0.0,
        "logit_bias": _logit_bias(body, card),
        "stop": tuple(body.stop or ()),
    }


def _cached(body: SamplingBody, prompt_tokens: int) -> Mapping[str, Any]:
    """Who may begin with what is computed of a prompt, and how long it is to stay."""
    session = body.prompt_cache_key or ""
    wishes = ((prompt_tokens, SESSION_KEEP_S),) if session else ()
    return {"cache_salt": body.cache_salt or "", "session": session, "wishes": wishes}


def _kv_budget(body: SamplingBody, card: ModelCard) -> float:
    budget = 1.0 if body.kv_budget is None else body.kv_budget
    if budget < 1 and card.has_latents:
        raise ApiError(
            "This model keeps one latent row of each token, which is small already and is not cut: "
            "leave 'kv_budget' out.",
            param="kv_budget",
        )
    return budget


def _min_tokens(body: SamplingBody, max_tokens: int) -> int:
    if (body.min_tokens or 0) > max_tokens:
        raise ApiError(
            f"'min_tokens' is {body.min_tokens}, and the answer may have {max_tokens} tokens: ask "
            "for fewer, or for more in all.",
            param="min_tokens",
        )
    return body.min_tokens or 0


def _deadline_at(timeout_s: float | None) -> float | None:
    """Deadline counted from the arrival of the HTTP request that this task serves."""
    if timeout_s is None:
        return None
    return (ARRIVAL.get() or Arrival()).at + timeout_s


def _targets(body: SamplingBody) -> Targets:
    return Targets.of_ms(body.ttft_target_s, body.tpot_target_ms, body.tbt_target_ms)


def _logit_bias(body: SamplingBody, card: ModelCard) -> tuple[tuple[int, float], ...]:
    """The biases by token id; "7" and "07" are the same, of which the last counts."""
    biases = {_biased_token(key, card): bias for key, bias in (body.logit_bias or {}).items()}
    return tuple(biases.items())


def _biased_token(key: str, card: ModelCard) -> int:
    token_id = (
        int(key) if key.isascii() and key.isdigit() and len(key) <= TOKEN_ID_DIGITS_MAX else -1
    )
    if 0 <= token_id < card.vocabulary_size:
        return token_id
    raise ApiError(
        f"'logit_bias' names '{key[:NAME_CHARS_SHOWN]}', which is no token id of this model: use "
        f"0 to {card.vocabulary_size - 1}, in quotes.",
        param="logit_bias",
    )


def _stop_token_ids(body: SamplingBody, card: ModelCard) -> tuple[int, ...]:
    given = body.stop_token_ids
    own = checked_token_ids(given, card, "stop_token_ids") if given else ()
    ends = () if body.ignore_eos else card.eos_token_ids
    return tuple(dict.fromkeys(own + ends))


def _check_stop_text(body: SamplingBody, card: ModelCard) -> None:
    if body.stop and card.tokenizer is None:
        raise ApiError(
            "This model has no tokenizer, so its answers hold no text to stop at: use "
            "'stop_token_ids'.",
            param="stop",
        )
