"""Other addresses on the page: chosen beside the models, each asked with its own key alone."""

import json

import pytest

from molink.api.access import Access
from molink.api.headers.cors import CorsRules
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore
from molink.api.page.routes import POLICY
from tests.api.page.conftest import ToldService

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def keyed(tmp_path):
    """`keyed(name, *origins)`: access with a key to it, which pages of these origins may use."""
    opened = []

    def make(name, *origins):
        store, live = KeyStore.open(tmp_path / name), LiveKeys(KeyStore.open(tmp_path / name))
        opened.extend([store, live.store])
        _, secret = store.create(0.0, name=name)
        return Access(live, required=True, cors=CorsRules.of(origins)), secret

    yield make
    for store in opened:
        store.close()


def sent_with(visit):
    """What the page asks from now on: (address, key) of each request to an API."""
    asked = []

    def note(request):
        asked.append((request.url.split("/")[2], request.headers.get("authorization", "")))

    visit.page.on("request", note)
    return asked


def origin(visit):
    return visit.url.rstrip("/")


async def add(page, address, name="", key=""):
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_role("button", name="Other addresses").click()
    dialog = page.get_by_role("dialog", name="Other addresses")
    await dialog.get_by_label("Address, or a link").fill(address)
    await dialog.get_by_label("Name", exact=True).fill(name)
    await dialog.get_by_label("Its key").fill(key)
    await dialog.get_by_role("button", name="Add").click()
    return dialog


async def test_another_address_is_asked_with_its_own_key_alone(open_page, keyed):
    access, ours = keyed("ours")
    here = await open_page(access=access)
    other_access, theirs = keyed("theirs", origin(here))
    there = await open_page(ToldService(), other_access)
    await here.page.goto("about:blank")
    await here.page.goto(f"{here.url}#key={ours}")
    await expect(here.page.locator("#model")).to_have_text("tiny/model")
    dialog = await add(here.page, f"{there.url}#key={theirs}", "Ben's ring")
    await expect(dialog.locator("#addresses-told")).to_contain_text("Ben's ring can be chosen")
    await expect(dialog.locator("#address-list")).to_contain_text(f"key ending in {theirs[-4:]}")
    await dialog.get_by_role("button", name="Close").click()
    asked = sent_with(here)
    here.complaints.clear()
    await here.page.get_by_label("Model and address").select_option(label="Ben's ring")
    await expect(here.page.locator("#state")).to_have_text("Ready")
    await expect(here.page.locator("#models optgroup")).to_have_count(2)
    there.service.put("By Ben.", None)
    await here.ask("Who are you?")
    await expect(here.answer.locator(".text")).to_have_text("By Ben.")
    await expect(here.answer.locator(".from")).to_have_text("tiny/model at Ben's ring")
    assert len(there.service.requests) == 1 and not here.service.requests
    to_there = origin(there).split("/")[2]
    assert {key for place, key in asked if theirs in key} == {f"Bearer {theirs}"}
    assert {place for place, key in asked if theirs in key} == {to_there}
    assert not [place for place, key in asked if ours in key and place == to_there]
    assert here.complaints == []
    assert await here.page.evaluate("localStorage.length") == 0, "only this tab knows it"
    await here.page.get_by_label("Model and address").select_option(index=0)
    await expect(here.page).to_have_url(here.url)
    await expect(here.answer.locator(".from")).to_have_text("tiny/model at Ben's ring")
    here.service.put("By us.", None)
    await here.ask("And you?")
    await expect(here.answer.locator(".text")).to_have_text("By us.")
    await expect(here.answer.locator(".from")).to_be_hidden()
    await here.page.get_by_role("button", name="History").click()
    await here.page.get_by_label("Keep conversations").check()
    await expect(here.page.locator("#chats li")).to_contain_text("Ben's ring")


async def test_an_address_that_does_not_allow_the_page_is_told_and_left(open_page, keyed):
    here, there = await open_page(), await open_page(ToldService(), keyed("shut")[0])
    dialog = await add(here.page, there.url, "Shut", "molink-sk-any")
    await dialog.get_by_role("button", name="Close").click()
    await here.page.get_by_label("Model and address").select_option(label="Shut")
    await expect(here.page.locator("#state")).to_have_text(
        "Shut cannot be reached: check that it runs, and that whoever runs it lets this page ask, "
        f"with --cors-origin {origin(here)}."
    )
    dialog = await add(here.page, "")
    await dialog.get_by_role("button", name="Delete: Shut").click()
    await expect(here.page.locator("#state")).to_have_text("Ready")
    await expect(here.page).to_have_url(here.url)
    await expect(here.page.locator("#models")).to_be_hidden()


WRONG = ("", "chat example", "ftp://chat.example", "http://a:b@chat.example", "http://[::1]:8000")


async def test_addresses_are_kept_by_choice_and_wrong_ones_explained(open_page):
    visit = await open_page()
    for address in WRONG:
        dialog = await add(visit.page, address)
        await expect(dialog.locator("#addresses-told")).to_contain_text("Give an address such as")
        await dialog.get_by_role("button", name="Close").click()
    dialog = await add(visit.page, f"{visit.url}v1")
    await expect(dialog.locator("#addresses-told")).to_contain_text("address of this page itself")
    await dialog.get_by_label("Address, or a link").fill("chat.example:8000/v1/#key=molink-sk-abcd")
    await dialog.get_by_role("button", name="Add").click()
    await expect(dialog.locator("#address-list")).to_contain_text(
        "http://chat.example:8000/, key ending in abcd"
    )
    await dialog.get_by_label("Address, or a link").fill("chat.example:8000")
    await dialog.get_by_label("Name", exact=True).fill("Ben's ring")
    await dialog.get_by_role("button", name="Add").click()
    await expect(dialog.locator("#address-list")).to_contain_text("Ben's ring")
    await expect(dialog.locator("#address-list")).to_contain_text("key ending in abcd")
    await dialog.get_by_label("Keep addresses").check()
    kept = json.loads(await visit.page.evaluate("localStorage.getItem('molink-addresses')"))
    assert [one["url"] for one in kept] == ["http://chat.example:8000/"]
    other = await visit.page.context.new_page()
    await other.goto(visit.url)
    await expect(other.locator("#models option")).to_have_count(2)
    await dialog.get_by_label("Keep addresses").uncheck()
    assert await visit.page.evaluate("localStorage.length") == 0


async def test_a_key_that_another_address_wants_is_not_remembered_with_all(open_page, keyed):
    here = await open_page()
    access, theirs = keyed("theirs", origin(here))
    there = await open_page(ToldService(), access)
    dialog = await add(here.page, there.url, "Ben's ring")
    await dialog.get_by_role("button", name="Close").click()
    await here.page.get_by_label("Model and address").select_option(label="Ben's ring")
    await expect(here.page.locator("#key-form")).to_be_visible()
    await expect(here.page.get_by_label("Remember on this device")).to_be_hidden()
    await here.page.get_by_label("Key", exact=True).fill(theirs)
    await here.page.keyboard.press("Enter")
    await expect(here.page.locator("#state")).to_have_text("Ready")
    assert await here.page.evaluate("localStorage.length") == 0


async def test_a_tab_whose_address_another_one_deletes_asks_no_other_in_its_place(open_page):
    visit = await open_page()
    other = {"data": [{"id": "other/model", "max_model_len": 200}]}
    await visit.page.route("**/sub/v1/models", lambda route: route.fulfill(json=other))
    dialog = await add(visit.page, f"{visit.url}sub", "Below")
    await dialog.get_by_label("Keep addresses").check()
    await dialog.get_by_role("button", name="Close").click()
    await visit.page.get_by_label("Model and address").select_option(label="Below")
    await expect(visit.page).to_have_title("other/model · MoLink")
    tab = await visit.page.context.new_page()
    await tab.goto(visit.url)
    await expect(tab).to_have_title("tiny/model · MoLink")
    await (await add(tab, "")).get_by_role("button", name="Delete: Below").click()
    await expect(visit.page).to_have_title("tiny/model · MoLink")
    await expect(visit.page.locator("#models")).to_be_hidden()


async def test_several_models_of_one_coordinator_are_chosen_from(open_page):
    visit = await open_page()
    models = [{"id": name, "max_model_len": 200} for name in ("tiny/model", "tiny/other")]
    await visit.page.route("**/v1/models", lambda route: route.fulfill(json={"data": models}))
    asked = []
    visit.page.on("request", lambda one: asked.append(one.post_data or ""))
    await visit.page.reload()
    choice = visit.page.get_by_label("Model and address")
    await expect(choice.locator("option")).to_have_text(["tiny/model", "tiny/other"])
    await choice.select_option(label="tiny/other")
    await expect(visit.page).to_have_title("tiny/other · MoLink")
    await visit.page.reload()
    await expect(visit.page).to_have_title("tiny/other · MoLink")
    await visit.ask("Who are you?")
    await expect(visit.answer.locator(".note")).to_contain_text("tiny/other")
    assert any('"model":"tiny/other"' in body for body in asked)


# -- the policy -----------------------------------------------------------------------------------

OTHER = "https://chat.example:8443"


async def policy(visit, given, **headers):
    response = await visit.page.request.get(visit.url, params={"with": given}, headers=headers)
    return response.headers["content-security-policy"]


async def test_the_policy_lets_one_view_ask_the_one_origin_that_it_names(open_page):
    visit = await open_page()
    wider = POLICY.replace("connect-src 'self'", f"connect-src 'self' {OTHER}")
    assert await policy(visit, OTHER) == wider
    assert await policy(visit, OTHER, **{"Sec-Fetch-Site": "same-origin"}) == wider
    for site in ("cross-site", "same-site"):
        assert await policy(visit, OTHER, **{"Sec-Fetch-Site": site}) == POLICY
    ways = ("*", "https:", "https://*", "https://*.example", "https://a; script-src *", "'self'")
    ways += (
        f"{OTHER} https://evil.example",
        f"{OTHER}/",
        "https://a\nb",
        "data:",
        f"https://{'a' * 300}",
    )
    for way in ways:
        assert await policy(visit, way) == POLICY, way
