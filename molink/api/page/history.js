// Conversations: that of this tab, and by the reader's choice all of them in this browser.
//
// The tab's is kept so that loading the page again shows it, and is gone with the tab. The history is
// off until the reader wants it. A browser gives an origin some 5 MB: the oldest make room.

import { button, download, element } from "./dom.js";

const TAB = "molink-conversation";
const KEEPS = "molink-keeps-history";
const CHAT = "molink-chat-";

// UTF-16 units of all conversations together, and of one title.
const CHARS_MAX = 2_000_000;
const TITLE_CHARS = 60;

const byId = (id) => document.getElementById(id);

// A conversation: `messages` of {role, content, reasoning, facts, end}, and of an answer that is being
// written `pending`: {id}.
export function newChat() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), at: Date.now(), messages: [], pending: null };
}

export function titleOf(chat) {
  const first = chat.messages[0]?.content.replace(/\s+/g, " ").trim() ?? "";
  return first.length > TITLE_CHARS ? `${first.slice(0, TITLE_CHARS - 1)}…` : first || "Empty";
}

// What a page of an earlier version or somebody else has written is no conversation of ours.
function parsedChat(text) {
  try {
    const chat = JSON.parse(text);
    const isSaid = (one) => ["user", "assistant"].includes(one.role) && typeof one.content === "string";
    return typeof chat.id === "string" && chat.messages.every(isSaid) ? chat : null;
  } catch {
    return null;
  }
}

export class History {
  // Whether conversations are kept in this browser.
  get keeps() {
    return localStorage.getItem(KEEPS) === "yes";
  }

  set keeps(isKept) {
    if (isKept) localStorage.setItem(KEEPS, "yes");
    else localStorage.removeItem(KEEPS);
  }

  // The conversation of this tab; null: it has none.
  ofTab() {
    return parsedChat(sessionStorage.getItem(TAB));
  }

  // Keep a conversation as it is now; gives a sentence where that has failed, or cost others.
  save(chat) {
    const text = JSON.stringify(chat);
    try {
      sessionStorage.setItem(TAB, text);
    } catch {
      sessionStorage.removeItem(TAB);
    }
    return this.keeps && chat.messages.length ? this.#saveForLong(chat, text) : "";
  }

  #saveForLong(chat, text) {
    if (text.length > CHARS_MAX)
      return "This conversation is too long for the history: export it, and begin a new one.";
    const gone = this.#makeRoom(chat.id, CHARS_MAX - text.length);
    try {
      localStorage.setItem(CHAT + chat.id, text);
    } catch {
      return "This browser has no room for the history: delete conversations, or export them.";
    }
    if (!gone) return "";
    return `The history is full: ${gone === 1 ? "its oldest conversation is" : `its ${gone} oldest conversations are`} deleted.`;
  }

  // Delete the oldest until the others take so much; how many had to go.
  #makeRoom(id, chars) {
    const others = this.list().filter((one) => one.chat.id !== id);
    let left = others.reduce((sum, one) => sum + one.chars, 0);
    let gone = 0;
    while (left > chars) {
      const oldest = others.pop();
      left -= oldest.chars;
      gone += 1;
      this.remove(oldest.chat.id);
    }
    return gone;
  }

  // {chat, chars} of all that are kept, the latest first.
  list() {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(CHAT));
    const found = names.map((name) => {
      const text = localStorage.getItem(name);
      return { chat: parsedChat(text) ?? { id: name.slice(CHAT.length), at: 0, messages: [] }, chars: text.length };
    });
    return found.sort((one, other) => other.chat.at - one.chat.at);
  }

  remove(id) {
    localStorage.removeItem(CHAT + id);
  }
}

export function asMarkdown(chat) {
  const said = chat.messages.map((one) => `## ${one.role === "user" ? "You" : "Answer"}\n\n${one.content}\n`);
  return `# ${titleOf(chat)}\n\n${said.join("\n")}`;
}

// The dialog with all that is kept. `current` gives the conversation of now, `onOpen` gets another.
export class HistoryDialog {
  #history;
  #current;
  #onOpen;
  #dialog = byId("history");

  constructor(history, current, onOpen) {
    this.#history = history;
    this.#current = current;
    this.#onOpen = onOpen;
    byId("open-history").addEventListener("click", () => this.open());
    byId("close-history").addEventListener("click", () => this.#dialog.close());
    byId("keep-history").addEventListener("change", () => this.#choose());
    byId("delete-history").addEventListener("click", () => this.#deleteAll());
    byId("export-markdown").addEventListener("click", () =>
      download("conversation.md", "text/markdown", asMarkdown(current())),
    );
    byId("export-json").addEventListener("click", () =>
      download("conversation.json", "application/json", JSON.stringify(current(), null, 2)),
    );
  }

  open() {
    byId("keep-history").checked = this.#history.keeps;
    const isEmpty = this.#current().messages.length === 0;
    for (const id of ["export-markdown", "export-json"]) byId(id).disabled = isEmpty;
    this.#show();
    this.#dialog.showModal();
  }

  #choose() {
    this.#history.keeps = byId("keep-history").checked;
    const trouble = this.#history.save(this.#current());
    this.#show(trouble);
  }

  #show(trouble = "") {
    const rows = this.#history.list().map(({ chat }) => this.#row(chat));
    byId("chats").replaceChildren(...rows);
    byId("delete-history").disabled = rows.length === 0;
    const told = rows.length ? "" : "No conversation is kept.";
    byId("history-told").textContent = trouble || told;
  }

  #row(chat) {
    const open = button(titleOf(chat), () => {
      this.#dialog.close();
      this.#onOpen(chat);
    });
    const remove = button("Delete", () => {
      this.#history.remove(chat.id);
      this.#show();
      byId("close-history").focus();
    });
    open.className = "title";
    remove.setAttribute("aria-label", `Delete: ${titleOf(chat)}`);
    const when = element("span", "faint small", new Date(chat.at).toLocaleDateString());
    return element("li", "row", open, when, remove);
  }

  #deleteAll() {
    for (const { chat } of this.#history.list()) this.#history.remove(chat.id);
    this.#show();
    byId("close-history").focus();
  }
}
