"""The page as a reader uses it, in a real browser: answers, stops, losses and keys."""

import asyncio

import pytest

from molink.api.access import Access
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KEY_PREFIX, KeyStore
from molink.errors import RingError
from tests.api.page.conftest import REBOUND_HOST, SECOND_RING, Move, ToldService

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def keys(tmp_path):
    store = KeyStore.open(tmp_path)
    live = LiveKeys(KeyStore.open(tmp_path))
    yield store, Access(live, required=True)
    live.store.close()
    store.close()


def sent(service, index=-1):
    """The text that the model was given: the conversation in its template."""
    return "".join(map(chr, service.requests[index].prompt_token_ids))


# -- an answer ------------------------------------------------------------------------------------


async def test_an_answer_is_shown_while_it_comes(open_page):
    visit = await open_page()
    await visit.ask("Tell me.")
    await expect(visit.answer).to_have_attribute("aria-busy", "true")
    visit.service.put("Once ")
    await expect(visit.answer.locator(".text")).to_have_text("Once ")
    visit.service.put("upon a **time**", None)
    await expect(visit.answer.locator("strong")).to_have_text("time")
    await expect(visit.answer).not_to_have_attribute("aria-busy", "true")
    assert sent(visit.service) == "<user>Tell me.<assistant>"


async def test_a_conversation_goes_on_and_is_forgotten(open_page):
    visit = await open_page()
    for question, answer in (("One?", "First."), ("Two?", "Second.")):
        visit.service.put(answer, None)
        await visit.ask(question)
        await expect(visit.answer.locator(".text")).to_have_text(answer)
        await expect(visit.page.locator("#send")).to_be_visible()
    assert sent(visit.service) == "<user>One?<assistant>First.<user>Two?<assistant>"
    await visit.page.get_by_role("button", name="New chat").click()
    await expect(visit.page.locator("article")).to_have_count(0)
    visit.service.put(None)
    await visit.ask("Three?")
    await expect(visit.page.locator("#send")).to_be_visible()
    assert sent(visit.service) == "<user>Three?<assistant>"


@pytest.mark.parametrize("way", ["button", "Escape", "New chat"])
async def test_a_stop_ends_the_request_at_the_server(open_page, way):
    visit = await open_page()
    visit.service.put("Once")
    await visit.ask("Tell me.")
    await expect(visit.answer.locator(".text")).to_have_text("Once")
    if way == "button":
        await visit.page.get_by_role("button", name="Stop").click()
    elif way == "Escape":
        await visit.page.keyboard.press("Escape")
    else:
        await visit.page.get_by_role("button", name="New chat").click()
    async with asyncio.timeout(10):
        await visit.service.closed.acquire()
    if way in ("button", "Escape"):
        await expect(visit.answer.locator(".note")).to_have_text("Stopped.")
        await expect(visit.page.locator("#question")).to_be_focused()
        visit.service.put(None)
        await visit.ask("Go on.")
        await expect(visit.page.locator("#send")).to_be_visible()
        assert sent(visit.service) == "<user>Tell me.<assistant>Once<user>Go on.<assistant>"


async def test_a_stop_before_the_first_token_ends_it_too(open_page):
    visit = await open_page()
    await visit.ask("Tell me.")
    async with asyncio.timeout(10):
        while not visit.service.requests:  # noqa: ASYNC110 - the browser asks by itself
            await asyncio.sleep(0)
        await visit.page.keyboard.press("Escape")
        await visit.service.closed.acquire()
    await expect(visit.answer.locator(".note")).to_have_text("Stopped.")
    visit.service.put(None)
    await visit.ask("Something else.")
    await expect(visit.page.locator("#send")).to_be_visible()
    assert sent(visit.service) == "<user>Something else.<assistant>", (
        "what has no answer is left out"
    )


async def test_settings_are_sent_and_gone_with_the_tab(open_page):
    visit = await open_page()
    await visit.page.get_by_role("button", name="Settings").click()
    dialog = visit.page.get_by_role("dialog", name="Settings")
    await expect(dialog).to_contain_text("Model: tiny/model")
    await dialog.get_by_label("Temperature").fill("0")
    await dialog.get_by_label("Tokens of an answer").fill("7")
    await dialog.get_by_label("System prompt").fill("Be short.")
    await dialog.get_by_role("button", name="Save").click()
    await expect(visit.page.get_by_role("button", name="Settings")).to_be_focused()
    visit.service.put("Yes.", None)
    await visit.ask("Ready?")
    await expect(visit.answer.locator(".text")).to_have_text("Yes.")
    sampling = visit.service.requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0, 7)
    assert sent(visit.service) == "<system>Be short.<user>Ready?<assistant>"
    assert await visit.page.evaluate("localStorage.length") == 0


@pytest.mark.parametrize(
    ("value", "wrong"), [("201", True), ("0", True), ("1.5", True), ("200", False)]
)
async def test_a_wrong_setting_is_explained_and_not_taken(open_page, value, wrong):
    visit = await open_page()
    await expect(visit.page.locator("#model")).to_have_text("tiny/model")
    await visit.page.get_by_role("button", name="Settings").click()
    field = visit.page.get_by_label("Tokens of an answer")
    await field.fill(value)
    await visit.page.keyboard.press("Enter")
    if wrong:
        await expect(visit.page.locator("#max-tokens-error")).to_have_text(
            "Give a whole number from 1 to 200, or nothing."
        )
        await expect(field).to_be_focused()
    else:
        await expect(visit.page.get_by_role("dialog")).to_have_count(0)


# -- what goes wrong ------------------------------------------------------------------------------


async def test_a_refusal_is_shown_and_may_be_tried_again(open_page):
    service = ToldService()
    visit = await open_page(service)
    await expect(visit.page.locator("#model")).to_have_text("tiny/model")
    service.unready_reason = "The stages are loading."
    await visit.ask("Tell me.")
    await expect(visit.answer.locator(".note")).to_contain_text("The stages are loading.")
    service.unready_reason = None
    service.put("Now.", None)
    await visit.page.get_by_role("button", name="Try again").click()
    await expect(visit.answer.locator(".text")).to_have_text("Now.")
    await expect(visit.page.locator("article")).to_have_count(2)
    assert sent(service) == "<user>Tell me.<assistant>"


async def test_an_answer_that_fails_keeps_what_has_come(open_page):
    visit = await open_page()
    visit.service.put("Once", RingError("The ring was lost 8 times: send it again later."))
    await visit.ask("Tell me.")
    await expect(visit.answer.locator(".note")).to_contain_text("lost 8 times")
    await expect(visit.answer.locator(".text")).to_have_text("Once")


async def test_a_server_that_goes_away_is_told(open_page):
    visit = await open_page()
    await expect(visit.page.locator("#state")).to_have_text("Ready")
    await visit.page.context.set_offline(True)
    await visit.ask("Tell me.")
    await expect(visit.answer.locator(".note")).to_contain_text("cannot be reached")
    await expect(visit.page.locator("#state")).to_contain_text("cannot be reached")
    await visit.page.context.set_offline(False)
    await expect(visit.page.locator("#state")).to_have_text("Ready")


async def test_a_server_that_answers_later_is_found(open_page):
    visit = await open_page()
    await visit.page.route("**/v1/models", lambda route: route.abort())
    await visit.page.reload()
    await expect(visit.page.locator("#state")).to_contain_text("cannot be reached")
    await visit.page.unroute("**/v1/models")
    await expect(visit.page.locator("#model")).to_have_text("tiny/model")


async def test_at_a_rebound_name_the_page_learns_nothing(open_page):
    visit = await open_page()
    visit.service.requests.clear()
    await visit.page.goto(visit.url.replace("127.0.0.1", REBOUND_HOST))
    await expect(visit.page.locator("#state")).to_contain_text("is not known as 'rebound.example")
    await visit.ask("Tell me.")
    await expect(visit.answer.locator(".note")).to_contain_text("is not known as")
    assert visit.service.requests == []
    assert await visit.page.locator("#rings").text_content() == ""


# -- keys -----------------------------------------------------------------------------------------


async def test_the_page_opens_without_a_key_and_asks_for_one(open_page, keys):
    store, access = keys
    _, secret = store.create(0.0)
    visit = await open_page(access=access)
    await expect(visit.page.get_by_role("alert").first).to_contain_text("This server wants a key")
    field = visit.page.get_by_label("Key", exact=True)
    await expect(field).to_be_focused()
    for wrong, why in (
        ("", "Give a key"),
        (KEY_PREFIX + "x" * 43, "does not know your key"),
        ("ключ", "without spaces"),
    ):
        await field.fill(wrong)
        await visit.page.keyboard.press("Enter")
        await expect(visit.page.get_by_role("alert").first).to_contain_text(why)
        await expect(field).to_be_focused()
    await field.fill(f" {secret} ")
    await visit.page.keyboard.press("Enter")
    await expect(visit.page.locator("#question")).to_be_focused()
    await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
    visit.service.put("Yes.", None)
    await visit.ask("May I?")
    await expect(visit.answer.locator(".text")).to_have_text("Yes.")
    await kept_in_the_tab_alone(visit, secret)


async def kept_in_the_tab_alone(visit, secret):
    assert await visit.page.evaluate("sessionStorage.getItem('molink-key')") == secret
    assert await visit.page.evaluate("localStorage.length + document.cookie.length") == 0
    assert await visit.page.context.cookies() == []
    assert not [url for url in visit.asked if secret in url]
    assert secret not in await visit.page.content()
    other = await visit.page.context.new_page()
    await other.goto(visit.url)
    await expect(other.get_by_role("alert").first).to_contain_text("This server wants a key")


async def test_a_key_that_is_revoked_gives_the_question_back(open_page, keys):
    store, access = keys
    _, secret = store.create(0.0, name="anna")
    visit = await open_page(access=access)
    await visit.page.get_by_label("Key", exact=True).fill(secret)
    await visit.page.keyboard.press("Enter")
    await expect(visit.page.locator("#question")).to_be_focused()
    store.revoke("anna", 1.0)
    await visit.ask("May I?")
    await expect(visit.page.get_by_role("alert").first).to_contain_text("revoked")
    await expect(visit.page.locator("#question")).to_have_value("May I?")
    await expect(visit.page.locator("article")).to_have_count(0)
    assert visit.service.requests == []


async def test_a_key_can_be_forgotten(open_page, keys):
    store, access = keys
    _, secret = store.create(0.0)
    visit = await open_page(access=access)
    await visit.page.get_by_label("Key", exact=True).fill(secret)
    await visit.page.keyboard.press("Enter")
    await expect(visit.page.locator("#question")).to_be_focused()
    await visit.page.get_by_role("button", name="Settings").click()
    await expect(visit.page.locator("#key-state")).to_have_text(f"in use, ending in {secret[-4:]}")
    await visit.page.get_by_role("button", name="Forget the key").click()
    await expect(visit.page.get_by_label("Key", exact=True)).to_be_focused()
    assert await visit.page.evaluate("sessionStorage.getItem('molink-key')") is None


# -- the ring -------------------------------------------------------------------------------------


async def test_the_ring_is_followed(open_page):
    service = ToldService()
    visit = await open_page(service)
    first = visit.page.locator(".stages li").first
    await expect(first).to_contain_text("attic layers 0–2 25 % busy")
    await expect(first).to_contain_text("to cellar: 98.3 Mbit/s, RTT 60.4 ms")
    await expect(visit.page.locator(".stages li").last).to_contain_text("back to attic")
    service.rings, service.unready_reason = [], "cellar is lost: its layers are being loaded."
    await expect(visit.page.locator("#state")).to_have_text(service.unready_reason)
    await expect(visit.page.locator("#rings")).to_have_text("No ring serves at present.")
    service.rings, service.unready_reason = [SECOND_RING], None
    await expect(visit.page.locator(".stages li")).to_have_count(2)
    await expect(visit.page.locator("#state")).to_have_text("Ready")


async def test_an_answer_says_who_served_it_and_what_each_part_took(open_page):
    visit = await open_page()
    served = visit.answer.locator(".served")
    visit.service.put("a")
    await visit.ask("Tell me.")
    await expect(served).to_contain_text("Queue250 msPrefill250 msTokens1")
    await expect(served).to_contain_text("Served by attic → cellar → garage")
    await expect(visit.page.locator(".ring.answering")).to_have_count(1)
    visit.service.put("b", "c", None)
    await expect(served.locator("dt")).to_have_text(["Queue", "Prefill", "Decode", "Tokens"])
    await expect(served.locator("dd")).to_have_text(
        ["250 ms", "250 ms", "500 ms", "3, 4.00 per second"]
    )
    await expect(served).to_contain_text("Served by attic (0–2) → cellar (3–5) → garage (6–8)")
    await expect(visit.page.locator(".ring.answering")).to_have_count(0)


LOST = "cellar is lost: the other PCs load its layers."


async def test_an_answer_outlives_the_loss_of_a_node(open_page):
    service = ToldService()
    visit = await open_page(service)
    await visit.page.clock.install()
    service.put("Once ")
    await visit.ask("Tell me.")
    await expect(visit.answer.locator(".text")).to_have_text("Once ")
    service.rings, service.unready_reason = [], LOST
    await visit.page.clock.run_for(2000)
    await expect(visit.page.locator("#state")).to_have_text(LOST)
    await visit.page.clock.run_for(3000)
    await expect(visit.answer.locator(".note")).to_have_text(
        f"The ring is being made anew, then the answer goes on: {LOST}"
    )
    service.rings, service.unready_reason = [SECOND_RING], None
    await visit.page.clock.run_for(4000)
    await expect(visit.page.locator("#state")).to_have_text("Ready")
    await expect(visit.page.locator(".ring.answering .stages li")).to_have_count(2)
    service.put(Move(SECOND_RING, "cellar is lost."), "upon ", "a time", None)
    await expect(visit.answer.locator(".text")).to_have_text("Once upon a time")
    await expect(visit.answer.locator(".note")).to_have_text("")
    await expect(visit.answer.locator(".served")).to_contain_text("Went on in another ring")
    await expect(visit.answer.locator(".attempts li")).to_have_text(
        [
            "1 token by attic (0–2) → cellar (3–5) → garage (6–8) – cellar went away.",
            "2 tokens by attic (0–4) → garage (5–8)",
        ]
    )
