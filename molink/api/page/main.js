// The page: the server and its rings, keys, and what is typed; the conversation is in `chat.js`.

import { Announcer } from "./announcer.js";
import { AddressDialog, ModelChoice } from "./addresses.js";
import { getJson } from "./api.js";
import { Chat } from "./chat.js";
import { button, byId, element, on } from "./dom.js";
import { History, HistoryDialog } from "./history.js";
import { takeKeyFromLink } from "./links.js";
import { RingPanel, RingWatch } from "./ring.js";
import { Settings, SettingsDialog } from "./settings.js";

const KEYS = "Enter sends, Shift + Enter starts a line, Esc stops an answer.";

const EXAMPLES = [
  "Compare tea and coffee in a table.",
  "How can a boat sail against the wind?",
  "Write a haiku about an old attic.",
];

class Page {
  #settings = new Settings();
  #announcer = new Announcer(byId("announcer"));
  #panel = new RingPanel(byId("rings"));
  #watch = new RingWatch(
    () => this.#settings.server,
    (view) => this.#showRings(view),
    (error) => this.#ringFailed(error),
  );
  #dialog = new SettingsDialog(this.#settings, (forget) => this.#changeKey(forget));
  #history = new History();
  #choice = new ModelChoice(this.#settings.book, (isElsewhere) => this.#chosen(isElsewhere));
  #chat = new Chat(byId("messages"), {
    settings: this.#settings,
    announcer: this.#announcer,
    history: this.#history,
    panel: this.#panel,
    model: () => this.#model,
    from: () => this.#from(),
    follow: () => this.#follow(),
    whyNothingComes: () => this.#whyNothingComes(),
    askForKey: (why) => this.#askForKey(why),
    giveBack: (text) => this.#giveBack(text),
    told: (sentence) => sentence && this.#told(sentence),
    run: (isRunning) => this.#run(isRunning),
  });
  #url = this.#settings.server.url; // Of the address that this page was opened for.
  #model = null;
  #rings = null; // The last view of the rings.
  #ringsAt = null; // When it came.
  #isAtEnd = true;
  #followedTo = 0; // Where the conversation was scrolled to then.
  #end = element("div", "end");

  start() {
    this.#linked();
    if (!this.#settings.book.isInPlace) return location.replace(this.#settings.book.place);
    byId("conversation").append(this.#end);
    new IntersectionObserver(([entry]) => this.#endSeen(entry.isIntersecting)).observe(this.#end);
    new ResizeObserver(() => this.#follow()).observe(byId("conversation"));
    byId("ring-panel").open = matchMedia("(min-width: 60rem)").matches;
    this.#told("");
    on("composer", "submit", (event) => this.#submitted(event));
    on("question", "keydown", (event) => this.#typed(event));
    on("question", "input", () => fitHeight(byId("question")));
    on("stop", "click", () => this.#chat.stop());
    on("new-chat", "click", () => this.#open());
    on("key-form", "submit", (event) => this.#keyGiven(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.#chat.stop();
    });
    addEventListener("storage", () => this.#isMoved());
    const ask = (text) => button(text, () => this.#giveBack(text));
    byId("examples").append(...EXAMPLES.map(ask));
    new HistoryDialog(this.#history, () => this.#chat.now, (chat) => this.#open(chat));
    new AddressDialog(this.#settings.book, (isGone) => {
      if (isGone) this.#chosen(true);
      else this.#choice.show(this.#model);
    });
    addEventListener("hashchange", () => this.#linked() && this.#connect());
    this.#choice.show(null);
    this.#connect().then((isDone) => isDone || this.#watch.ask());
    this.#open(this.#history.ofTab() ?? undefined);
  }

  // -- the server --

  // Learn the model, then follow the rings. Whether the server could be used.
  async #connect() {
    try {
      const { data } = await getJson("v1/models", this.#settings.server);
      this.#settings.book.learned(data.map((one) => one.id));
      this.#use(data.find((one) => one.id === this.#settings.book.model) ?? data[0]);
    } catch (error) {
      this.#refused(error);
      return false;
    }
    byId("key-form").hidden = true;
    this.#watch.ask();
    return true;
  }

  // Ask this model from now on, as `/v1/models` tells of it.
  #use({ id, max_model_len }) {
    this.#model = id;
    byId("model").textContent = id;
    document.title = `${id} · MoLink`;
    this.#dialog.model(id, max_model_len);
    this.#choice.show(id);
  }

  // Another model was chosen, maybe of another address, for which the page has to be loaded.
  #chosen(isElsewhere) {
    if (!isElsewhere) return void this.#connect();
    const { place, isInPlace } = this.#settings.book;
    if (isInPlace) location.reload();
    else location.assign(place);
  }

  // Whether another tab has changed the addresses so that this one asks another: then it is loaded anew.
  #isMoved() {
    const isMoved = this.#settings.server.url !== this.#url;
    if (isMoved) this.#chosen(true);
    return isMoved;
  }

  // What is kept with an answer of who wrote it.
  #from() {
    const { url, name } = this.#settings.server;
    return { address: url || location.origin + location.pathname, name, model: this.#model ?? "" };
  }

  // Say why the server does not answer, and ask for a key if that is why.
  #refused(error) {
    if (error.status === 401) this.#askForKey(error.message);
    else this.#state(error.message, "bad");
  }

  // Use the key of the page's own address, if there is one, for it alone; whether there is.
  #linked() {
    const secret = takeKeyFromLink();
    if (!secret) return false;
    const isElsewhere = this.#settings.book.chosen !== null;
    this.#settings.book.choose("");
    this.#settings.key = secret;
    if (isElsewhere) this.#chosen(true);
    return true;
  }

  #ringFailed(error) {
    if (this.#ringsAt && error.status === 0) {
      this.#panel.stale(true);
      const time = this.#ringsAt.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
      byId("ring-summary").textContent = `as of ${time}`;
    }
    if (error.status === 401 && byId("key-form").hidden) this.#askForKey(error.message);
    if (error.status !== 401) this.#state(error.message, "bad");
  }

  #showRings(view) {
    this.#rings = view;
    this.#ringsAt = new Date();
    this.#panel.stale(false);
    this.#panel.show(view);
    const pcs = new Set(view.rings.flatMap((ring) => ring.stages.map((stage) => stage.node))).size;
    byId("ring-summary").textContent = pcs
      ? `${counted(pcs, "PC")} in ${counted(view.rings.length, "ring")}`
      : "";
    if (this.#model === null) this.#connect();
    const missed = view.rings.map((ring) => ring.waits_for).filter(Boolean);
    const isWaiting = view.serving && missed.length > 0 && missed.length === view.rings.length;
    if (isWaiting) this.#state(`${missed[0]} does not answer: the ring waits.`, "bad");
    else this.#state(view.serving ? "Ready" : view.reason, view.serving ? "good" : "bad");
  }

  // Told to a screen reader when it changes, not each second.
  #state(text, kind) {
    const node = byId("state");
    node.dataset.kind = kind;
    if (node.textContent !== text) node.textContent = text;
  }

  // -- keys --

  #askForKey(why) {
    this.#state("A key is wanted.", "bad");
    byId("key-form").hidden = false;
    byId("key-why").textContent = why;
    byId("remember").parentElement.hidden = byId("remember-hint").hidden = this.#settings.book.chosen !== null;
    byId("key").value = "";
    byId("key").focus();
  }

  #changeKey(forget) {
    if (forget) this.#settings.key = "";
    this.#askForKey(forget ? "The key is forgotten." : "Give the key to use from now on.");
    if (forget) this.#connect();
  }

  async #keyGiven(event) {
    event.preventDefault();
    const secret = byId("key").value.trim();
    if (!secret) return this.#askForKey("Give a key: it begins with molink-sk-.");
    if (!/^[\x21-\x7e]+$/.test(secret))
      return this.#askForKey("A key is letters, digits and signs without spaces: copy it whole.");
    this.#settings.key = secret;
    if (!(await this.#connect())) return;
    this.#settings.remembersKey = byId("remember").checked;
    byId("question").focus();
  }

  // -- the conversation --

  #typed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || entersNewline()) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  }

  #submitted(event) {
    event.preventDefault();
    const question = byId("question").value.trim();
    if (!question || this.#isMoved()) return;
    if (this.#chat.isRunning) {
      this.#told("An answer is being written: stop it first, or wait for its end.");
      this.#announcer.say("An answer is being written.");
      return;
    }
    this.#question("");
    byId("welcome").hidden = true;
    this.#isAtEnd = true;
    this.#chat.ask(question);
  }

  // Put a text into the box of questions.
  #question(text) {
    byId("question").value = text;
    fitHeight(byId("question"));
  }

  // A question that goes back into its box.
  #giveBack(text) {
    this.#question([text, byId("question").value].filter(Boolean).join("\n"));
    byId("welcome").hidden = this.#chat.now.messages.length > 0;
    byId("question").focus();
  }

  #open(chat) {
    this.#isAtEnd = true;
    this.#chat.open(chat);
    byId("welcome").hidden = this.#chat.now.messages.length > 0;
    byId("question").focus();
  }

  // A sentence below the box of questions; empty: how its keys work.
  #told(sentence) {
    byId("keys").textContent = sentence || (entersNewline() ? "" : KEYS);
    byId("keys").classList.toggle("told", Boolean(sentence));
  }

  #whyNothingComes() {
    const waiting = this.#rings?.rings.find((ring) => ring.waits_for);
    if (waiting) return `${waiting.waits_for} does not answer: the ring waits, and goes on by itself.`;
    if (this.#rings && !this.#rings.serving) {
      return `The ring is being made anew, then the answer goes on: ${this.#rings.reason}`;
    }
    return "Waiting for the ring …";
  }

  // -- while an answer is written --

  // Send and Stop take turns; whoever was on the one that goes is led on.
  #run(isRunning) {
    const [stop, send] = [byId("stop"), byId("send")];
    const focused = document.activeElement;
    stop.hidden = !isRunning;
    send.hidden = isRunning;
    if (!isRunning) this.#told("");
    if (isRunning && focused === send) stop.focus();
    if (!isRunning && focused === stop) byId("question").focus();
  }

  // Keep the end in sight for who was there.
  #follow() {
    if (!this.#isAtEnd) return;
    this.#end.scrollIntoView({ block: "end" });
    this.#followedTo = byId("conversation").scrollTop;
  }

  // Only who has scrolled up has left the end; room that became less has only hidden it.
  #endSeen(isSeen) {
    if (!isSeen && byId("conversation").scrollTop >= this.#followedTo) this.#follow();
    else this.#isAtEnd = isSeen;
  }
}

// On a keyboard of glass Enter is the only way to a new line.
function entersNewline() {
  return matchMedia("(pointer: coarse)").matches;
}

function counted(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

new Page().start();
