"""The page before a real server: its answer outlives a load, a lost line, and the server."""

import signal

import pytest

from molink.api.server import free_ports
from tests.api.page.conftest import PATIENCE_MS, chromium

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

QUESTION = "Tell me of a boat."
TOKENS = 160
ASKED = {"input": QUESTION, "temperature": 0, "max_output_tokens": TOKENS}


async def shown(page, chars: int) -> str:
    """The answer on the page, once it has so many characters."""
    await page.wait_for_function(
        "least => document.querySelector('.answer .text')?.textContent.length >= least", arg=chars
    )
    return await page.locator(".answer .text").text_content()


async def set_up(page, url) -> None:
    await page.goto(url)
    settings = f'{{"temperature": 0, "maxTokens": {TOKENS}, "systemPrompt": ""}}'
    await page.evaluate("it => sessionStorage.setItem('molink-settings', it)", settings)
    await page.reload()
    await page.wait_for_function("document.getElementById('state').textContent === 'Ready'")


async def test_an_answer_outlives_load_line_and_server(tools):
    (port,) = free_ports("127.0.0.1", 1)
    options = ("--nodes", "2", "--link", "50:40", "--dtype", "float32", "--port", str(port))
    async with api.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium())
        page = await browser.new_page()
        page.set_default_timeout(3 * PATIENCE_MS)
        with tools.serving("demo", *options) as server:
            _, alone = await tools.post(server.url, "/v1/responses", ASKED)
            (said,) = [one for one in alone["output"] if one["type"] == "message"]
            text = said["content"][0]["text"]
            await set_up(page, server.url)
            await page.fill("#question", QUESTION)
            await page.keyboard.press("Enter")
            await shown(page, len(text) // 8)
            await page.reload()
            await shown(page, len(text) // 4)
            await page.context.set_offline(True)
            await page.wait_for_timeout(300)
            await page.context.set_offline(False)
            await shown(page, len(text) // 3)
            server.stop(signal.SIGKILL)
        assert len(await shown(page, 1)) < len(text), "it was killed in the middle of the answer"
        with tools.serving("demo", *options):
            await page.wait_for_selector("#send:visible")
            plain = "e => e.innerText.replace(/\\s+/g, ' ').trim()"
            whole = await page.locator(".answer .text").evaluate(plain)
            assert whole == " ".join(text.split()), await page.locator(".answer").inner_text()
        await browser.close()
