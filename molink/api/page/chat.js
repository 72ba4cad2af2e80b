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
const REPLACES = "Sending replaces the marked message and all that follows.";
const STAYS = "No other answer has come: this one stays.";
const NOT_HERE = "This answer is written at another address: choose it again to read on.";

const list = byId("messages");

export let now = newChat(); // The conversation, as `history.js` describes it.
let page;
let views = []; // An element for a question, an AnswerView for an answer.
let edited = null; // The question that the next one replaces.
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
  edited = null;
  list.replaceChildren();
  for (const message of chat.messages) showMessage(message);
  save();
  const { pending } = chat;
  const isHere = pending && (pending.at ?? "") === settings.server.url;
  if (isHere) answerNext(pending);
  else refresh();
  if (pending && !isHere) page.told(NOT_HERE);
}

export function ask(question) {
  if (edited) cut(views.indexOf(edited));
  else if (now.messages.at(-1)?.role === "user") cut(now.messages.length - 1);
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
  if (!views.includes(edited)) edited = null;
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

// Give a question back to be changed, or no longer; it stays until another is sent in its place.
async function edit(node) {
  stop();
  await ending;
  if (!views.includes(node)) return;
  for (const one of [edited, node]) {
    one?.querySelector("button").setAttribute("aria-pressed", one !== edited);
  }
  edited = edited === node ? null : node;
  if (!edited) return rest();
  page.told(REPLACES);
  page.giveBack(now.messages[views.indexOf(node)].content);
}

// Another answer takes the place of the last one, or of none.
function again(view) {
  if (isRunning()) return;
  const at = views.indexOf(view);
  const anew = at < now.messages.length;
  if (!anew) cut(at);
  answerNext({ anew });
}

function goOn() {
  if (!isRunning()) answerNext({ goesOn: true });
}

// -- an answer --

function answerNext(how = {}) {
  ending = write(how).catch((error) => rest(reportError(error)));
}

// Ask for the answer to the conversation as it is; `goesOn`: its last answer goes on, `anew`: it stays
// until there is another.
async function write({ id = null, goesOn = false, anew = false }) {
  if (!id) now.pending = null; // What another address writes is not waited for any more.
  const { content = "", reasoning = "" } = goesOn ? now.messages.at(-1) : {};
  const old = anew ? views.pop() : null;
  old?.element.remove();
  const view = goesOn ? views.at(-1) : new AnswerView(page.follow);
  if (!goesOn) {
    views.push(view);
    list.append(view.element);
  }
  view.begin();
  refresh(view);
  const { signal } = (running = new AbortController());
  page.run(true);
  page.follow();
  say("Waiting for the answer.");
  save();
  const answer = { role: "assistant", from: page.from() };
  view.from(answer.from);
  let failure = null;
  try {
    await untilAnswered({ view, before: [content, reasoning], answer, goesOn, anew, id, signal });
    say("The answer is complete.");
  } catch (error) {
    failure = error;
  }
  if (signal.reason === LEFT) return rest();
  now.pending = null;
  Object.assign(answer, { content: view.text, reasoning: view.reasoning, facts: view.facts });
  if (old && isEmpty(view)) putBack(old, view, failure);
  else if (failure) ended(view, answer, failure);
  else view.note(endText(answer.end));
  if (!isEmpty(view)) {
    if (goesOn || anew) now.messages.pop();
    now.messages.push(answer);
  }
  now.at = Date.now();
  rest();
  save();
  refresh();
}

function rest() {
  running = null;
  page.run(false);
  markRing(null);
}

// The last answer stays: no other has come in its place.
function putBack(old, view, failure) {
  views.splice(-1, 1, old);
  view.element.replaceWith(old.element);
  const why = failure && failure.name !== "AbortError" ? `${failure.message} ${STAYS}` : STAYS;
  old.note(why);
  say(why);
}

// Ask until there is an answer, again while the server is busy or not there.
async function untilAnswered(asked) {
  for (let tries = 1; ; tries++) {
    try {
      return await stream(asked);
    } catch (error) {
      const mayPass = [0, 429, 503].includes(error.status);
      if (!mayPass || now.pending || tries === TRIES_MAX) throw error;
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

async function stream({ view, before, answer, goesOn, anew, id, signal }) {
  const { server } = settings;
  const request = settings.request(page.model(), now.messages.slice(0, anew ? -1 : undefined), goesOn);
  let silence = watchSilence(view);
  const onHeaders = (headers) => showServed(view, servedSoFar(headers));
  const onBroken = () => (silence = watchSilence(view, silence, BROKEN));
  let [text, thoughts] = before;
  let [said, seen] = [text.length, 0];
  try {
    const how = { request, id, server, signal, onHeaders, onBroken };
    for await (const event of answerEvents(how)) {
      if (event.id) {
        // From now on it is read on by its id, also after the page was loaded again.
        now.pending = { id: event.id, goesOn, anew, at: server.url, by: now.pending?.by ?? tab };
        save();
        silence = watchSilence(view, silence);
      }
      if (event.again || event.id) [text, thoughts] = before;
      if (event.text || event.reasoning) {
        silence = watchSilence(view, silence);
        text += event.text ?? "";
        thoughts += event.reasoning ?? "";
        view.show(text, thoughts);
        const whole = text.length + thoughts.length;
        if (whole > seen) view.tokenCame(); // Else it is read again, and counted already.
        seen = Math.max(seen, whole);
        if (text.length > said) sayMore(text.slice(said));
        said = Math.max(said, text.length);
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
  } else if (error.status === 401 && isEmpty(view)) {
    takeBack(view);
    page.askForKey(error.message);
  } else {
    answer.end = "failed";
    const more = isEmpty(view) ? [button("Try again", () => again(view))] : [];
    view.note(`${error.message} `, ...more);
    view.element.classList.add("failed");
    say(`The answer has failed: ${error.message}`);
  }
}

function isEmpty(view) {
  return !view.text && !view.reasoning;
}

// The question goes back into its box: it was not asked.
function takeBack(view) {
  const at = views.indexOf(view) - 1;
  const { content } = now.messages[at];
  cut(at);
  page.giveBack(content);
}
