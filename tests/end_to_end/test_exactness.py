"""Tokens through the REST API and three processes are the tokens of `generate`.

Here the text models of two checkpoints that take pictures: one whose last layers share KV and read
token ids, one whose first stages keep states only. KV holds two or three requests, the others wait
or are computed again. Published settings in miniature are tried by `make families`, and every
family in one process by tests/engine.
"""

import asyncio

import pytest

from tests.end_to_end.conftest import prompts_of_mixed_length

MAX_TOKENS = 12


@pytest.mark.parametrize("family", ["gemma4 E2B", "qwen3_5"])
async def test_the_text_model_of_a_checkpoint_that_takes_pictures(tools, tmp_path, family):
    from tests.engine.tiny_models import generate
    from tests.engine.tiny_wrappers import save_wrapper

    whole = save_wrapper(family, tmp_path)
    prompts = prompts_of_mixed_length()
    options = ("--nodes", "3", "--layers", "0-1,1-3,3-5", "--dtype", "float32")
    with tools.serving(str(tmp_path), *options, "--kv-tokens", "160", "--span-tokens", "16") as one:
        body = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
        answers = await asyncio.gather(
            *(
                tools.post(one.url, "/generate", {"prompt_token_ids": prompt, **body})
                for prompt in prompts
            )
        )
    expected = [generate(whole, prompt, MAX_TOKENS) for prompt in prompts]
    assert [answer.get("token_ids") for _, answer in answers] == expected
