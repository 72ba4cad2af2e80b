// The conversation: questions that are asked, answers that are streamed, stopped and gone on with.

import { AnswerView, endText, questionNode, servedSoFar } from "./answer.js";
import { say, sayMore } from "./announcer.js";
import { answerEvents, LEFT } from "./answering.js";
import { button, byId, copyButton, element, pause } from "./dom.js";
import { newChat, saveChat } from "./history.js";
import { markRing } from "./ring.js";
import { settings } from "./settings.js";

// Without a token for so long a reader wants to know why; a round of a slow ring takes less.
const SILENCE_MS = 3000;

// How often a refused question is asked again by itself, and when if the server does not say.
const TRIES_MAX = 20;
const TRY_AGAIN_S = 5;

const BROKEN = "The server cannot be reached: the answer goes on there, and here once it can.";
const NOT_HERE = "This answer is written at another address: choose it again to read on.";

const list = byId("messages");

export let now = newChat(); // The conversation, as `history.js` describes it.
let page;
let views = []; // An element for a question, an AnswerView for an answer.
let running = null; // AbortController of the answer that is being written.
let ending = null; // Fulfilled once that is kept.

// Name of this tab: what another has asked for is not ended by leaving it here.
const tab = (sessionStorage["molink-tab"] ??= newChat().id);

// `around` is what the chat needs of the page around it: model(), from(), follow(), whyNothingComes(),
// askForKey(why), giveBack(text), told(sentence), run(isRunning).
export function beginChat(around) {
  page = around;
}

export function isRunning() {
  return running !== null;
}

export function stop() {
  running?.abort();
}

// Show another conversation, or a new one, and go on with what it waits for. Of an answer that is
// being written what there is is kept first.
export async function open(chat = newChat()) {
  while (running) {
    const isOurs = !now.pending || now.pending.by === tab;
    running.abort(isOurs ? undefined : LEFT);
    await ending;
  }
  rest();
  now = chat;
  views = [];
  list.replaceChildren();
  for (const message of chat.messages) showMessage(message);
  save();
  const { pending } = chat;
  const isHere = pending && (pending.at ?? "") === settings.server.url;
  if (isHere) answerNext({ id: pending.id, goesOn: pending.goesOn });
  else refresh();
  if (pending && !isHere) page.told(NOT_HERE);
}

export function ask(question) {
  if (now.messages.at(-1)?.role === "user") cut(now.messages.length - 1);
  const message = { role: "user", content: question };
  now.messages.push(message);
  now.at = Date.now();
  showMessage(message);
  answerNext();
}

// -- what is shown --

function showMessage(message) {
  let view;
  if (message.role === "user") {
    view = questionNode(message.content, () => edit(view));
  } else {
    view = new AnswerView(page.follow);
    view.show(message.content, message.reasoning ?? "", true);
    view.from(message.from);
    if (message.facts) view.served(message.facts);
    view.note(endText(message.end));
    view.end();
  }
  views.push(view);
  list.append(view.element ?? view);
}

// Take messages from a place on out of the conversation.
function cut(from) {
  now.messages.length = from;
  for (const view of views.splice(from)) (view.element ?? view).remove();
}

function actions(view) {
  const message = now.messages[views.indexOf(view)];
  if (!message) return [];
  const made = message.content ? [copyButton("Copy the answer", () => view.text)] : [];
  if (view !== views.at(-1)) return made;
  made.push(button("Answer again", () => again(view)));
  const isCut = ["stopped", "length", "failed"].includes(message.end);
  if (isCut && message.content) made.push(button("Continue", goOn));
  return made;
}

// Only the last answer can be computed again.
function refresh(busy = null) {
  for (const view of views) {
    if (view instanceof AnswerView && view !== busy) view.end(...actions(view));
  }
}

function save() {
  page.told(saveChat(now));
}

// -- what a reader does with messages --

function edit(node) {
  stop();
  const at = views.indexOf(node);
  const { content } = now.messages[at];
  now.pending = null;
  cut(at);
  refresh();
  save();
  page.giveBack(content);
}

function again(view) {
  if (isRunning()) return;
  cut(views.indexOf(view));
  answerNext();
}

function goOn() {
  if (!isRunning()) answerNext({ goesOn: true });
}

// -- an answer --

function answerNext(how = {}) {
  ending = write(how).catch((error) => {
    rest();
    reportError(error);
  });
}

// Ask for the answer to the conversation as it is; `goesOn`: its last answer goes on.
async function write({ id = null, goesOn = false }) {
  const [chat, controller] = [now, new AbortController()];
  if (!id) chat.pending = null; // What another address writes is not waited for any more.
  const before = goesOn ? chat.messages.at(-1) : { content: "", reasoning: "" };
  const view = goesOn ? views.at(-1) : new AnswerView(page.follow);
  if (!goesOn) {
    views.push(view);
    list.append(view.element);
  }
  view.begin();
  refresh(view);
  running = controller;
  page.run(true);
  page.follow();
  say("Waiting for the answer.");
  save();
  const answer = { role: "assistant", from: page.from() };
  view.from(answer.from);
  let failure = null;
  try {
    const asked = { chat, view, before, answer, goesOn, id, signal: controller.signal };
    await untilAnswered(asked);
    say("The answer is complete.");
  } catch (error) {
    failure = error;
  }
  if (controller.signal.reason === LEFT) return rest();
  chat.pending = null;
  Object.assign(answer, { content: view.text, reasoning: view.reasoning, facts: view.facts });
  if (failure) ended(view, answer, failure);
  else view.note(endText(answer.end));
  took(chat, view, answer, goesOn);
  rest();
  refresh();
  save();
}

function rest() {
  running = null;
  page.run(false);
  markRing(null);
}

// Put an answer into the conversation that it belongs to.
function took(chat, view, answer, goesOn) {
  if (!views.includes(view)) return;
  if (goesOn) chat.messages.pop();
  if (answer.content || answer.reasoning) chat.messages.push(answer);
  chat.at = Date.now();
  view.end();
}

// Ask until there is an answer, again while the server is busy or not there.
async function untilAnswered(asked) {
  for (let tries = 1; ; tries++) {
    try {
      return await stream(asked);
    } catch (error) {
      const mayPass = [0, 429, 503].includes(error.status);
      if (!mayPass || asked.chat.pending || tries === TRIES_MAX) throw error;
      await countdown(asked, error);
    }
  }
}

// Say why it was refused, and wait until it is asked again.
async function countdown({ view, signal }, error) {
  view.element.classList.add("failed");
  say(`${error.message} It is asked again by itself.`);
  const left = element("span", "");
  let isWanted = null;
  const wanted = new Promise((resolve) => (isWanted = resolve));
  view.note(`${error.message} `, left, " ", button("Try again", isWanted));
  for (let seconds = error.retryS ?? TRY_AGAIN_S; seconds > 0; seconds--) {
    left.textContent = `Asking again in ${seconds} s.`;
    if (await Promise.race([pause(1000, signal).then(() => false), wanted.then(() => true)])) break;
  }
  view.element.classList.remove("failed");
  view.note("");
}

async function stream({ chat, view, before, answer, goesOn, id, signal }) {
  const { server } = settings;
  const request = settings.request(page.model(), chat.messages, goesOn);
  let silence = watchSilence(view);
  const onHeaders = (headers) => showServed(view, servedSoFar(headers));
  const onBroken = () => (silence = watchSilence(view, silence, BROKEN));
  let [text, thoughts, said, seen] = [before.content, before.reasoning ?? "", 0, 0];
  try {
    const how = { request, id, server, signal, onHeaders, onBroken };
    for await (const event of answerEvents(how)) {
      if (event.id) {
        begun(chat, { id: event.id, goesOn, at: server.url, by: chat.pending?.by ?? tab });
        silence = watchSilence(view, silence);
      }
      if (event.again || event.id) [text, thoughts] = [before.content, before.reasoning ?? ""];
      if (event.text || event.reasoning) {
        silence = watchSilence(view, silence);
        text += event.text ?? "";
        thoughts += event.reasoning ?? "";
        view.show(text, thoughts);
        const whole = text.length + thoughts.length;
        if (whole > seen) view.tokenCame(); // Else it is read again, and counted already.
        seen = Math.max(seen, whole);
        const told = text.length - before.content.length;
        if (event.text && told > said) {
          sayMore(text.slice(before.content.length + said));
          said = told;
        }
      }
      if (event.end) {
        view.show(text, thoughts, event.end !== "cancelled");
        completed(view, answer, event);
      }
    }
  } finally {
    clearInterval(silence);
  }
}

// From now on the answer is read on by its id, also after the page was loaded again.
function begun(chat, pending) {
  chat.pending = pending;
  save();
}

function completed(view, answer, { end, tokens, served }) {
  answer.end = { incomplete: "length", cancelled: "elsewhere" }[end] ?? "stop";
  const known = served?.nodes.length ? served : { ...view.facts, rate: null };
  showServed(view, { ...known, tokens });
}

function showServed(view, facts) {
  if (!facts.nodes.length && !facts.tokens) return;
  view.served(facts);
  markRing(facts.rings.at(-1) ?? null);
}

// Say why nothing comes, from some silence on; each token begins anew.
function watchSilence(view, before, why = "") {
  clearInterval(before);
  view.note(why);
  if (why) return null;
  return setInterval(() => view.note(page.whyNothingComes()), SILENCE_MS);
}

function ended(view, answer, error) {
  if (error.name === "AbortError") {
    answer.end = "stopped";
    view.note(endText("stopped"));
    say("The answer is stopped.");
  } else if (error.status === 401 && !view.text) {
    takeBack(view);
    page.askForKey(error.message);
  } else {
    answer.end = "failed";
    const isEmpty = !view.text && !view.reasoning;
    const more = isEmpty ? [button("Try again", () => again(view))] : [];
    view.note(`${error.message} `, ...more);
    view.element.classList.add("failed");
    say(`The answer has failed: ${error.message}`);
  }
}

// The question goes back into its box: it was not asked.
function takeBack(view) {
  const at = views.indexOf(view) - 1;
  const { content } = now.messages[at];
  cut(at);
  page.giveBack(content);
}
