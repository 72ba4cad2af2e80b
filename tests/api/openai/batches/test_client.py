"""OpenAI's own client, unmodified: files and batches from the upload to the answers."""

import openai
import pytest

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
