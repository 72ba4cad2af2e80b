"""Which pages of other origins may use the API, as a browser asks."""

import pytest

from molink.api.access import Access
from molink.api.headers.cors import CorsRules
from molink.errors import UserError

FRIEND = "https://chat.example:8443"
STRANGER = "https://evil.example"
ALLOWED = "Access-Control-Allow-Origin"
MODELS = "/v1/models"


@pytest.fixture
async def url_for(service, serve):
    async def start(*origins):
        return await serve(service, access=Access(cors=CorsRules.of(origins)))

    return start


def preflight(http, url, origin, headers="authorization, content-type, x-stainless-os"):
    asks = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": headers,
    }
    return http.options(f"{url}/v1/chat/completions", headers=asks)


async def test_a_named_origin_may_ask_and_read(url_for, http):
    url = await url_for(FRIEND)
    async with preflight(http, url, FRIEND) as response:
        assert response.status == 204
        assert response.headers[ALLOWED] == FRIEND
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        asked = "authorization, content-type, x-stainless-os"
        assert response.headers["Access-Control-Allow-Headers"] == asked
        assert "Origin" in response.headers["Vary"]
    async with http.get(f"{url}{MODELS}", headers={"Origin": FRIEND}) as response:
        assert (response.status, response.headers[ALLOWED]) == (200, FRIEND)
        assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]
        assert "Access-Control-Allow-Credentials" not in response.headers


async def test_it_may_read_errors_and_streams(url_for, http):
    url, origin = await url_for(FRIEND), {"Origin": FRIEND}
    async with http.post(f"{url}/generate", json={}, headers=origin) as response:
        assert (response.status, response.headers[ALLOWED]) == (400, FRIEND)
    asked = {"prompt": "a", "stream": True}
    async with http.post(f"{url}/generate", json=asked, headers=origin) as response:
        assert (response.status, response.headers[ALLOWED]) == (200, FRIEND)


@pytest.mark.parametrize("origins", [(), (FRIEND,)])
async def test_no_other_may(url_for, http, origins):
    url = await url_for(*origins)
    async with preflight(http, url, STRANGER) as response:
        assert response.status == 403 and ALLOWED not in response.headers
    async with http.get(f"{url}{MODELS}", headers={"Origin": STRANGER}) as response:
        assert response.status == 403 and ALLOWED not in response.headers
        assert "--cors-origin" in (await response.json())["error"]["message"]


async def test_any_origin_needs_a_key_all_the_same(url_for, http):
    url = await url_for("*")
    async with preflight(http, url, STRANGER) as response:
        assert (response.status, response.headers[ALLOWED]) == (204, STRANGER)
    async with http.get(f"{url}{MODELS}", headers={"Origin": STRANGER}) as response:
        assert (response.status, response.headers[ALLOWED]) == (403, STRANGER)


async def test_names_that_are_no_headers_are_not_repeated(url_for, http):
    url = await url_for(FRIEND)
    for asked in ("<script>", "x" * 5000):
        async with preflight(http, url, FRIEND, asked) as response:
            assert response.status == 204
            assert "Access-Control-Allow-Headers" not in response.headers


async def test_options_without_a_question_is_a_wrong_method(url_for, http):
    url = await url_for(FRIEND)
    async with http.options(f"{url}/generate", headers={"Origin": FRIEND}) as response:
        assert response.status == 405


@pytest.mark.parametrize(
    "origin",
    [
        *("", "null", "chat.example", "ftp://a", "https://", "https://a/b", "https://a?b"),
        *("https://u@a", "https://a:99999", "https://[", "https://a#b"),
    ],
)
def test_what_no_browser_sends_is_refused(origin):
    with pytest.raises(UserError, match="--cors-origin takes an origin"):
        CorsRules.of([origin])


def test_an_origin_is_compared_as_a_browser_writes_it():
    rules = CorsRules.of(["HTTPS://Chat.Example/"])
    assert rules.names("https://chat.example") and not rules.names("https://chat.example:444")
