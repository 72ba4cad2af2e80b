"""A model whose layers keep a window, on a ring of three processes: hits, losses, what is told."""

import psutil

from tests.end_to_end.test_lifecycle import asking, kinds_of_events, until_tokens
from tests.engine.tiny_models import generate, save_tiny

WINDOW, PROMPT_TOKENS, HIT_TOKENS = 24, 200, 192


async def test_a_model_with_windows_answers_with_hits_and_through_losses(tools, tmp_path):
    """Each stage is killed in turn, far behind the window's length: the others go on with what
    they hold, and no token is another one than the library's own."""
    model = save_tiny("gemma3_text", tmp_path, sliding_window=WINDOW, max_position_embeddings=1024)
    with tools.serving(str(tmp_path), "--nodes", "3", "--dtype", "float32") as server:
        prompt = [5 + 7 * place % 90 for place in range(PROMPT_TOKENS)]
        body = {"prompt_token_ids": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        expected, cached = generate(model, prompt, 8), []
        for _ in range(3):
            status, answer = await tools.post(server.url, "/generate", body)
            assert (status, answer["token_ids"]) == (200, expected)
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, HIT_TOKENS, HIT_TOKENS]
        stages = (await tools.get(server.url, "/cluster"))["stages"]
        assert all(stage["state_slots_capacity"] > 3 for stage in stages)
        # Six of seven layers keep 4 blocks of a request, the last but one all of its tokens.
        layer_bytes = 2 * 2 * 16 * 4  # Keys and values of two heads in fp32.
        assert sum(stage["kv_request_bytes"] for stage in stages) == 6 * 4 * 16 * layer_bytes
        assert sum(stage["kv_token_bytes"] for stage in stages) == layer_bytes

        asked = asking(tools, server, tokens=120)
        for count, place in enumerate((1, 0, 2)):
            before = await until_tokens(tools, server, 30 + 25 * count)
            psutil.Process(before["stages"][place]["pid"]).kill()
        status, answer = await asked
        assert (status, answer["token_ids"]) == (200, generate(model, [5], 120))
        kinds = await kinds_of_events(tools, server, ring=0)
        assert kinds.count("ring_resumed") == kinds.count("stage_lost") == 3
        assert server.stop() == 0
        assert "".join(server.stderr).count("with the KV of 1 requests") == 3
