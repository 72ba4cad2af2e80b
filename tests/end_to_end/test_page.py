"""The page before a real cluster: its answer outlives a load, a lost line, and the coordinator."""

import asyncio
import json

import pytest

from molink.models import DEMO_MODEL_DIR
from tests.api.page.conftest import PATIENCE_MS, chromium
from tests.end_to_end.clusters import cluster, free_ports

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

QUESTION = "Tell me of a boat."
TOKENS = 1500
ASKED = {
    "input": QUESTION,
    "temperature": 0,
    "max_output_tokens": TOKENS,
    "ignore_eos": True,
}
SAID = "JSON.parse(sessionStorage.getItem('molink-conversation')).messages.at(-1).content"


LENGTH = "document.querySelector('.answer .text')?.textContent.length ?? 0"


async def shown(page, chars: int) -> int:
    """How much of an answer the page shows, once it is so many characters."""
    async with asyncio.timeout(3e-3 * PATIENCE_MS):
        while (length := await page.evaluate(LENGTH)) < chars:  # Its policy forbids waiting inside.
            await page.wait_for_timeout(20)
    return length


async def opened(driver, url):
    """The page, which asks for the longest answer that is the same each time."""

    async def asks_so(route):
        body = json.loads(route.request.post_data)
        await route.continue_(post_data=json.dumps(body | ASKED | {"input": body["input"]}))

    browser = await driver.chromium.launch(executable_path=chromium())
    page = await browser.new_page()
    page.set_default_timeout(3 * PATIENCE_MS)
    await page.route("**/v1/responses", asks_so)
    await page.goto(url)
    await api.expect(page.locator("#state")).to_have_text("Ready", timeout=3 * PATIENCE_MS)
    return page


async def test_an_answer_outlives_load_line_and_coordinator(tools, tmp_path):
    names = ("--port", "--broker-port", "--relay-port", "--agents-port")
    ports = [word for one in zip(names, free_ports(4), strict=True) for word in map(str, one)]
    options = ("--min-nodes", "1", "--wait", "--dtype", "float32", *ports)
    with cluster(tmp_path, DEMO_MODEL_DIR, *options) as made:
        made.join("anna", "--threads", "1", known_steps=True)
        made.up.line("ready")
        status, alone = await tools.post(made.url, "/v1/responses", ASKED)
        assert status == 200, alone
        (said,) = [one for one in alone["output"] if one["type"] == "message"]
        text = said["content"][0]["text"]
        async with api.async_playwright() as driver:
            page = await opened(driver, made.url)
            await page.fill("#question", QUESTION)
            await page.keyboard.press("Enter")
            await shown(page, len(text) // 20)
            await page.reload()
            await shown(page, len(text) // 10)
            await page.context.set_offline(True)
            await page.wait_for_timeout(100)
            await page.context.set_offline(False)
            before = await shown(page, len(text) // 8)
            made.start_again()
            assert before < 0.9 * len(text), "it was killed in the middle of the answer"
            made.up.line("ready")
            await page.wait_for_selector("#send:visible")
            assert await page.evaluate(SAID) == text, await page.locator(".note").inner_text()
        events = (await tools.get(made.url, "/cluster/events"))["events"]
        assert "ring_resumed" in [event["kind"] for event in events]
