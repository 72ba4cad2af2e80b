"""What axe finds on the page, at three sizes and in both colour schemes: nothing."""

import pytest

from tests.api.page.conftest import ToldService

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES = {"desk": (1280, 800), "phone": (375, 667), "zoomed": (640, 400), "lying": (667, 300)}
"""A desk's 1280 x 800 at 200 % is a window of 640 x 400."""

ANSWER = """# Tea

| drink | mg |
|---|--:|
| tea | 40 |

- [x] drunk
- [ ] washed

Euler's $e^{i\\pi} = -1$.

```py
print("tea")
```

> quoted [link](https://example.com)
"""


async def findings(visit) -> list[str]:
    found = (await axe.Axe().run(visit.page)).response["violations"]
    nodes = [(one["id"], node["html"][:120]) for one in found for node in one["nodes"]]
    return [f"{rule}: {html}" for rule, html in nodes]


async def opened(open_page, size, scheme, service=None):
    wide, high = SIZES[size]
    how = {"viewport": {"width": wide, "height": high}, "color_scheme": scheme}
    visit = await open_page(service, bypass_csp=True, **how)
    await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
    return visit


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone", "zoomed"])
async def test_axe_finds_nothing(open_page, size, scheme):
    service = ToldService()
    visit = await opened(open_page, size, scheme, service)
    assert await findings(visit) == []
    service.put(ANSWER, None)
    await visit.ask("Tell me.")
    await expect(visit.page.locator("#send")).to_be_visible()
    service.events.add("stage_lost", "ring 1 has lost cellar", node="cellar", ring=1)
    await expect(visit.page.locator("#state")).to_contain_text("went away")
    assert await findings(visit) == []
    for name in ("History", "Settings"):
        await visit.page.get_by_role("button", name=name).click()
        await expect(visit.page.get_by_role("dialog", name=name)).to_be_visible()
        assert await findings(visit) == [], name
        await visit.page.keyboard.press("Escape")


@pytest.mark.parametrize("size", ["zoomed", "lying"])
async def test_the_message_box_stays_in_sight_of_a_low_window(open_page, size):
    visit = await opened(open_page, size, "light")
    visit.service.put("A paragraph.\n\n" * 40, None)
    await visit.ask("Tell me.")
    await expect(visit.page.locator("#send")).to_be_visible()
    for part in ("#question", "#send", "#new-chat"):
        await expect(visit.page.locator(part)).to_be_in_viewport(ratio=0.95)
    await expect(visit.answer.locator(".served")).to_be_in_viewport()
    room = await visit.page.locator("#conversation").bounding_box()
    assert room["height"] >= 60, "there is something to read, too"
    wide = SIZES[size][0]
    assert await visit.page.evaluate("document.documentElement.scrollWidth") == wide
