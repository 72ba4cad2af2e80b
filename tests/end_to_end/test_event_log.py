"""What real stages were told, played again by the simulator's `replay`."""

import asyncio
import time

from molink_sim.replay import replay

REPORTS_WITHIN_S = 10.0
"""A stage writes with its health reports, twice a second."""


async def test_all_that_a_ring_was_told_is_played_again(tools, tiny_llama, tmp_path):
    log = tmp_path / "events"
    options = ("--nodes", "3", "--dtype", "float32", "--event-log", str(log))
    with tools.serving(str(tiny_llama), *options) as server:
        bodies = [
            {"prompt_token_ids": [5 + n] * 20, "max_tokens": 12, "ignore_eos": True}
            for n in range(4)
        ]
        answers = await asyncio.gather(
            *(tools.post(server.url, "/generate", body) for body in bodies)
        )
        assert [status for status, _ in answers] == [200] * 4
        wait_until_written(tmp_path / "events.2")
    for stage in range(3):
        path = tmp_path / f"events.{stage}"
        assert path.stat().st_mode & 0o777 == 0o600, "prompts are in it"
        found = replay(path.read_text().splitlines())
        assert found.calls_count > 50
        assert found.difference is found.error is found.first_refusal is None


def wait_until_written(path) -> None:
    """Until the tail has been told to forget the last request."""
    until = time.monotonic() + REPORTS_WITHIN_S
    while path.read_text().count('"ReleaseArrived"') < 4:
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(1.0)
