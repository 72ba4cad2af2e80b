// The conversation: questions that are asked, answers that are streamed, stopped and gone on with.

import { AnswerView, questionNode, servedSoFar } from "./answer.js";
import { answerEvents } from "./answering.js";
import { button, copyButton, element, pause } from "./dom.js";
import { newChat } from "./history.js";

// Without a token for so long a reader wants to know why; a round of a slow ring takes less.
const SILENCE_MS = 3000;

// How often a refused question is asked again by itself, and when if the server does not say.
const TRIES_MAX = 20;
const TRY_AGAIN_S = 5;

const BROKEN = "The server cannot be reached: the answer goes on there, and here once it can.";
const LENGTH = "The answer ends here: it has as many tokens as it may.";
const ELSEWHERE = "The server has ended this answer.";
const NOT_HERE = "This answer is written at another address: choose it again to read on.";

export class Chat {
  now; // The conversation, as `history.js` describes it.
  #list;
  #page;
  #views = []; // An element for a question, an AnswerView for an answer.
  #running = null; // AbortController of the answer that is being written.

  // `page` is what the chat needs of the page around it: settings, model(), announcer, history,
  // panel, from(), follow(), whyNothingComes(), askForKey(why), giveBack(text), told(sentence), run(isRunning).
  constructor(list, page) {
    this.#list = list;
    this.#page = page;
    this.now = newChat();
  }

  get isRunning() {
    return this.#running !== null;
  }

  stop() {
    this.#running?.abort();
  }

  // Show another conversation, or a new one, and go on with what it waits for.
  open(chat = newChat()) {
    this.stop();
    this.#rest();
    this.now = chat;
    this.#views = [];
    this.#list.replaceChildren();
    for (const message of chat.messages) this.#showMessage(message);
    this.#save();
    const { pending } = chat;
    const isHere = pending && (pending.at ?? "") === this.#page.settings.server.url;
    if (isHere) this.#answer({ id: pending.id, goesOn: pending.goesOn });
    else this.#refresh();
    if (pending && !isHere) this.#page.told(NOT_HERE);
  }

  ask(question) {
    if (this.now.messages.at(-1)?.role === "user") this.#cut(this.now.messages.length - 1);
    const message = { role: "user", content: question };
    this.now.messages.push(message);
    this.now.at = Date.now();
    this.#showMessage(message);
    this.#answer();
  }

  // -- what is shown --

  #showMessage(message) {
    let view;
    if (message.role === "user") {
      view = questionNode(message.content, () => this.#edit(view));
    } else {
      view = new AnswerView(this.#page.follow);
      view.show(message.content, message.reasoning ?? "", true);
      view.from(message.from);
      if (message.facts) view.served(message.facts);
      view.note(endText(message.end));
      view.end();
    }
    this.#views.push(view);
    this.#list.append(view.element ?? view);
  }

  // Take messages from a place on out of the conversation.
  #cut(from) {
    this.now.messages.length = from;
    for (const view of this.#views.splice(from)) (view.element ?? view).remove();
  }

  #actions(view) {
    const message = this.now.messages[this.#views.indexOf(view)];
    if (!message?.content) return [];
    const copy = copyButton("Copy the answer", () => view.text);
    if (view !== this.#views.at(-1)) return [copy];
    const again = button("Answer again", () => this.#again(view));
    const goesOn = ["stopped", "length"].includes(message.end);
    return goesOn ? [copy, again, button("Continue", () => this.#continue(view))] : [copy, again];
  }

  // Only the last answer can be computed again.
  #refresh(running = null) {
    for (const view of this.#views) {
      if (view instanceof AnswerView && view !== running) view.end(...this.#actions(view));
    }
  }

  #save() {
    this.#page.told(this.#page.history.save(this.now));
  }

  // -- what a reader does with messages --

  #edit(node) {
    this.stop();
    const at = this.#views.indexOf(node);
    const { content } = this.now.messages[at];
    this.now.pending = null;
    this.#cut(at);
    this.#refresh();
    this.#save();
    this.#page.giveBack(content);
  }

  #again(view) {
    if (this.isRunning) return;
    this.#cut(this.#views.indexOf(view));
    this.#answer();
  }

  #continue(view) {
    if (!this.isRunning) this.#answer({ view, goesOn: true });
  }

  // -- an answer --

  // Ask for the answer to the conversation as it is; `goesOn`: its last answer goes on.
  async #answer({ id = null, goesOn = false } = {}) {
    const [chat, controller] = [this.now, new AbortController()];
    if (!id) chat.pending = null; // What another address writes is not waited for any more.
    const page = this.#page;
    const before = goesOn ? chat.messages.at(-1) : { content: "", reasoning: "" };
    const view = goesOn ? this.#views.at(-1) : new AnswerView(page.follow);
    if (!goesOn) {
      this.#views.push(view);
      this.#list.append(view.element);
    }
    const isHere = () => chat === this.now && this.#running === controller;
    view.begin();
    this.#refresh(view);
    this.#running = controller;
    page.run(true);
    page.follow();
    page.announcer.say("Waiting for the answer.");
    this.#save();
    const answer = { role: "assistant", content: before.content, reasoning: before.reasoning ?? "" };
    answer.from = page.from();
    view.from(answer.from);
    let failure = null;
    try {
      const asked = { chat, view, before, answer, goesOn, id, signal: controller.signal };
      await this.#untilAnswered(asked);
      page.announcer.say("The answer is complete.");
    } catch (error) {
      failure = error;
    }
    if (chat === this.now) {
      chat.pending = null;
      answer.facts = view.facts;
      if (failure) this.#ended(view, answer, failure);
      else view.note(endText(answer.end));
      this.#took(chat, view, answer, goesOn);
    }
    if (isHere()) {
      this.#rest();
      this.#refresh();
      this.#save();
    }
  }

  #rest() {
    this.#running = null;
    this.#page.run(false);
    this.#page.panel.mark(null);
  }

  // Put an answer into the conversation that it belongs to.
  #took(chat, view, answer, goesOn) {
    if (!this.#views.includes(view)) return;
    if (goesOn) chat.messages.pop();
    if (answer.content || answer.reasoning) chat.messages.push(answer);
    chat.at = Date.now();
    view.end();
  }

  // Ask until there is an answer, again while the server is busy or not there.
  async #untilAnswered(asked) {
    for (let tries = 1; ; tries++) {
      try {
        return await this.#stream(asked);
      } catch (error) {
        const mayPass = [0, 429, 503].includes(error.status);
        if (!mayPass || asked.chat.pending || tries === TRIES_MAX) throw error;
        await this.#countdown(asked, error);
      }
    }
  }

  // Say why it was refused, and wait until it is asked again.
  async #countdown({ view, signal }, error) {
    const page = this.#page;
    view.element.classList.add("failed");
    page.announcer.say(`${error.message} It is asked again by itself.`);
    const left = element("span", "");
    let isWanted = null;
    const now = new Promise((resolve) => (isWanted = resolve));
    view.note(`${error.message} `, left, " ", button("Try again", isWanted));
    for (let seconds = error.retryS ?? TRY_AGAIN_S; seconds > 0; seconds--) {
      left.textContent = `Asking again in ${seconds} s.`;
      if (await Promise.race([pause(1000, signal).then(() => false), now.then(() => true)])) break;
    }
    view.element.classList.remove("failed");
    view.note("");
  }

  async #stream({ chat, view, before, answer, goesOn, id, signal }) {
    const page = this.#page;
    const { settings } = page;
    const { server } = settings;
    const request = settings.request(page.model(), chat.messages, goesOn);
    let silence = this.#watchSilence(view);
    const onHeaders = (headers) => this.#served(view, servedSoFar(headers));
    const onBroken = () => (silence = this.#watchSilence(view, silence, BROKEN));
    let [said, seen] = [0, 0];
    try {
      const how = { request, id, server, signal, onHeaders, onBroken };
      for await (const event of answerEvents(how)) {
        if (event.id) {
          this.#begun(chat, { id: event.id, goesOn, at: server.url });
          silence = this.#watchSilence(view, silence);
        }
        if (event.again || event.id) {
          [answer.content, answer.reasoning] = [before.content, before.reasoning ?? ""];
        }
        if (event.text || event.reasoning) {
          silence = this.#watchSilence(view, silence);
          answer.content += event.text ?? "";
          answer.reasoning += event.reasoning ?? "";
          view.show(answer.content, answer.reasoning);
          const whole = answer.content.length + answer.reasoning.length;
          if (whole > seen) view.tokenCame(); // Else it is read again, and counted already.
          seen = Math.max(seen, whole);
          const told = answer.content.length - before.content.length;
          if (event.text && told > said) {
            page.announcer.add(answer.content.slice(before.content.length + said));
            said = told;
          }
        }
        if (event.end) this.#completed(view, answer, event);
      }
    } finally {
      clearInterval(silence);
    }
  }

  // From now on the answer is read on by its id, also after the page was loaded again.
  #begun(chat, pending) {
    chat.pending = pending;
    this.#save();
  }

  #completed(view, answer, { end, tokens, served }) {
    view.show(answer.content, answer.reasoning, true);
    answer.end = { incomplete: "length", cancelled: "elsewhere" }[end] ?? "stop";
    const known = served?.nodes.length ? served : { ...view.facts, rate: null };
    this.#served(view, { ...known, tokens });
  }

  #served(view, facts) {
    if (!facts.nodes.length && !facts.tokens) return;
    view.served(facts);
    this.#page.panel.mark(facts.rings.at(-1) ?? null);
  }

  // Say why nothing comes, from some silence on; each token begins anew.
  #watchSilence(view, before, why = "") {
    clearInterval(before);
    view.note(why);
    if (why) return null;
    return setInterval(() => view.note(this.#page.whyNothingComes()), SILENCE_MS);
  }

  #ended(view, answer, error) {
    const page = this.#page;
    if (error.name === "AbortError") {
      answer.end = "stopped";
      view.note(endText("stopped"));
      page.announcer.say("The answer is stopped.");
    } else if (error.status === 401 && !view.text) {
      this.#takeBack(view);
      page.askForKey(error.message);
    } else {
      const again = view.text ? [] : [button("Try again", () => this.#again(view))];
      view.note(`${error.message} `, ...again);
      view.element.classList.add("failed");
      page.announcer.say(`The answer has failed: ${error.message}`);
    }
  }

  // The question goes back into its box: it was not asked.
  #takeBack(view) {
    const at = this.#views.indexOf(view) - 1;
    const { content } = this.now.messages[at];
    this.#cut(at);
    this.#page.giveBack(content);
  }
}

function endText(end) {
  return { stopped: "Stopped.", length: LENGTH, elsewhere: ELSEWHERE }[end] ?? "";
}
