// Tells a screen reader what is being written, in sentences and not in tokens.
//
// A live region that grew with each token would be read over and over: a log region gets whole
// sentences, at most one message every few seconds.

import { byId, element } from "./dom.js";

const EVERY_MS = 3000;

// Messages that stay in the region: what has been read needs not be there.
const KEPT = 20;

const SENTENCES = /^.*[.!?:](?=\s)|^.*\n/s;

let held = "";
let timer = null;

// Say a sentence of the page's own, after what is held.
export function say(sentence) {
  put(`${held} ${sentence}`);
  held = "";
  clearTimeout(timer);
  timer = null;
}

// Take more of an answer's text.
export function sayMore(text) {
  held += text;
  timer ??= setTimeout(tell, EVERY_MS);
}

function tell() {
  timer = null;
  const whole = held.match(SENTENCES)?.[0];
  if (!whole) return;
  held = held.slice(whole.length);
  put(whole);
}

function put(text) {
  const plain = text.replace(/[*_`#>|\s]+/g, " ").trim();
  if (!plain) return;
  const region = byId("announcer");
  region.append(element("p", "", plain));
  while (region.childElementCount > KEPT) region.firstElementChild.remove();
}
