"""Each key sees its own files and batches; what was answered outlives the server."""

import asyncio
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import openai
import pytest

from molink.api.access import Access
from molink.api.callers import CALLERS
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore
from molink.api.openai.batches import runner
from molink.api.openai.batches.asking import owners_caller
from molink.api.openai.batches.endpoint import FOLDER
from molink.api.openai.batches.store import BatchStore
from molink.tasks import cancel
from tests.api.openai.batches.conftest import CHAT, line, lines_of, made, until


def client_of(url, key="none"):
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def keys(tmp_path):
    with closing(KeyStore.open(tmp_path)) as store, closing(KeyStore.open(tmp_path)) as read:
        yield store, LiveKeys(read)


async def test_each_key_sees_its_own(service, start, keys):
    store, live = keys
    made_keys = [
        store.create(1.0, scope=one) for one in ("inference", "inference", "admin", "watch")
    ]
    url, _ = await start(service, Access(live))
    own, other, admin, watch = (client_of(url, secret) for _, secret in made_keys)
    batch = await made(own, line("a"))
    batch = await until(own, batch.id, "completed")
    assert service.requests[0].key_id == made_keys[0][0].key_id
    assert live.usage(made_keys[0][0]).answer_tokens == 3
    for client in (other, admin):
        assert (await client.files.list()).data == [] == (await client.batches.list()).data
        for call in (
            client.files.content(batch.output_file_id),
            client.files.retrieve(batch.input_file_id),
            client.files.delete(batch.input_file_id),
            client.batches.retrieve(batch.id),
            client.batches.cancel(batch.id),
            client.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
    with pytest.raises(openai.PermissionDeniedError, match="scope"):
        await watch.files.list()


async def test_a_batch_does_not_count_among_its_owners_requests(service, start, keys):
    service.events_before_hold = 1
    store, live = keys
    url, _ = await start(service, Access(live))
    _, secret = store.create(1.0, concurrency=1)
    async with client_of(url, secret) as client:
        batch = await made(client, line("a") + line("b"))
        await service.holding.acquire()
        service.goes_on.set()
        answer = await client.completions.create(model="tiny/model", prompt="x", max_tokens=2)
        assert answer.choices[0].text == "ab"
        batch = await until(client, batch.id, "completed")
        assert batch.request_counts.failed == 0


async def test_a_batch_fails_when_its_owners_key_is_revoked(
    service, start, keys, monkeypatch, tmp_path
):
    monkeypatch.setattr(runner, "CHECKED_S", 0.0)
    service.events_before_hold = 1
    store, live = keys
    key, secret = store.create(1.0)
    url, stop = await start(service, Access(live))
    async with client_of(url, secret) as client:
        batch = await made(client, line("a"))
        await service.holding.acquire()
    store.revoke(key.key_id, 2.0)
    async with asyncio.timeout(20):
        await service.closed.acquire()
        with closing(BatchStore.open(tmp_path / FOLDER)) as written:
            while any(one.batch_id == batch.id for one in written.unfinished()):  # noqa: ASYNC110 - a server
                await asyncio.sleep(0.02)
            (ended,) = written.batches(str(key.key_id))
    assert ended.api_object["status"] == "failed"
    await stop()


async def test_a_batch_rests_once_its_owners_key_has_had_its_tokens(keys):
    store, live = keys
    key, _ = store.create(1.0, tokens_per_day=1000)
    app = {CALLERS: SimpleNamespace(keys=live, shares_cache=False)}
    assert owners_caller(app, key.key_id).has_tokens
    live.usage(key).answer_tokens = 1000
    caller = owners_caller(app, key.key_id)
    assert not caller.has_tokens
    record = SimpleNamespace(api_object={"endpoint": CHAT, "expires_at": 10.0})
    answers = SimpleNamespace(done=set(), custom_ids=set())
    opened = runner.OpenBatch(record, caller, answers, iter([(1, line("a"))]), 0.0)
    batches = runner.BatchRunner(None, None, None, lambda: True, clock=lambda: 1.0)
    batches._open["batch"] = opened
    await batches._ask_next()
    assert not opened.asked
    opened.caller = replace(caller, has_tokens=True)  # As on the next day.
    await batches._ask_next()
    assert len(opened.asked) == 1
    await cancel(*opened.asked)


async def test_a_server_that_starts_again_asks_only_what_has_no_answer(service, start, tmp_path):
    service.events_before_hold = 2
    url, stop = await start(service)
    content = b"".join(line(name, max_tokens=2) for name in "abc") + line("d") + line("d")
    client = client_of(url)
    batch = await made(client, content)
    await service.holding.acquire()
    while (await client.batches.retrieve(batch.id)).request_counts.failed < 1:
        pass
    await stop()
    asked = len(service.requests)
    service.events_before_hold = None
    url, _ = await start(service)
    client = client_of(url)
    batch = await until(client, batch.id, "completed")
    assert len(service.requests) == asked + 1
    told = await lines_of(client, batch.output_file_id)
    assert sorted(one["custom_id"] for one in told) == ["a", "b", "c", "d"]
    (repeated,) = await lines_of(client, batch.error_file_id)
    assert repeated["error"]["code"] == "duplicate_custom_id"


async def test_a_folder_serves_one_server_at_a_time(service, start):
    await start(service)
    url, _ = await start(service)
    with pytest.raises(openai.InternalServerError, match="already") as caught:
        await client_of(url).files.list()
    assert caught.value.status_code == 503
