"""OpenAI's own client, unmodified: files and batches from the upload to the answers."""

import sqlite3
from contextlib import closing

import openai
import pytest

from molink.api.openai.batches.store import FILE_NAME, KEPT_S, MIGRATIONS, BatchStore
from molink.control.sqlite_file import open_database
from tests.api.openai.batches.conftest import CHAT, line, lines_of, made, until


async def test_files_are_kept_listed_read_and_removed(client):
    content = line("a") + line("b")
    file = await client.files.create(file=("asked.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(content), "asked.jsonl", "batch")
    assert (await client.files.retrieve(file.id)).id == file.id
    assert (await client.files.content(file.id)).content == content
    other = await client.files.create(file=b"{}\n", purpose="batch")
    listed = [one.id async for one in client.files.list(limit=1)]
    assert listed == [other.id, file.id]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError, match="no file"):
        await client.files.content(file.id)


@pytest.mark.parametrize("endpoint", [CHAT, "/v1/completions", "/v1/responses"])
async def test_a_batch_from_file_to_answers(client, service, endpoint):
    body = {"input": "x", "max_output_tokens": 3} if endpoint == "/v1/responses" else {}
    content = b"".join(line(name, endpoint, **body) for name in "abc")
    if body:
        content = content.replace(b'"max_tokens": 3, ', b"").replace(b'"messages"', b'"metadata_"')
    batch = await made(client, content, endpoint)
    assert batch.status == "validating" and batch.request_counts.total == 3
    batch = await until(client, batch.id, "completed")
    told = await lines_of(client, batch.output_file_id)
    assert batch.error_file_id is None, await lines_of(client, batch.error_file_id)
    assert {one["custom_id"] for one in told} == set("abc")
    for one in told:
        assert one["error"] is None and one["response"]["status_code"] == 200
        assert one["response"]["body"]["usage"] is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 3, 0)
    assert [one.priority for one in service.requests] == [2**31 - 1] * 3
    assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]


async def test_files_expire_when_their_owner_says(client, tmp_path):
    asked = {"anchor": "created_at", "seconds": 3600}
    content = line("a")
    file = await client.files.create(file=content, purpose="batch", expires_after=asked)
    assert file.expires_at == file.created_at + 3600
    batch = await client.batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    batch = await until(client, batch.id, "completed")
    output = await client.files.retrieve(batch.output_file_id)
    assert output.expires_at == output.created_at + 7200
    with closing(sqlite3.connect(tmp_path / "batches" / "batches.sqlite")) as db, db:
        db.execute("UPDATE files SET expires = created WHERE id = ?", (file.id,))
    with pytest.raises(openai.NotFoundError, match="no file"):
        await client.files.retrieve(file.id)
    assert not (tmp_path / "batches" / "files" / file.id).exists()
    assert [one.id async for one in client.files.list()] == [output.id]


@pytest.mark.parametrize("seconds", [0, 3599, 2592001, "soon"])
async def test_another_expiry_is_refused_by_a_sentence(client, seconds):
    asked = {"anchor": "created_at", "seconds": seconds}
    with pytest.raises(openai.BadRequestError, match="'expires_after' must have"):
        await client.files.create(file=line("a"), purpose="batch", expires_after=asked)


def test_files_of_an_older_store_are_kept_as_long_as_before(tmp_path):
    with closing(open_database(tmp_path / FILE_NAME, MIGRATIONS[:1])) as db, db:
        db.execute("INSERT INTO files VALUES ('file-1', '', 'a.jsonl', 'batch', 3, 1, 1000)")
    with closing(BatchStore.open(tmp_path)) as store:
        assert [one.expires for one in store.files("")] == [1000 + KEPT_S]
