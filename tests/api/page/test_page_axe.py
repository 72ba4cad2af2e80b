"""What axe finds on the page, at three sizes and in both colour schemes: nothing."""

import pytest

from molink.api.access import Access
from tests.api.page.conftest import ToldService

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES = {
    "desk": (1280, 800),
    "phone": (375, 667),
    "narrow": (320, 568),
    "zoomed": (640, 400),
    "lying": (667, 300),
}
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


async def opened(open_page, size, scheme, service=None, **how):
    wide, high = SIZES[size]
    how |= {"viewport": {"width": wide, "height": high}, "color_scheme": scheme}
    visit = await open_page(service, bypass_csp=True, **how)
    await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
    return visit


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "narrow", "zoomed"])
async def test_axe_finds_nothing(open_page, size, scheme):
    service = ToldService()
    visit = await opened(open_page, size, scheme, service)
    assert await findings(visit) == []
    service.put(ANSWER, None)
    await visit.ask("Tell me.")
    await expect(visit.page.locator("#send")).to_be_visible()
    service.events.add("stage_lost", "ring 1 has lost cellar", node="cellar", ring=1)
    await expect(visit.page.locator("#state")).to_contain_text("does not answer")
    assert await findings(visit) == []
    for name in ("History", "Settings"):
        await visit.page.get_by_role("button", name=name).click()
        await expect(visit.page.get_by_role("dialog", name=name)).to_be_visible()
        assert await findings(visit) == [], name
        await all_in_reach(visit, SIZES[size][0])
        await visit.page.keyboard.press("Escape")
    await visit.page.get_by_role("button", name="Settings").click()
    await visit.page.get_by_role("button", name="Other addresses").click()
    await visit.page.get_by_label("Address, or a link").fill("chat.example")
    await visit.page.get_by_role("button", name="Add").click()
    await expect(visit.page.locator("#address-list li")).to_have_count(1)
    await expect(visit.page.locator("#models")).to_be_visible()
    assert await findings(visit) == []
    await all_in_reach(visit, SIZES[size][0])
    await visit.page.keyboard.press("Escape")
    assert await findings(visit) == [], "with models of several addresses to choose from"
    await all_in_reach(visit, SIZES[size][0])


REACH = """() => [...document.querySelectorAll("button, input, select, textarea")]
  .filter((one) => one.checkVisibility() && !one.closest("dialog:not([open])"))
  .map((one) => [one.id || one.textContent, one.getBoundingClientRect()])
  .filter(([, box]) => box.left < 0 || box.right > innerWidth)
  .map(([name]) => name)"""


async def all_in_reach(visit, wide):
    """Nothing is to be scrolled for sideways."""
    assert await visit.page.evaluate("document.documentElement.scrollWidth") == wide
    assert await visit.page.evaluate(REACH) == []


async def test_axe_finds_nothing_where_a_key_is_asked_for(open_page):
    visit = await open_page(access=Access(required=True), bypass_csp=True)
    await expect(visit.page.locator("#key-form")).to_be_visible()
    assert await findings(visit) == []


async def test_forced_colours_keep_what_a_colour_says(open_page):
    """A browser paints backgrounds in one colour then; what took how long is still to be seen."""
    service = ToldService()
    visit = await opened(open_page, "desk", "dark", service, forced_colors="active")
    service.put(ANSWER, None)
    await visit.ask("Tell me.")
    await expect(visit.page.locator("#send")).to_be_visible()
    painted = "one => getComputedStyle(one).backgroundColor"
    bars = await visit.page.locator(".bar span").evaluate_all(f"all => all.map({painted})")
    assert len(set(bars)) == len(bars) == 3
    assert await visit.page.locator("body").evaluate(painted) not in bars
    edge = "one => getComputedStyle(one).borderTopStyle"
    assert await visit.page.locator(".question .text").evaluate(edge) == "solid"
    assert await findings(visit) == []


@pytest.mark.parametrize("size", ["narrow", "zoomed", "lying"])
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
