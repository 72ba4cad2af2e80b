// Tells a screen reader what is being written, in sentences and not in tokens.
//
// A live region that grew with each token would be read over and over: a log region gets whole
// sentences, at most one message every few seconds.

const EVERY_MS = 3000;

// Messages that stay in the region: what has been read needs not be there.
const KEPT = 20;

const SENTENCES = /^.*[.!?:](?=\s)|^.*\n/s;

export class Announcer {
  #region;
  #held = "";
  #timer = null;

  constructor(region) {
    this.#region = region;
  }

  // Say a sentence of the page's own, after what is held.
  say(sentence) {
    this.#put(`${this.#held} ${sentence}`);
    this.#held = "";
    clearTimeout(this.#timer);
    this.#timer = null;
  }

  // Take more of an answer's text.
  add(text) {
    this.#held += text;
    this.#timer ??= setTimeout(() => this.#tell(), EVERY_MS);
  }

  #tell() {
    this.#timer = null;
    const whole = this.#held.match(SENTENCES)?.[0];
    if (!whole) return;
    this.#held = this.#held.slice(whole.length);
    this.#put(whole);
  }

  #put(text) {
    const plain = text.replace(/[*_`#>|\s]+/g, " ").trim();
    if (!plain) return;
    const line = document.createElement("p");
    line.textContent = plain;
    this.#region.append(line);
    while (this.#region.childElementCount > KEPT) this.#region.firstElementChild.remove();
  }
}
