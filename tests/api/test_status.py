"""The GET endpoints: what is served, whether it can serve, and what has happened."""

import asyncio
from dataclasses import replace

import pytest

from molink.api.status import cluster_body
from tests.api.conftest import CARD, FakeService

ID = "X-Request-Id"


async def test_health_follows_the_service(service, serve, http):
    url = await serve(service)
    async with http.get(f"{url}/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    service.unready_reason = "stage 2 is loading"
    async with http.get(f"{url}/health") as response:
        assert response.status == 503
        assert (await response.json())["reason"] == "stage 2 is loading"


async def test_cluster_is_the_services(service, serve, http):
    async with http.get(f"{await serve(service)}/cluster") as response:
        assert await response.json() == cluster_body(service.cluster())


async def test_models(service, serve, http):
    url = await serve(service)
    async with http.get(f"{url}/v1/models") as response:
        (entry,) = (await response.json())["data"]
    assert entry["id"] == "tiny/model" and entry["vocabulary_size"] == 300
    for path in ("tiny/model", "tiny%2Fmodel"):
        async with http.get(f"{url}/v1/models/{path}") as response:
            assert await response.json() == entry
    async with http.get(f"{url}/v1/models/other") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


async def test_requests_are_shown_while_they_run_and_after(serve, http):
    service = FakeService(events_before_hold=2)
    url = await serve(service)
    body = {"prompt": "abc", "max_tokens": 5}
    ask = asyncio.create_task(http.post(f"{url}/generate", json=body, headers={ID: "my own id"}))
    await service.holding.acquire()
    (live,) = await requests_at(http, url)
    assert (live["id"], live["state"], live["tokens"]) == ("my own id", "decode", 2)
    assert (live["prompt_tokens"], live["answer_tokens_max"]) == (4, 5)
    ask.cancel()
    await service.closed.acquire()
    (ended,) = await requests_at(http, url)
    assert (ended["state"], ended["finish_reason"]) == ("ended", "cancelled")


async def requests_at(http, url):
    async with http.get(f"{url}/cluster/requests") as response:
        return (await response.json())["requests"]


async def test_choices_of_a_request_have_its_id_and_their_index(service, serve, http):
    url = await serve(service)
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 1}
    async with http.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200
    shown = await requests_at(http, url)
    assert sorted(one["choice"] for one in shown) == [0, 1, 2, 3]
    assert len({one["id"] for one in shown}) == 1


@pytest.mark.parametrize("own_id", ["", "x" * 129])
async def test_an_unusable_request_id_is_replaced(own_id, service, serve, http):
    url = await serve(service)
    async with http.post(f"{url}/generate", json={"prompt": "a"}, headers={ID: own_id}):
        pass
    (shown,) = await requests_at(http, url)
    assert len(shown["id"]) == 24


async def test_events_are_read_from_where_the_reader_was(service, serve, http):
    url = await serve(service)
    service.events.add("node_joined", "anna is here", node="anna")
    service.events.add("ring_ended", "ring 0 has ended", ring=0)
    first = await events_at(http, f"{url}/cluster/events")
    assert [(one["seq"], one["kind"], one["node"], one["ring"]) for one in first["events"]] == [
        (1, "node_joined", "anna", None),
        (2, "ring_ended", "", 0),
    ]
    service.events.add("ready", "requests are answered")
    then = await events_at(http, f"{url}/cluster/events?after={first['next']}")
    assert [one["text"] for one in then["events"]] == ["requests are answered"]
    assert then["next"] == 3


async def events_at(http, url):
    async with http.get(url) as response:
        assert response.status == 200
        return await response.json()


async def test_findings_are_told_with_since_when_and_what_to_do(service, serve, http):
    url = await serve(service)
    assert (await events_at(http, f"{url}/cluster/findings"))["findings"] == []
    report = replace(service.cluster(), intake_paused=True, unix_s=1000.0)
    for at in (50.0, 53.0):
        service.watch.note(at, replace(report, unix_s=950 + at))
    (found,) = (await events_at(http, f"{url}/cluster/findings"))["findings"]
    assert found == {
        "id": "intake_paused",
        "kind": "intake_paused",
        "severity": "warning",
        "since_unix_s": 1000.0,
        "subject": "",
        "sentence": "The intake is paused: new requests are refused.",
        "remedy": "Open it when you want: key p of the dashboard.",
    }
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    assert 'molink_finding{finding="intake_paused",severity="warning"} 1.0' in text
    assert 'molink_finding{finding="refusals",severity="bad"} 0.0' in text


@pytest.mark.parametrize("after", ["-1", "two", "1" * 16, "²"])
async def test_events_after_no_number_are_refused(after, service, serve, http):
    url = await serve(service)
    async with http.get(f"{url}/cluster/events", params={"after": after}) as response:
        assert response.status == 400
        assert "is the number of an event" in (await response.json())["error"]["message"]


async def test_each_name_of_the_model_is_listed_and_taken(serve, http):
    card = replace(CARD, served_names=("tiny", "gpt-4"))
    url = await serve(FakeService(card=card))
    async with http.get(f"{url}/v1/models") as response:
        entries = (await response.json())["data"]
    assert [entry["id"] for entry in entries] == ["tiny", "gpt-4"]
    for entry in entries:
        assert entry["root"] == "tiny/model"
        assert entry["max_model_len"] == entry["context_length"] == 200
        async with http.get(f"{url}/v1/models/{entry['id']}") as response:
            assert await response.json() == entry
        body = {"model": entry["id"], "prompt": "a"}
        async with http.post(f"{url}/v1/completions", json=body) as response:
            assert (await response.json())["model"] == "tiny"
    body = {"model": "tiny/model", "prompt": "a"}
    async with http.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 404
        assert "use 'tiny'" in (await response.json())["error"]["message"]
