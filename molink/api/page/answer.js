// One answer on the page: its text as it grows, then who computed it and what each part took.

import { amount, button, duration, element } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const ENDS = {
  stopped: "Stopped.",
  length: "The answer ends here: it has as many tokens as it may.",
  elsewhere: "The server has ended this answer.",
  failed: "The answer broke off here.",
};

// The rate is that of the last seconds, told twice a second.
const RATE_MS = 5000;
const TOLD_MS = 500;

// The reader's own message; `onEdit` takes it back to change it.
export function questionNode(text, onEdit) {
  const words = element("p", "text", text);
  words.dir = "auto";
  const edit = button("Edit", onEdit);
  edit.setAttribute("aria-label", "Edit this message");
  const title = element("h2", "hidden", "You");
  return element("article", "question", title, words, element("div", "actions", edit));
}

export class AnswerView {
  element;
  text = "";
  reasoning = "";
  facts = { nodes: [], rings: [] };
  #body = element("div", "text");
  #thoughts = element("details", "thoughts", element("summary", "", "Reasoning"));
  #note = element("p", "note faint");
  #from = element("p", "from faint small");
  #actions = element("div", "actions");
  #served = element("footer", "served small");
  #views;
  #frame = 0;
  #afterDraw;
  #came; // When the last tokens came.
  #tokens;
  #toldAt;

  // `afterDraw` is called each time that the element has grown.
  constructor(afterDraw) {
    const thoughts = element("div", "");
    this.#thoughts.append(thoughts);
    this.#thoughts.hidden = this.#served.hidden = this.#actions.hidden = true;
    this.#views = { body: new MarkdownView(this.#body), thoughts: new MarkdownView(thoughts) };
    this.#afterDraw = afterDraw;
    const title = element("h2", "hidden", "Answer");
    const parts = [title, this.#thoughts, this.#body, this.#note, this.#actions, this.#from, this.#served];
    this.element = element("article", "answer", ...parts);
    this.begin();
  }

  // It is written from now on.
  begin() {
    this.#tokens = 0;
    this.#came = [];
    this.#toldAt = -Infinity;
    this.#actions.hidden = true;
    this.element.classList.remove("failed");
    this.element.setAttribute("aria-busy", "true");
  }

  // Show this much of it. What was shown stays until there is as much again.
  show(text, reasoning, isWhole = false) {
    if (isWhole || text.length >= this.text.length) this.text = text;
    if (isWhole || reasoning.length >= this.reasoning.length) this.reasoning = reasoning;
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  // Another token has come: tell how many there are, and how quickly they come now.
  tokenCame() {
    const now = performance.now();
    this.#tokens += 1;
    this.#came.push(now);
    while (this.#came[0] < now - RATE_MS) this.#came.shift();
    if (now - this.#toldAt < TOLD_MS) return;
    this.#toldAt = now;
    const spent = now - this.#came[0];
    const rate = spent > TOLD_MS ? (1000 * (this.#came.length - 1)) / spent : null;
    this.served({ ...this.facts, tokens: this.#tokens, rate });
  }

  // A sentence below the text: why nothing comes, or how it ended. Empty: none.
  note(sentence, ...more) {
    if (!more.length && this.#note.textContent === sentence) return;
    this.#note.replaceChildren(sentence, ...more);
    this.#afterDraw();
  }

  // The address that answers, as `chat.js` keeps it; nothing is said of the page's own.
  from(answered) {
    this.#from.textContent = placeOf(answered) && `${answered.model} at ${placeOf(answered)}`;
    this.#from.hidden = !this.#from.textContent;
  }

  // Who serves this answer, as far as it is known: `molink` of its last event, and `tokens`.
  served(facts) {
    this.facts = facts;
    this.#served.replaceChildren(...servedNodes(facts));
    this.#served.hidden = this.#served.childElementCount === 0;
    this.#afterDraw();
  }

  // It is written no more; what can be done with it now.
  end(...actions) {
    this.#draw();
    this.element.removeAttribute("aria-busy");
    this.#actions.replaceChildren(...actions);
    this.#actions.hidden = !actions.length;
  }

  // Once a frame: a fast ring sends more tokens than a screen can show.
  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#thoughts.hidden = !this.reasoning;
    this.#views.thoughts.update(this.reasoning);
    this.#views.body.update(this.text);
    this.#afterDraw();
  }
}

// How an answer has ended that is not whole.
export function endText(end) {
  return ENDS[end] ?? "";
}

// Name of the address that answered, of {name, address, model}; empty: the page's own, or not known.
export function placeOf(answered) {
  const isOwn = !answered || answered.address === location.origin + location.pathname;
  return isOwn ? "" : answered.name || answered.address;
}

// -- who served it --

// What the first headers of an answer tell, in the shape of what the last event does.
export function servedSoFar(headers) {
  const listed = (name) => headers.get(name)?.split(",").map((one) => one.trim()) ?? [];
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
  if (facts.rate) return `, ${amount(facts.rate)} per second`;
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

// What each ring did, in words for who reads the answer; operators have their own.
function movedNodes(attempts) {
  const items = attempts.map((attempt, at) => {
    const { tokens } = attempt;
    const count = tokens == null ? "" : `${tokens} ${tokens === 1 ? "token" : "tokens"} by `;
    const next = attempts[at + 1];
    const why = next ? element("span", "faint", ` – ${whyMoved(attempt, next)}`) : "";
    return element("li", "", count, ...pathNodes(attempt), why);
  });
  const isSame = attempts.every((one) => one.ring === attempts[0].ring);
  const many = attempts.length === 2 ? "another ring" : `${attempts.length - 1} other rings`;
  return [
    element("p", "", `Went on in ${isSame ? "the same ring" : many}; no token was lost.`),
    element("ol", "attempts", ...items),
  ];
}

function whyMoved(attempt, next) {
  const stays = new Set(next.stages.map((stage) => stage.node));
  const gone = attempt.stages.map((stage) => stage.node).filter((node) => !stays.has(node));
  if (gone.length) return `${gone.join(", ")} went away.`;
  const named = attempt.stages.find((one) => attempt.moved_because?.startsWith(one.node));
  return `${named ? named.node : "One of them"} stopped for a moment.`;
}
