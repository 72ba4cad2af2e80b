// One answer on the page: its text as it grows, then who computed it and what each part took.

import { amount, duration, element } from "./dom.js";
import { MarkdownView } from "./markdown.js";

// The reader's own message.
export function questionNode(text) {
  const words = element("p", "text", text);
  words.dir = "auto";
  return element("article", "question", element("h2", "hidden", "You"), words);
}

export class AnswerView {
  element;
  text = "";
  #reasoning = "";
  #body = element("div", "text");
  #thoughts = element("details", "thoughts", element("summary", "", "Reasoning"));
  #note = element("p", "note faint");
  #served = element("footer", "served small");
  #views;
  #frame = 0;
  #afterDraw;

  // `afterDraw` is called each time that the element has grown.
  constructor(afterDraw) {
    const thoughts = element("div", "");
    this.#thoughts.append(thoughts);
    this.#thoughts.hidden = this.#served.hidden = true;
    this.#views = { body: new MarkdownView(this.#body), thoughts: new MarkdownView(thoughts) };
    this.#afterDraw = afterDraw;
    const title = element("h2", "hidden", "Answer");
    this.element = element(
      "article",
      "answer",
      title,
      this.#thoughts,
      this.#body,
      this.#note,
      this.#served,
    );
    this.element.setAttribute("aria-busy", "true");
  }

  addText(text) {
    this.text += text;
    this.#drawSoon();
  }

  addReasoning(text) {
    this.#reasoning += text;
    this.#drawSoon();
  }

  // A sentence below the text: why nothing comes, or how it ended. Empty: none.
  note(sentence, ...more) {
    if (!more.length && this.#note.textContent === sentence) return;
    this.#note.replaceChildren(sentence, ...more);
    this.#afterDraw();
  }

  // Who serves this answer, as far as it is known: `molink` of its last event, and `tokens`.
  served(facts) {
    this.#served.replaceChildren(...servedNodes(facts));
    this.#served.hidden = this.#served.childElementCount === 0;
    this.#afterDraw();
  }

  end() {
    this.#draw();
    this.element.removeAttribute("aria-busy");
  }

  // Once a frame: a fast ring sends more tokens than a screen can show.
  #drawSoon() {
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#thoughts.hidden = !this.#reasoning;
    this.#views.thoughts.update(this.#reasoning);
    this.#views.body.update(this.text);
    this.#afterDraw();
  }
}

// -- who served it --------------------------------------------------------------------------------

// What the first headers of an answer tell, in the shape of what the last event does.
export function servedSoFar(headers) {
  const listed = (name) =>
    headers
      .get(name)
      ?.split(",")
      .map((one) => one.trim()) ?? [];
  const number = (name) => (headers.has(name) ? Number(headers.get(name)) : null);
  return {
    rings: listed("X-MoLink-Ring").map(Number),
    nodes: listed("X-MoLink-Nodes"),
    queue_ms: number("X-MoLink-Queue-Ms"),
    prefill_ms: number("X-MoLink-Prefill-Ms"),
  };
}

function servedNodes(facts) {
  const nodes = [];
  const parts = partsOf(facts);
  if (parts.length) nodes.push(barNode(parts), partsNode(parts, facts));
  const attempts = facts.attempts ?? [{ stages: facts.nodes.map((node) => ({ node })) }];
  if (attempts.length > 1) nodes.push(...movedNodes(attempts));
  else if (attempts[0]?.stages.length) {
    nodes.push(element("p", "", "Served by ", ...pathNodes(attempts[0])));
  }
  return nodes;
}

function partsOf(facts) {
  const parts = [
    ["queue", "Queue", facts.queue_ms],
    ["prefill", "Prefill", facts.prefill_ms],
    ["decode", "Decode", facts.decode_ms],
  ];
  return parts.filter(([, , ms]) => ms != null);
}

// As wide as each part took long; told in words beside it.
function barNode(parts) {
  const bar = element("div", "bar");
  bar.setAttribute("aria-hidden", "true");
  for (const [kind, , ms] of parts) {
    const part = element("span", kind);
    part.style.flexGrow = ms;
    bar.append(part);
  }
  return bar;
}

function partsNode(parts, facts) {
  const list = element("dl", "parts");
  const add = (kind, name, value) => {
    list.append(element("div", kind, element("dt", "", name), element("dd", "", value)));
  };
  for (const [kind, name, ms] of parts) add(kind, name, duration(ms));
  if (facts.tokens) add("", "Tokens", facts.tokens + rateText(facts));
  return list;
}

// The first token came at the end of prefill: the others took the time of decode.
function rateText(facts) {
  if (!(facts.tokens > 1 && facts.decode_ms > 0)) return "";
  return `, ${amount((1000 * (facts.tokens - 1)) / facts.decode_ms)} per second`;
}

// PCs in the order of their layers.
function pathNodes(attempt) {
  const nodes = attempt.stages.map(({ node, layers }) => {
    const held = layers ? [" ", element("span", "held", `(${layers[0]}–${layers[1] - 1})`)] : [];
    return element("span", "pc", element("bdi", "", node), ...held);
  });
  const arrow = () => element("span", "faint", " → ");
  return nodes.flatMap((node, index) => (index ? [arrow(), node] : [node]));
}

function movedNodes(attempts) {
  const items = attempts.map((attempt) => {
    const tokens =
      attempt.tokens == null
        ? ""
        : `${attempt.tokens} ${attempt.tokens === 1 ? "token" : "tokens"} by `;
    const why = attempt.moved_because
      ? element("span", "faint", ` – ${attempt.moved_because}`)
      : "";
    return element("li", "", tokens, ...pathNodes(attempt), why);
  });
  const rings = attempts.length === 2 ? "another ring" : `${attempts.length - 1} other rings`;
  return [
    element("p", "", `Went on in ${rings}; no token was lost.`),
    element("ol", "attempts", ...items),
  ];
}
