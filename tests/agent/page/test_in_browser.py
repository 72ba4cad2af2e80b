"""The owner's page in a real browser, over an agent's socket that answers as the tests say."""

import re

import pytest

from molink_agent.limits.limits_file import LimitsFile
from tests.agent.page.test_server import page_of
from tests.api.page.conftest import browser  # noqa: F401, a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def opened(browser, url):  # noqa: F811
    page = await browser.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(url)
    return page, complaints


async def test_an_owner_pauses_and_sets_a_limit(browser, tmp_path):  # noqa: F811
    from playwright.async_api import expect

    async with page_of(tmp_path) as place:
        page, complaints = await opened(browser, place.url)
        await expect(page.get_by_role("heading", name="anna")).to_be_visible()
        assert place.token not in page.url, "no history shows it"
        pause = page.get_by_role("button", name="Pause")
        await expect(pause).to_be_enabled()
        await pause.press("Enter")
        await expect(page.get_by_role("button", name="Lend again")).to_be_focused()
        await page.reload()
        await page.get_by_role("button", name="Lend again").click()
        await expect(page.get_by_role("button", name="Pause")).to_be_enabled()
        threads = page.get_by_label("threads")
        said = page.locator("#said-threads")
        await threads.fill("3")
        await threads.press("Tab")
        await expect(said).to_contain_text("threads = 3 is saved")
        await threads.fill("<b>")
        await threads.press("Tab")
        await expect(said).to_have_text(
            re.compile("^threads must be .*'<b>' is not a whole number")
        )
        for _ in range(2):  # It has asked for the state, and shown it.
            async with page.expect_response("**/state"):
                pass
        await expect(threads).to_have_value("<b>")
        await expect(threads).to_have_attribute("aria-invalid", "true")
        await expect(threads).to_have_accessible_description(re.compile("not a whole number"))
        assert LimitsFile(tmp_path).read().threads == 3
        assert [one for one in complaints if "409" not in one] == []
        await page.close()


async def test_without_the_address_it_says_how_to_get_it(browser, tmp_path):  # noqa: F811
    from playwright.async_api import expect

    async with page_of(tmp_path) as place:
        page, _ = await opened(browser, f"http://127.0.0.1:{place.port}/")
        await expect(page.locator("#now")).to_have_text("Open this page with: molink agent page")
        await expect(page.get_by_role("button")).to_be_disabled()
        await page.close()
