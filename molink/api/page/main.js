// The page: the server and its rings, keys, and what is typed; the conversation is in `chat.js`.

import {
  addressDialog,
  choose,
  chosenAddress,
  chosenModel,
  isInPlace,
  learnModels,
  modelChoice,
  placeOfChosen,
} from "./addresses.js";
import { say } from "./announcer.js";
import { getJson } from "./api.js";
import { takeFiles } from "./attach.js";
import * as chat from "./chat.js";
import { button, byId, element, on } from "./dom.js";
import { chatOfTab, historyDialog } from "./history.js";
import { isKey, takeKeyFromLink } from "./links.js";
import { drawRings, watchRings } from "./ring.js";
import { settings, settingsDialog } from "./settings.js";

// What is typed and not sent outlives a load: another address is asked from a page that is loaded anew.
const DRAFT = "molink-draft";

const KEYS = "Enter sends, Shift + Enter starts a line, Esc stops an answer.";

const EXAMPLES = [
  "Compare tea and coffee in a table.",
  "How can a boat sail against the wind?",
  "Write a haiku about an old attic.",
];

const question = byId("question");
const askRings = watchRings(() => settings.server, showRings, ringFailed);
const tellModel = settingsDialog(changeKey);
const showModels = modelChoice(chosen);
const url = settings.server.url; // Of the address that this page was opened for.
let model = null;
let rings = null; // The last view of the rings.
let ringsAt = null; // When it came.
let isAtEnd = true;
let followedTo = 0; // Where the conversation was scrolled to then.
const end = element("div", "end");

function start() {
  chat.beginChat({
    model: () => model,
    from,
    follow,
    whyNothingComes,
    askForKey,
    giveBack,
    told: (sentence) => sentence && told(sentence),
    run,
  });
  linked();
  if (!isInPlace()) return location.replace(placeOfChosen());
  byId("conversation").append(end);
  new IntersectionObserver(([entry]) => endSeen(entry.isIntersecting)).observe(end);
  new ResizeObserver(follow).observe(byId("conversation"));
  byId("ring-panel").open = matchMedia("(min-width: 60rem)").matches;
  told("");
  on("composer", "submit", submitted);
  on("question", "keydown", typed);
  on("question", "input", fitHeight);
  on("stop", "click", chat.stop);
  on("new-chat", "click", () => open());
  on("key-form", "submit", keyGiven);
  on("keep-key", "click", keyKept);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) chat.stop();
  });
  addEventListener("storage", isMoved);
  const ask = (text) => button(text, () => giveBack(text));
  byId("examples").append(...EXAMPLES.map(ask));
  takeFiles(giveBack, tell);
  historyDialog(() => chat.now, open);
  addressDialog((isGone) => {
    if (isGone) chosen(true);
    else showModels(model);
  });
  addEventListener("hashchange", () => linked() && connect());
  showModels(null);
  connect().then((isDone) => isDone || askRings());
  open(chatOfTab());
  write(sessionStorage.getItem(DRAFT) ?? "");
  addEventListener("pagehide", () => sessionStorage.setItem(DRAFT, question.value));
}

// -- the server --

// Learn the model, then follow the rings. Whether the server could be used.
async function connect() {
  try {
    const { data } = await getJson("v1/models", settings.server);
    learnModels(data.map((one) => one.id));
    use(data.find((one) => one.id === chosenModel()) ?? data[0]);
  } catch (error) {
    refused(error);
    return false;
  }
  byId("key-form").hidden = true;
  askRings();
  return true;
}

// Ask this model from now on, as `/v1/models` tells of it.
function use({ id, max_model_len }) {
  model = id;
  byId("model").textContent = id;
  document.title = `${id} · MoLink`;
  tellModel(id, max_model_len);
  showModels(id);
}

// Another model was chosen, maybe of another address, for which the page has to be loaded.
function chosen(isElsewhere) {
  if (!isElsewhere) return void connect();
  if (isInPlace()) location.reload();
  else location.assign(placeOfChosen());
}

// Whether another tab has changed the addresses so that this one asks another: then it is loaded anew.
function isMoved() {
  const isMoved = settings.server.url !== url;
  if (isMoved) chosen(true);
  return isMoved;
}

// What is kept with an answer of who wrote it.
function from() {
  const { url, name } = settings.server;
  return { address: url || location.origin + location.pathname, name, model: model ?? "" };
}

// Say why the server does not answer, and ask for a key if that is why.
function refused(error) {
  if (error.status !== 401) return state(error.message, "bad");
  byId("keep-key").hidden = true;
  askForKey(error.message);
}

// Use the key of the page's own address, if there is one, for it alone; whether there is.
function linked() {
  const secret = takeKeyFromLink();
  if (!secret) return false;
  const isElsewhere = chosenAddress() !== null;
  choose("");
  settings.key = secret;
  if (isElsewhere) chosen(true);
  return true;
}

function ringFailed(error) {
  if (ringsAt && error.status === 0) {
    byId("rings").classList.add("stale");
    const time = ringsAt.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    byId("ring-summary").textContent = `as of ${time}`;
  }
  if (error.status !== 401 || byId("key-form").hidden) refused(error);
}

function showRings(view) {
  rings = view;
  ringsAt = new Date();
  byId("rings").classList.remove("stale");
  drawRings(view);
  const pcs = new Set(view.rings.flatMap((ring) => ring.stages.map((stage) => stage.node))).size;
  byId("ring-summary").textContent = pcs
    ? `${counted(pcs, "PC")} in ${counted(view.rings.length, "ring")}`
    : "";
  if (model === null) connect();
  const missed = view.rings.map((ring) => ring.waits_for).filter(Boolean);
  const isWaiting = view.serving && missed.length > 0 && missed.length === view.rings.length;
  if (isWaiting) state(`${missed[0]} does not answer: the ring waits.`, "bad");
  else state(view.reason ?? "Ready", view.serving ? "good" : "bad");
}

// Told to a screen reader when it changes, not each second.
function state(text, kind) {
  const node = byId("state");
  node.dataset.kind = kind;
  if (node.textContent !== text) node.textContent = text;
}

// -- keys --

function askForKey(why) {
  state("A key is wanted.", "bad");
  byId("key-form").hidden = false;
  byId("key-why").textContent = why;
  byId("remember").parentElement.hidden = byId("remember-hint").hidden = chosenAddress() !== null;
  byId("key").value = "";
  byId("key").focus();
}

function changeKey(forget) {
  if (forget) settings.key = "";
  byId("keep-key").hidden = forget;
  askForKey(forget ? "The key is forgotten." : "Give the key to use from now on.");
  if (forget) connect();
}

async function keyGiven(event) {
  event.preventDefault();
  const secret = byId("key").value.trim();
  if (!secret) return askForKey("Give a key: it begins with molink-sk-.");
  if (!isKey(secret))
    return askForKey("A key is letters, digits and signs without spaces: copy it whole.");
  settings.key = secret;
  if (!(await connect())) return;
  settings.remembersKey = byId("remember").checked;
  question.focus();
}

function keyKept() {
  byId("key-form").hidden = true;
  connect();
  question.focus();
}

// -- the conversation --

function typed(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || entersNewline()) return;
  event.preventDefault();
  byId("composer").requestSubmit();
}

function submitted(event) {
  event.preventDefault();
  const text = question.value.trim();
  if (!text || isMoved()) return;
  if (chat.isRunning()) return tell("An answer is being written: stop it first, or wait for its end.");
  write("");
  told("");
  byId("welcome").hidden = true;
  isAtEnd = true;
  chat.ask(text);
}

// Put a text into the box of questions.
function write(text) {
  question.value = text;
  fitHeight();
}

// Put a text before what is in the box of questions: one that goes back there, or a file.
function giveBack(text) {
  if (!question.value.startsWith(text)) write([text, question.value].filter(Boolean).join("\n"));
  byId("welcome").hidden = chat.now.messages.length > 0;
  question.focus();
}

async function open(other) {
  isAtEnd = true;
  await chat.open(other);
  byId("welcome").hidden = chat.now.messages.length > 0;
  question.focus();
}

// A sentence below the box of questions; empty: how its keys work.
function told(sentence) {
  byId("keys").textContent = sentence || (entersNewline() ? "" : KEYS);
  byId("keys").classList.toggle("told", Boolean(sentence));
}

// The same, also told to a screen reader.
function tell(sentence) {
  told(sentence);
  say(sentence);
}

function whyNothingComes() {
  const waiting = rings?.rings.find((ring) => ring.waits_for);
  if (waiting) return `${waiting.waits_for} does not answer: the ring waits, and goes on by itself.`;
  if (rings && !rings.serving) {
    return `The ring is being made anew, then the answer goes on: ${rings.reason}`;
  }
  return "Waiting for the ring …";
}

// -- while an answer is written --

// Send and Stop take turns; whoever was on the one that goes is led on.
function run(isRunning) {
  const [stop, send] = [byId("stop"), byId("send")];
  const focused = document.activeElement;
  stop.hidden = !isRunning;
  send.hidden = isRunning;
  if (!isRunning) told("");
  if (isRunning && focused === send) stop.focus();
  if (!isRunning && focused === stop) question.focus();
}

// Keep the end of what was said in sight for who was there.
function follow() {
  if (!isAtEnd || !chat.now.messages.length) return;
  end.scrollIntoView({ block: "end" });
  followedTo = byId("conversation").scrollTop;
}

// Only who has scrolled up has left the end; room that became less has only hidden it.
function endSeen(isSeen) {
  if (!isSeen && byId("conversation").scrollTop >= followedTo) follow();
  else isAtEnd = isSeen;
}

// On a keyboard of glass Enter is the only way to a new line.
function entersNewline() {
  return matchMedia("(pointer: coarse)").matches;
}

function counted(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

function fitHeight() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

start();
