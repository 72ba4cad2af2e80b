// The chat: a conversation that is asked, streamed, stopped, and told who answered it.
//
// Nothing of a conversation is kept anywhere but in this page: loading it again forgets it.

import { Announcer } from "./announcer.js";
import { AnswerView, questionNode, servedSoFar } from "./answer.js";
import { getJson, streamChat } from "./api.js";
import { element } from "./dom.js";
import { RingPanel, RingWatch } from "./ring.js";
import { Settings, SettingsDialog } from "./settings.js";

// Without a token for so long a reader wants to know why; a round of a slow ring takes less.
const SILENCE_MS = 3000;

const byId = (id) => document.getElementById(id);

class Page {
  #settings = new Settings();
  #announcer = new Announcer(byId("announcer"));
  #panel = new RingPanel(byId("rings"));
  #watch = new RingWatch(
    () => this.#settings.key,
    (view) => this.#showRings(view),
    (error) => this.#ringFailed(error),
  );
  #dialog = new SettingsDialog(this.#settings, (forget) => this.#changeKey(forget));
  #conversation = []; // {role, content}, as the API takes them.
  #model = null;
  #rings = null; // The last view of the rings.
  #running = null; // AbortController of the answer that is being written.
  #isAtEnd = true;
  #followedTo = 0; // Where the conversation was scrolled to then.
  #end = element("div", "end");

  start() {
    byId("conversation").append(this.#end);
    new IntersectionObserver(([entry]) => this.#endSeen(entry.isIntersecting)).observe(this.#end);
    new ResizeObserver(() => this.#follow()).observe(byId("conversation"));
    byId("ring-panel").open = matchMedia("(min-width: 60rem)").matches;
    byId("keys").textContent = entersNewline()
      ? ""
      : "Enter sends, Shift + Enter starts a line, Esc stops an answer.";
    byId("composer").addEventListener("submit", (event) => this.#submitted(event));
    byId("question").addEventListener("keydown", (event) => this.#typed(event));
    byId("question").addEventListener("input", () => fitHeight(byId("question")));
    byId("stop").addEventListener("click", () => this.#running?.abort());
    byId("new-chat").addEventListener("click", () => this.#newChat());
    byId("key-form").addEventListener("submit", (event) => this.#keyGiven(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !byId("settings").open) this.#running?.abort();
    });
    byId("question").focus();
    this.#connect().then((isDone) => isDone || this.#watch.ask());
  }

  // -- the server ---------------------------------------------------------------------------------

  // Learn the model, then follow the rings. Whether the server could be used.
  async #connect() {
    try {
      const { data } = await getJson("v1/models", this.#settings.key);
      this.#model = data[0].id;
      byId("model").textContent = this.#model;
      document.title = `${this.#model} · MoLink`;
      this.#dialog.model(this.#model, data[0].max_model_len);
    } catch (error) {
      this.#refused(error);
      return false;
    }
    byId("key-form").hidden = true;
    this.#watch.ask();
    return true;
  }

  // Say why the server does not answer, and ask for a key if that is why.
  #refused(error) {
    if (error.status === 401) this.#askForKey(error.message);
    else this.#state(error.message, "bad");
  }

  #ringFailed(error) {
    if (error.status === 401 && byId("key-form").hidden) this.#askForKey(error.message);
    if (error.status !== 401) this.#state(error.message, "bad");
  }

  #showRings(view) {
    this.#rings = view;
    this.#panel.show(view);
    const pcs = new Set(view.rings.flatMap((ring) => ring.stages.map((stage) => stage.node))).size;
    byId("ring-summary").textContent = pcs
      ? `${counted(pcs, "PC")} in ${counted(view.rings.length, "ring")}`
      : "";
    if (this.#model === null) this.#connect();
    this.#state(view.serving ? "Ready" : view.reason, view.serving ? "good" : "bad");
  }

  // Told to a screen reader when it changes, not each second.
  #state(text, kind) {
    const node = byId("state");
    node.dataset.kind = kind;
    if (node.textContent !== text) node.textContent = text;
  }

  // -- keys ---------------------------------------------------------------------------------------

  #askForKey(why) {
    this.#state("A key is wanted.", "bad");
    byId("key-form").hidden = false;
    byId("key-why").textContent = why;
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
    if (await this.#connect()) byId("question").focus();
  }

  // -- the conversation ---------------------------------------------------------------------------

  #typed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || entersNewline()) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  }

  #submitted(event) {
    event.preventDefault();
    const question = byId("question").value.trim();
    if (!question || this.#running) return;
    byId("question").value = "";
    fitHeight(byId("question"));
    byId("welcome").hidden = true;
    document.querySelectorAll(".note button").forEach((again) => again.remove());
    byId("messages").append(questionNode(question));
    if (this.#conversation.at(-1)?.role === "user") this.#conversation.pop(); // It has no answer.
    this.#conversation.push({ role: "user", content: question });
    this.#isAtEnd = true;
    this.#answer();
  }

  #newChat() {
    this.#running?.abort();
    this.#conversation = [];
    byId("messages").replaceChildren();
    byId("welcome").hidden = false;
    byId("question").focus();
  }

  // Ask for the answer to the conversation as it is.
  async #answer() {
    const conversation = this.#conversation;
    const view = new AnswerView(() => this.#follow());
    byId("messages").append(view.element);
    this.#follow();
    this.#run(new AbortController());
    this.#announcer.say("Waiting for the answer.");
    try {
      const reason = await this.#stream(view, this.#running.signal);
      view.note(
        reason === "length" ? "The answer ends here: it has as many tokens as it may." : "",
      );
      this.#announcer.say("The answer is complete.");
    } catch (error) {
      this.#ended(view, error, conversation);
    }
    view.end();
    if (view.text) conversation.push({ role: "assistant", content: view.text });
    this.#run(null);
    this.#panel.mark(null);
  }

  // Show an answer while it comes; gives the reason why it ended.
  async #stream(view, signal) {
    let reason = null;
    let silence = this.#watchSilence(view);
    const request = this.#settings.request(this.#model, this.#conversation);
    const onHeaders = (headers) => this.#served(view, servedSoFar(headers));
    try {
      for await (const chunk of streamChat(request, this.#settings.key, signal, onHeaders)) {
        silence = this.#watchSilence(view, silence);
        const choice = chunk.choices[0];
        if (choice?.delta.reasoning_content) view.addReasoning(choice.delta.reasoning_content);
        if (choice?.delta.content) {
          view.addText(choice.delta.content);
          this.#announcer.add(choice.delta.content);
        }
        reason = choice?.finish_reason ?? reason;
        if (chunk.molink)
          this.#served(view, { ...chunk.molink, tokens: chunk.usage?.completion_tokens });
      }
    } finally {
      clearInterval(silence);
    }
    return reason;
  }

  #served(view, facts) {
    view.served(facts);
    this.#panel.mark(facts.rings.at(-1) ?? null);
  }

  // Say why nothing comes, from some silence on; each token begins anew.
  #watchSilence(view, before) {
    clearInterval(before);
    if (before) view.note("");
    return setInterval(() => view.note(this.#whyNothingComes()), SILENCE_MS);
  }

  #whyNothingComes() {
    if (this.#rings && !this.#rings.serving) {
      return `The ring is being made anew, then the answer goes on: ${this.#rings.reason}`;
    }
    return "Waiting for the ring …";
  }

  #ended(view, error, conversation) {
    if (error.name === "AbortError") {
      view.note("Stopped.");
      this.#announcer.say("The answer is stopped.");
    } else if (error.status === 401) {
      this.#takeBack(view, conversation);
      this.#askForKey(error.message);
    } else {
      const again = element("button", "", "Try again");
      again.type = "button";
      again.addEventListener("click", () => this.#again(view, conversation));
      view.note(`${error.message} `, again);
      view.element.classList.add("failed");
      this.#announcer.say(`The answer has failed: ${error.message}`);
    }
  }

  // The question goes back into its box: it was not asked.
  #takeBack(view, conversation) {
    const { content } = conversation.pop();
    view.element.previousElementSibling.remove();
    view.element.remove();
    byId("question").value = [content, byId("question").value].filter(Boolean).join("\n");
    fitHeight(byId("question"));
  }

  // Ask once more for the last answer, in place of what came of it.
  #again(view, conversation) {
    if (this.#running || conversation !== this.#conversation) return;
    view.element.remove();
    if (conversation.at(-1).role === "assistant") conversation.pop();
    byId("question").focus();
    this.#answer();
  }

  // -- while an answer is written -----------------------------------------------------------------

  // Send and Stop take turns; whoever was on the one that goes is led on.
  #run(controller) {
    const [stop, send] = [byId("stop"), byId("send")];
    const focused = document.activeElement;
    this.#running = controller;
    stop.hidden = controller === null;
    send.hidden = controller !== null;
    if (controller && focused === send) stop.focus();
    if (!controller && focused === stop) byId("question").focus();
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
