// The rings as they are now, asked for once a second while somebody looks.
//
// A picture for who sees it: an arc for each PC, as long as its share of the layers, filled as far
// as it is busy. Beside it the same as a list, for screen readers.

import { getJson } from "./api.js";
import { amount, byId, element } from "./dom.js";

const EVERY_MS = 1000;

// After a failure: a server that starts anew needs seconds.
const AGAIN_MS = 3000;

// Silence after which a server is taken for gone: its PC sleeps, or a router has dropped the line.
const SILENT_MS = 10_000;

const SVG = "http://www.w3.org/2000/svg";
const RADIUS = 44;
const WIDTH = 14;

// Between two arcs, as a share of the circle; beyond so many arcs there is no room for numbers.
const GAP = 0.012;
const NUMBERED_MAX = 16;

// Ask for the rings of `server()` once a second, and hand each view to `onView`, each failure to
// `onError`; not while the page is hidden. Gives what asks now.
export function watchRings(server, onView, onError) {
  let timer = null;
  let turn = new AbortController();
  document.addEventListener("visibilitychange", ask);
  return ask;

  async function ask() {
    clearTimeout(timer);
    turn.abort();
    const mine = (turn = new AbortController());
    if (document.hidden) return;
    timer = setTimeout(() => mine.abort(new DOMException("", "TimeoutError")), SILENT_MS);
    let wait = AGAIN_MS;
    try {
      onView(await getJson("ring", server(), mine.signal));
      wait = EVERY_MS;
    } catch (error) {
      if (mine !== turn) return; // Asked for again meanwhile.
      onError(error);
      if (error.status === 401) wait = Infinity; // Until there is a key, and somebody asks again.
    }
    clearTimeout(timer);
    if (wait < Infinity) timer = setTimeout(ask, wait);
  }
}

let drawn = new Map(); // By what a ring consists of: its element and how to update it.
let answering = null;

// Draw a view; what only changes in figures is changed in place.
export function drawRings(view) {
  const before = drawn;
  drawn = new Map();
  for (const ring of view.rings) {
    const name = JSON.stringify([ring.ring, ring.stages.map((one) => [one.node, one.layers])]);
    drawn.set(name, before.get(name) ?? drawRing(ring, view.rings.length > 1));
    drawn.get(name).update(ring);
  }
  const changed = [...drawn.keys()].join() !== [...before.keys()].join();
  if (changed || !drawn.size) {
    const elements = [...drawn.values()].map((one) => one.element);
    byId("rings").replaceChildren(...(drawn.size ? elements : [element("p", "", "No ring serves at present.")]));
  }
  markRing(answering);
}

// Mark the ring that computes this reader's answer; null: none does. Where that ring has gone and
// there is only one other, the answer goes on there.
export function markRing(number) {
  answering = number;
  for (const one of drawn.values()) {
    const isIt = number !== null && (one.number === number || drawn.size === 1);
    one.element.classList.toggle("answering", isIt);
  }
}

// -- one ring --

function drawRing(ring, isOneOfMany) {
  const picture = drawPicture(ring);
  const rows = ring.stages.map((stage, index) => drawStage(ring, stage, index));
  const list = element("ol", "stages", ...rows.map((row) => row.element));
  const title = isOneOfMany ? [element("h3", "", `Ring ${ring.ring}`)] : [];
  return {
    element: element("section", "ring", ...title, picture.element, list),
    number: ring.ring,
    update(now) {
      this.element.classList.toggle("waiting", Boolean(now.waits_for));
      now.stages.forEach((stage, index) => {
        const isAway = stage.node === now.waits_for;
        picture.update(index, isAway ? 0 : share(stage.busy_share), isAway);
        rows[index].update(stage, lineFrom(now, index), isAway);
      });
    },
  };
}

function share(value) {
  return Math.min(1, Math.max(0, Number(value) || 0));
}

// The line over which a stage sends to the next one; the last one's leads back to the first.
function lineFrom(ring, index) {
  const to = ring.stages[(index + 1) % ring.stages.length].node;
  return ring.links.find((link) => link.from === ring.stages[index].node && link.to === to);
}

function drawStage(ring, stage, index) {
  const [first, end] = stage.layers;
  const next = ring.stages[(index + 1) % ring.stages.length].node;
  const busy = element("span", "busy", "");
  const line = element("p", "line faint small", "");
  const name = element("bdi", "name", stage.node);
  const held = end - first === 1 ? `layer ${first}` : `layers ${first}–${end - 1}`;
  const layers = element("span", "faint", held);
  const isLast = index === ring.stages.length - 1;
  return {
    element: element("li", "", element("p", "stage", name, " ", layers, " ", busy), line),
    update(now, link, isAway) {
      setText(busy, isAway ? "no answer" : `${Math.round(100 * share(now.busy_share))} % busy`);
      const where = isLast ? `back to ${next}` : `to ${next}`;
      const told = `${isLast ? "↺" : "↓"} ${where}: ${lineText(link)}`;
      setText(line, ring.stages.length > 1 ? told : "");
    },
  };
}

function lineText(link) {
  if (!link || link.rate_mbps == null || link.rtt_ms == null) return "not measured yet";
  return `${amount(link.rate_mbps)}\u00a0Mbit/s, RTT\u00a0${amount(link.rtt_ms)}\u00a0ms`;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// -- the picture --

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawPicture(ring) {
  const layers = ring.stages.map((stage) => stage.layers[1] - stage.layers[0]);
  const total = layers.reduce((sum, one) => sum + one, 0);
  const arcs = [];
  const parts = [];
  let from = 0;
  layers.forEach((count, index) => {
    const to = from + count / total;
    arcs.push(drawArc(from, to, layers.length));
    parts.push(arcs[index].element);
    if (layers.length <= NUMBERED_MAX) parts.push(drawNumber((from + to) / 2, index + 1));
    from = to;
  });
  const runner = svg("g", { class: "runner" }, svg("circle", { cx: 60, cy: 60 - RADIUS, r: 3.5 }));
  const word = total === 1 ? "layer" : "layers";
  const middle = [drawText(60, 57, total, "count"), drawText(60, 70, word, "word")];
  const picture = svg("svg", { viewBox: "0 0 120 120", class: "picture", "aria-hidden": "true" });
  picture.append(...parts, ...middle, runner);
  return { element: picture, update: (index, ...how) => arcs[index].update(...how) };
}

// An arc is a circle with dashes: one as long as the arc, then none.
function drawArc(from, to, count) {
  const gap = count > 1 ? Math.min(GAP, (to - from) / 3) : 0;
  const length = to - from - gap;
  const turn = `rotate(${360 * (from + gap / 2) - 90} 60 60)`;
  const place = { cx: 60, cy: 60, r: RADIUS, pathLength: 1, transform: turn };
  const shape = { ...place, fill: "none", "stroke-width": WIDTH };
  const held = svg("circle", { ...shape, class: "held", "stroke-dasharray": `${length} 1` });
  const busy = svg("circle", { ...shape, class: "used", "stroke-dasharray": "0 1" });
  return {
    element: svg("g", {}, held, busy),
    update(part, isAway) {
      busy.setAttribute("stroke-dasharray", `${length * part} 1`);
      held.classList.toggle("away", isAway);
    },
  };
}

function drawNumber(at, number) {
  const angle = 2 * Math.PI * at - Math.PI / 2;
  const outside = RADIUS + WIDTH / 2 + 5.5;
  const [x, y] = [60 + outside * Math.cos(angle), 60 + outside * Math.sin(angle)];
  return drawText(x, y + 2.5, number, "number");
}

function drawText(x, y, text, kind) {
  const place = { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": "middle" };
  return svg("text", { ...place, class: kind }, text);
}
