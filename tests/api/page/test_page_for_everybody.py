"""The page on a phone and on a desk, by keyboard and ear; and with hostile answers."""

import asyncio

import pytest

from tests.api.page.conftest import ToldService

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")

WIDTHS = {"phone": (375, 667), "desk": (1280, 800)}
LONG = "Llanfairpwllgwyngyll" * 20
ANSWER = f"""# Title

A paragraph with `code` and {LONG}.

```python
print("{LONG}")
```

1. one
   - under it
2. two

> quoted

| a | b |
|---|---|
"""


async def answered(visit, text):
    visit.service.put(text, None)
    await visit.ask("Tell me.")
    await expect(visit.page.locator("#send")).to_be_visible()


@pytest.mark.parametrize("width", WIDTHS)
async def test_nothing_is_cut_off(open_page, width):
    wide, high = WIDTHS[width]
    visit = await open_page(viewport={"width": wide, "height": high})
    await answered(visit, ANSWER)
    if width == "phone":
        await visit.page.locator("summary").first.click()
    assert await visit.page.evaluate("document.documentElement.scrollWidth") == wide
    for name in ("New chat", "Settings", "Send"):
        box = await visit.page.get_by_role("button", name=name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= wide
        assert box["y"] >= 0 and box["y"] + box["height"] <= high
        assert box["height"] >= 44, "a finger must find it"
    await expect(visit.page.locator(".stages")).to_be_visible()


@pytest.mark.parametrize(("width", "is_open"), [("phone", False), ("desk", True)])
async def test_the_ring_makes_room_for_the_chat_on_a_phone(open_page, width, is_open):
    wide, high = WIDTHS[width]
    visit = await open_page(viewport={"width": wide, "height": high})
    await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
    assert await visit.page.locator("#ring-panel").evaluate("panel => panel.open") is is_open


async def test_the_end_of_a_growing_answer_stays_in_sight_until_its_reader_scrolls(open_page):
    visit = await open_page(viewport={"width": 375, "height": 667})
    await visit.ask("Tell me.")
    for number in range(40):
        visit.service.put(f"Paragraph {number}.\n\n")
    await expect(visit.answer.get_by_text("Paragraph 39.")).to_be_in_viewport()
    await visit.page.locator("#conversation").evaluate("node => node.scrollTo(0, 0)")
    await expect(visit.page.locator(".question")).to_be_in_viewport()
    visit.service.put("The end.", None)
    await expect(visit.answer.get_by_text("The end.")).to_be_attached()
    await expect(visit.page.locator("#send")).to_be_visible()
    await expect(visit.page.locator(".question")).to_be_in_viewport()


async def test_a_further_question_and_a_keyboard_of_glass_keep_the_end_in_sight(open_page):
    visit = await open_page(viewport={"width": 375, "height": 667})
    await answered(visit, "a\n\n" * 30)
    await visit.page.locator("#conversation").evaluate("node => node.scrollTo(0, 0)")
    await expect(visit.page.locator(".question")).to_be_in_viewport()
    visit.service.put("Short.")
    await visit.ask("And then?")
    await expect(visit.answer.get_by_text("Short.")).to_be_in_viewport()
    await visit.page.set_viewport_size({"width": 375, "height": 500})
    await expect(visit.answer.get_by_text("Short.")).to_be_in_viewport()
    visit.service.put("".join(f"\n\nMore {number}." for number in range(40)))
    await expect(visit.answer.get_by_text("More 39.")).to_be_in_viewport()


# -- by keyboard and ear --------------------------------------------------------------------------


FOCUSED = """[document.activeElement].map((one) =>
  one.id || one.ariaLabel || (one.tagName === "BUTTON" ? one.textContent : one.tagName))[0]"""


async def test_all_of_it_is_reached_by_tab_in_the_order_of_reading(open_page):
    visit = await open_page(viewport={"width": 1280, "height": 800})
    await answered(visit, "```\ncode\n```")
    await visit.page.locator(".skip").focus()
    seen = []
    while "send" not in seen and len(seen) < 20:
        await visit.page.keyboard.press("Tab")
        seen.append(await visit.page.evaluate(FOCUSED))
    order = ["new-chat", "open-history", "open-settings", "SUMMARY"]
    order += ["Edit this message", "Copy the code", "Code", "Copy the answer", "Answer again"]
    assert [one for one in seen if one != "conversation"] == [*order, "question", "attach", "send"]


async def test_what_a_screen_reader_finds(open_page):
    visit = await open_page(viewport={"width": 1280, "height": 800})
    await answered(visit, "# Title\n\nYes.")
    await expect(visit.page.locator("body")).to_match_aria_snapshot("""
      - link "Skip to the message box"
      - banner:
        - heading "MoLink" [level=1]
        - paragraph: tiny/model
        - status: Ready
        - button "New chat"
        - button "History"
        - button "Settings"
      - complementary "The ring"
      - main:
        - region "Conversation":
          - article:
            - heading "You" [level=2]
            - paragraph: Tell me.
            - button "Edit this message"
          - article:
            - heading "Answer" [level=2]
            - heading "Title" [level=3]
            - paragraph: Yes.
            - button "Copy the answer"
            - button "Answer again"
        - textbox "Message"
        - button "Attach text files"
        - button "Send"
      - log
    """)


async def test_an_answer_is_told_in_sentences_and_not_in_tokens(open_page):
    visit = await open_page()
    await visit.page.clock.install()
    told = visit.page.locator("#announcer p")
    words = [f"Sentence number {number}. " for number in range(100)]
    for word in "".join(words).split():
        visit.service.put(f"{word} ")
    await visit.ask("Tell me.")
    await expect(visit.answer.locator(".text")).to_contain_text("number 99.")
    await visit.page.clock.run_for(3000)
    visit.service.put("**The** end.", None)
    await expect(told.last).to_have_text("The end. The answer is complete.")
    texts = [text.strip() for text in await told.all_text_contents()]
    assert " ".join(texts) == " ".join(
        ["Waiting for the answer.", *map(str.strip, words), "The end. The answer is complete."]
    )
    assert all(text.endswith(".") for text in texts)
    assert 3 <= len(texts) < 10, "of 300 tokens"


async def test_nothing_moves_for_who_wants_that(open_page):
    running = "document.getAnimations().filter(one => one.playState === 'running').length"
    for how, moves in (("no-preference", True), ("reduce", False)):
        visit = await open_page(reduced_motion=how)
        await visit.ask("Tell me.")
        await expect(visit.answer).to_have_attribute("aria-busy", "true")
        await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
        if moves:
            await visit.page.wait_for_function(f"{running} > 0")
        else:
            assert await visit.page.evaluate(running) == 0


# -- hostile text ---------------------------------------------------------------------------------

HOSTILE = """<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>

[one](javascript:alert(1)) [two](data:text/html,x) [three](/cluster) ![four](https://evil.example/x.png)

[https://good.example](https://evil.example/a) https://user:pw@evil.example/b <https://ok.example/c>

```html
<b onclick="x()">bold</b>
"""


async def test_an_answer_cannot_do_anything(open_page):
    visit = await open_page()
    await answered(visit, HOSTILE)
    text = visit.answer.locator(".text")
    assert await text.locator("img, script, b, [onclick], [onerror], iframe, form").count() == 0
    await expect(text).to_contain_text("<img src=x onerror=")
    await expect(text).to_contain_text("[one](javascript:alert(1))")
    links = await text.locator("a").evaluate_all(
        "links => links.map(a => [a.textContent, a.href, a.rel, a.target])"
    )
    how = ["noopener noreferrer", "_blank"]
    assert links == [
        ["four (evil.example)", "https://evil.example/x.png", *how],
        ["https://good.example (evil.example)", "https://evil.example/a", *how],
        ["https://user:pw@evil.example/b (evil.example)", "https://user:pw@evil.example/b", *how],
        ["https://ok.example/c", "https://ok.example/c", *how],
    ]
    assert await visit.page.title() == "tiny/model · MoLink"
    assert not [url for url in visit.asked if not url.startswith(visit.url)]
    assert visit.complaints == []


async def test_names_of_pcs_are_text(open_page):
    service = ToldService()
    service.rings[0] = {**service.rings[0], "ring": 7}
    evil = "<img src=x>\u202eevil"
    service.rings[0]["stages"] = [{"node": evil, "layers": [0, 9], "busy_share": float("nan")}]
    service.rings[0]["links"] = []
    visit = await open_page(service)
    await expect(visit.page.locator(".stages bdi")).to_have_text(evil)
    assert await visit.page.locator("#rings img").count() == 0


# -- markdown -------------------------------------------------------------------------------------


def code_html(text, language=""):
    head = f'<div class="head"><span>{language}</span><button type="button">Copy</button></div>'
    return f'<div class="code">{head}<pre><code>{text}</code></pre></div>'


def table_html(head, *rows):
    def row(cells, tag):
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    body = "".join(row(one, "td") for one in rows)
    table = f"<table><thead>{row(head, 'th')}</thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def math_html(inner):
    return f"<math><mrow>{inner}</mrow></math>"


SHOWN = {
    "*em* **strong** `a*b*c`": "<p><em>em</em> <strong>strong</strong> <code>a*b*c</code></p>",
    "snake_case_name and 2 * 3 * 4": "<p>snake_case_name and 2 * 3 * 4</p>",
    "**bold *both***": "<p><strong>bold <em>both</em></strong></p>",
    "# One\ntext\n## Two": "<h3>One</h3><p>text</p><h4>Two</h4>",
    "- a\n- b\n  - c\n\n  more\n- d": (
        "<ul><li>a</li><li><p>b</p><ul><li>c</li></ul><p>more</p></li><li>d</li></ul>"
    ),
    "1. a\n  - b\n2. c": "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>",
    "1. a\n   ```py\n   ---\n   ```\n2. b\n\nc": (
        f"<ol><li>a{code_html('---', 'py')}</li><li>b</li></ol><p>c</p>"
    ),
    "- ```\n  ---\n# one\n```\n- b\nc": (
        f"<ul><li>{code_html('---' + chr(10) + '# one')}</li><li>b\nc</li></ul>"
    ),
    "3. three\n4. four": '<ol start="3"><li>three</li><li>four</li></ol>',
    "- a\n1. b": "<ul><li>a</li></ul><ol><li>b</li></ol>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "```py\nx = '**'\n```\nafter": code_html("x = '**'", "py") + "<p>after</p>",
    "```\nopen": code_html("open"),
    "~~~\n```\n~~~": code_html("```"),
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "| a |\n|---|": table_html(["a"]),
    "a | b\n:-: | --:\n**c** | `d`\n\nafter": (
        '<div class="wide"><table><thead><tr><th class="middle">a</th><th class="right">b</th></tr>'
        '</thead><tbody><tr><td class="middle"><strong>c</strong></td>'
        '<td class="right"><code>d</code></td></tr></tbody></table></div><p>after</p>'
    ),
    "said:\n| a | b |\n|---|---|\n| 1 | 2 \\| 3 | 4 |\n| 5 |": (
        "<p>said:</p>" + table_html(["a", "b"], ["1", "2 | 3"], ["5", ""])
    ),
    "| a | b |\n|---|": "<pre>| a | b |\n|---|</pre>",
    "a | b\n---": "<p>a | b</p><hr>",
    "- [ ] a\n- [x] b": (
        '<ul><li class="task"><span class="box">☐</span>a</li>'
        '<li class="task"><span class="box">☑</span>b</li></ul>'
    ),
    "costs $5 and $10, or $5/$10": "<p>costs $5 and $10, or $5/$10</p>",
    "so $x^2$.": f"<p>so {math_html('<msup><mi>x</mi><mn>2</mn></msup>')}.</p>",
    "\\(a_1\\)": f"<p>{math_html('<msub><mi>a</mi><mn>1</mn></msub>')}</p>",
    "$$\n\\frac{1}{2}\n$$": (
        '<div class="wide"><math display="block"><mrow><mfrac><mrow><mn>1</mn></mrow>'
        "<mrow><mn>2</mn></mrow></mfrac></mrow></math></div>"
    ),
    "$$\nopen": "<p>$$\nopen</p>",
    r"\*not\* **": "<p>*not* **</p>",
    "": "",
}

RENDER = """async (text) => {
  const { MarkdownView } = await import("/page/markdown.js");
  const whole = document.createElement("div"), grown = document.createElement("div");
  new MarkdownView(whole).update(text);
  const view = new MarkdownView(grown);
  for (let end = 0; end <= text.length; end++) view.update(text.slice(0, end));
  const plain = (node) => {
    for (const name of ["dir", "tabindex", "role", "aria-label"])
      node.querySelectorAll("*").forEach((one) => one.removeAttribute(name));
    return node.innerHTML;
  };
  return [plain(whole), plain(grown)];
}"""


async def test_markdown_is_shown_alike_whole_and_as_it_grows(open_page):
    visit = await open_page()
    for text, html in SHOWN.items():
        assert await visit.page.evaluate(RENDER, text) == [html, html], text


STRESS = """async (text) => {
  const { MarkdownView } = await import("/page/markdown.js");
  const node = document.createElement("div");
  new MarkdownView(node).update(text);
  return node.textContent.endsWith("the end");
}"""

LONG_CHARS = 100_000
PIECES = [
    "*",
    "**a ",
    "*a ",
    "`",
    "``a` ",
    "[",
    "[a](",
    "> ",
    "- ",
    "_a",
    "__a ",
    "\\",
    "|",
    "1. ",
    "http://)",
    "$a ",
    "$$",
    "\\(",
    "|-",
    "a|b\n-|-\n",
]
HARD = [piece * (LONG_CHARS // len(piece)) for piece in PIECES]
HARD += [before + " " * LONG_CHARS for before in ("# a", "- a", "a", "```", "**a")]


@pytest.mark.parametrize("text", HARD, ids=lambda text: repr(text[:8]))
async def test_text_that_is_hard_to_read_is_shown_to_its_end(open_page, text):
    """A pattern that took exponential or cubic time would never come to it."""
    visit = await open_page()
    async with asyncio.timeout(60):
        assert await visit.page.evaluate(STRESS, f"{text[:9_000]} the end\n\n{text} the end")


FORMULAS = {
    r"\alpha \leq \sqrt[3]{x}": (
        "<mi>α</mi><mo>≤</mo><mroot><mrow><mi>x</mi></mrow><mrow><mn>3</mn></mrow></mroot>"
    ),
    r"\sum_{i=1}^n i": (
        '<munderover><mo data-limits="yes">∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow>'
        "<mi>n</mi></munderover><mi>i</mi>"
    ),
    r"\left( \text{if } x \right)": (
        "<mrow><mo>(</mo><mrow><mtext>if </mtext><mi>x</mi></mrow><mo>)</mo></mrow>"
    ),
    r"\begin{cases} a & b \\ c \end{cases}": (
        "<mrow><mo>{</mo><mtable><mtr><mtd><mrow><mi>a</mi></mrow></mtd><mtd><mrow><mi>b</mi>"
        "</mrow></mtd></mtr><mtr><mtd><mrow><mi>c</mi></mrow></mtd></mtr></mtable></mrow>"
    ),
    r"\mathbb{R} \mathbf{v} \operatorname{sgn}": (
        '<mrow><mi>ℝ</mi></mrow><mrow><mi>𝐯</mi></mrow><mi mathvariant="normal">sgn</mi>'
    ),
    r"\unknown{<b>}": "<mtext>\\unknown</mtext><mrow><mo>&lt;</mo><mi>b</mi><mo>&gt;</mo></mrow>",
    r"x'": "<mi>x</mi><mo>′</mo>",
    "}{": "<mrow></mrow>",
    "^": "<msup><mrow></mrow><mrow></mrow></msup>",
    r"\frac": "<mfrac><mrow></mrow><mrow></mrow></mfrac>",
    r"\begin{constructor}\left\constructor": (
        "<mrow><mtable><mtr><mtd><mrow><mrow><mo>constructor</mo><mrow></mrow><mo></mo></mrow></mrow>"
        "</mtd></mtr></mtable></mrow>"
    ),
    r"\begin{": "<mrow><mtable><mtr><mtd><mrow></mrow></mtd></mtr></mtable></mrow>",
}

DRAW = """async (tex) => {
  const { mathNode } = await import("/page/math.js");
  return mathNode(tex, false)?.querySelector("mrow").innerHTML ?? null;
}"""


async def test_formulas_are_drawn_and_what_is_not_known_stands_as_it_is(open_page):
    visit = await open_page()
    for tex, html in FORMULAS.items():
        assert await visit.page.evaluate(DRAW, tex) == html, tex
    for much in ("x" * 5000, "{" * 100, r"\sqrt" * 100, r"\left(" * 100):
        assert await visit.page.evaluate(DRAW, much) is None


async def test_a_finished_part_of_an_answer_keeps_its_nodes(open_page):
    visit = await open_page()
    visit.service.put("First.\n\nSec")
    await visit.ask("Tell me.")
    first = visit.answer.locator("p").first
    await expect(first).to_have_text("First.")
    await first.evaluate("node => node.dataset.marked = 'yes'")
    visit.service.put("ond.\n\nThird.", None)
    await expect(visit.answer.locator("p").nth(2)).to_have_text("Third.")
    await expect(first).to_have_attribute("data-marked", "yes")
