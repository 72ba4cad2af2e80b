"""How a coordinator starts."""

import threading

import pytest

from molink.config.up_settings import UpSettings
from molink.errors import UserError
from molink.runtime.cluster import start


async def test_the_model_is_read_beside_the_loop_and_before_there_is_a_broker(
    tmp_path, monkeypatch
):
    """Reading a tokenizer takes seconds, after which a broker gives up a client that is silent."""
    threads = []

    def reads(description):
        threads.append(threading.current_thread())
        raise UserError("far enough")

    monkeypatch.setattr(start, "load_tokenizer", reads)
    monkeypatch.setattr(start, "open_broker", lambda *arguments: pytest.fail("too early"))
    settings = UpSettings("demo", tmp_path, host="127.0.0.1", public_host="127.0.0.1")
    with pytest.raises(UserError, match="far enough"):
        async with start.start_cluster(settings, 8000):
            pass
    assert threads and threads[0] is not threading.main_thread()
