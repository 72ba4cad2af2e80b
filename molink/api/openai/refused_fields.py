"""Fields that would change the answer and are not honoured, each with the values that change
nothing.

They come from OpenAI's requests and from those of other servers (vLLM, llama.cpp, Text Generation
Inference), whose clients send them here. With one of the values given, or null, a field is dropped;
with any other the request is refused, because an answer that silently lacks what was asked for is
worse than an error. A field that stands in no list and no schema changes nothing, as far as we
know: it is ignored, and named in the answer's headers (`headers.ignored_fields`).
"""

from collections.abc import Mapping
from typing import Any

FieldDefaults = Mapping[str, tuple[Any, ...]]

NO_LIMITS = (-1, -2)
"""Lengths that clients of other servers send for "as much as fits"."""

OTHER_LENGTHS = ("max_new_tokens", "n_predict", "num_predict")
"""Names of max_tokens elsewhere, served with one of NO_LIMITS."""

_LENGTH_UNDER_OTHER_NAMES: FieldDefaults = {
    "max_gen_len": (),
    "max_length": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    **dict.fromkeys(OTHER_LENGTHS, NO_LIMITS),
    "stop_sequences": ([],),
    "thinking_token_budget": (),
}

_SAMPLING: FieldDefaults = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "tfs_z": (1,),
    "top_a": (0,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "xtc_probability": (0,),
}

_GRAMMARS_UNDER_OTHER_NAMES: FieldDefaults = {
    "grammar": ("",),
    "json_schema": (),
}

_WHAT_IS_SHOWN: FieldDefaults = {
    "include_stop_str_in_output": (False,),
    "n_probs": (0,),
    "prompt_embeds": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (-1,),
    "tokenizer": (),
}

OF_ALL_ENDPOINTS: FieldDefaults = {
    **_LENGTH_UNDER_OTHER_NAMES,
    **_SAMPLING,
    **_GRAMMARS_UNDER_OTHER_NAMES,
    **_WHAT_IS_SHOWN,
}

_OF_CONVERSATIONS: FieldDefaults = {"messages": (), "tools": ([],), "max_completion_tokens": ()}
"""Somebody has taken the wrong endpoint."""

OF_GENERATE: FieldDefaults = {
    **OF_ALL_ENDPOINTS,
    **_OF_CONVERSATIONS,
    "best_of": (1,),
    "echo": (False,),
    "n": (1,),
    "stream_options": ({},),
    "suffix": ("",),
    "top_logprobs": (),
}

OF_COMPLETIONS: FieldDefaults = {
    **OF_ALL_ENDPOINTS,
    **_OF_CONVERSATIONS,
    "add_special_tokens": (True,),
    "prompt_token_ids": (),
}

OF_CHAT: FieldDefaults = {
    **OF_ALL_ENDPOINTS,
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "modalities": (["text"],),
    "prompt": (),
    "prompt_token_ids": (),
}
