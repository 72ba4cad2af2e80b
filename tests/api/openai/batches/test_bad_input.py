"""Whatever is sent: one sentence, and nothing is lost."""

import asyncio
import json

import openai
import pytest

from molink.api.openai.batches import runner, uploads
from molink.api.openai.batches.lines import LINE_BYTES_MAX, AnswerFile
from tests.api.openai.batches.conftest import CHAT, line, lines_of, made, until


async def codes_of(client, batch):
    told = await lines_of(client, batch.error_file_id)
    return {int(one["id"].rpartition("_")[2]): one["error"]["code"] for one in told if one["error"]}


async def test_broken_lines_go_to_the_error_file_and_the_rest_runs(client):
    lines = [
        line("a"),
        b"{not json\n",
        line("a"),
        line("b", stream=True),
        b"\n",
        line("c").replace(b"POST", b"GET"),
        line("d", "/v1/completions"),
        b'{"method": "POST"}\n',
        b"[" * 1000 + b"\n",
        line("e", padding="x" * LINE_BYTES_MAX),
        line("f", temperature=-1),
        line("g", model="other"),
        line("h").rstrip(b"\n"),
    ]
    batch = await made(client, b"".join(lines))
    batch = await until(client, batch.id, "completed")
    assert batch.request_counts.total == len(lines) - 1
    assert await codes_of(client, batch) == {
        2: "invalid_json_line",
        3: "duplicate_custom_id",
        4: "invalid_body",
        6: "mismatched_endpoint",
        7: "mismatched_endpoint",
        8: "invalid_custom_id",
        9: "invalid_json_line",
        10: "line_too_long",
    }
    answered = {one["custom_id"] for one in await lines_of(client, batch.output_file_id)}
    assert answered == {"a", "h"}
    refused = [one for one in await lines_of(client, batch.error_file_id) if one["response"]]
    assert {one["custom_id"]: one["response"]["status_code"] for one in refused} == {
        "f": 400,
        "g": 404,
    }
    assert all(one["response"]["body"]["error"]["message"] for one in refused)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 10)


async def test_a_file_of_a_million_lines_is_refused_before_it_is_kept(client, tmp_path):
    content = b"{}\n" * 1_000_000
    with pytest.raises(openai.APIStatusError, match="50000 lines") as caught:
        await client.files.create(file=content, purpose="batch")
    assert caught.value.status_code == 413
    assert not list((tmp_path / "batches" / "files").iterdir())
    assert (await client.files.list()).data == []


async def test_forms_that_are_none(client, monkeypatch):
    with pytest.raises(openai.BadRequestError, match="'purpose'"):
        await client.files.create(file=b"{}", purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="no line"):
        await client.files.create(file=b"\n\n", purpose="batch")
    monkeypatch.setattr(uploads, "OWNER_BYTES_MAX", 10)
    await client.files.create(file=b"{}" * 5, purpose="batch")
    with pytest.raises(openai.APIStatusError, match="delete some"):
        await client.files.create(file=b"{}", purpose="batch")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"endpoint": "/v1/embeddings"}, 400, "not served in batches"),
        ({"completion_window": "0h"}, 400, "end in the future"),
        ({"completion_window": "-1h"}, 400, "end in the future"),
        ({"completion_window": "99d"}, 400, "end in the future"),
        ({"input_file_id": "file-none"}, 404, "no file of yours"),
        ({"metadata": {"a": "x" * 513}}, 400, "metadata"),
    ],
)
async def test_batches_that_cannot_be(client, fields, status, words):
    file = await client.files.create(file=line("a"), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | fields
    with pytest.raises(openai.APIStatusError, match=words) as caught:
        await client.batches.create(**asked)
    assert caught.value.status_code == status
    assert (await client.batches.list()).data == []


async def test_a_window_that_is_over_keeps_what_was_done(client, service):
    service.events_before_hold = 2
    batch = await made(client, line("a", max_tokens=2) + line("b", max_tokens=9), window="2s")
    batch = await until(client, batch.id, "expired")
    assert [one["custom_id"] for one in await lines_of(client, batch.output_file_id)] == ["a"]
    assert await codes_of(client, batch) == {2: "batch_expired"}
    assert not service.request_log.live


async def test_cancelling_keeps_what_was_done_and_ends_the_rest(client, service):
    service.events_before_hold = 2
    batch = await made(client, line("a", max_tokens=2) + line("b", max_tokens=9))
    async with asyncio.timeout(10):
        while (await client.batches.retrieve(batch.id)).request_counts.completed < 1:  # noqa: ASYNC110 - a server
            await asyncio.sleep(0.02)
    with pytest.raises(openai.ConflictError, match="cancel that first"):
        await client.files.delete(batch.input_file_id)
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    batch = await until(client, batch.id, "cancelled")
    assert [one["custom_id"] for one in await lines_of(client, batch.output_file_id)] == ["a"]
    assert await codes_of(client, batch) == {2: "batch_cancelled"}
    with pytest.raises(openai.ConflictError, match="already"):
        await client.batches.cancel(batch.id)
    await client.files.delete(batch.input_file_id)


async def test_a_full_disk_refuses_uploads_and_holds_answers_back(client, monkeypatch):
    monkeypatch.setattr(runner, "RETRY_S", 0.1)
    batch_file = await client.files.create(file=line("a") + b"broken\n", purpose="batch")
    whole = AnswerFile.append

    def full(self, answer):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AnswerFile, "append", full)
    monkeypatch.setattr(uploads, "FREE_BYTES_MIN", 2**70)
    with pytest.raises(openai.InternalServerError, match="disk is full") as caught:
        await client.files.create(file=line("a"), purpose="batch")
    assert caught.value.status_code == 507
    batch = await client.batches.create(
        input_file_id=batch_file.id, endpoint=CHAT, completion_window="24h"
    )
    await asyncio.sleep(0.5)
    assert (await client.batches.retrieve(batch.id)).request_counts.completed == 0
    monkeypatch.setattr(AnswerFile, "append", whole)
    batch = await until(client, batch.id, "completed")
    assert [one["custom_id"] for one in await lines_of(client, batch.output_file_id)] == ["a"]
    assert await codes_of(client, batch) == {2: "invalid_json_line"}


def test_an_answer_is_written_whole_or_not_at_all(tmp_path):
    file = AnswerFile(tmp_path / "out")
    file.append({"id": "x_1"})
    with file.path.open("ab") as torn:
        torn.write(b'{"id": "x_2", "cus')
    assert list(file.mended()) == [{"id": "x_1"}]
    file.append({"id": "x_2"})
    assert [json.loads(one)["id"] for one in file.path.read_text().splitlines()] == ["x_1", "x_2"]
