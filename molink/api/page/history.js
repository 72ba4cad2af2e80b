// Conversations: that of this tab, and by the reader's choice all of them in this browser.
//
// The tab's is kept so that loading the page again shows it. The history is off until the reader wants
// it. A browser gives an origin some 5 MB: the oldest make room.

import { endText, placeOf } from "./answer.js";
import { button, byId, deleteButton, download, element, on, onFiles } from "./dom.js";

const TAB = "molink-conversation";
const KEEPS = "molink-keeps-history";
const CHAT = "molink-chat-";

// UTF-16 units of all conversations together, and of one title.
const CHARS_MAX = 2_000_000;
const TITLE_CHARS = 60;

// A larger file holds more than can be kept, and would hold up the page.
const FILE_BYTES_MAX = 8_000_000;

// A conversation: `messages` of {role, content, reasoning, facts, end, from}, and of an answer that is being
// written `pending`: {id}.
export function newChat() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), at: Date.now(), messages: [], pending: null };
}

function titleOf(chat) {
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

// The conversations of a file that was saved here; null: it is no such file. Not taken over is which
// PCs served it, nor what would be asked for at a server.
function chatsOf(text) {
  try {
    const told = JSON.parse(text);
    const chats = (Array.isArray(told) ? told : [told]).map((one) => parsedChat(JSON.stringify(one)));
    return chats.every((one) => one && /^[\w-]{1,64}$/.test(one.id)) ? chats.map(asKept) : null;
  } catch {
    return null;
  }
}

function asKept({ id, at, messages }) {
  const kept = messages.map(({ role, content, reasoning, end, from }) => {
    const said = { role, content, reasoning: String(reasoning ?? ""), end: String(end ?? "") };
    return isPlace(from) ? { ...said, from } : said;
  });
  return { id, at: Number.isFinite(at) ? at : 0, messages: kept, pending: null };
}

function isPlace(from) {
  return ["name", "address", "model"].every((part) => typeof from?.[part] === "string");
}

// Whether conversations are kept in this browser.
function keeps() {
  return localStorage.getItem(KEEPS) === "yes";
}

function keep(isKept) {
  if (isKept) localStorage.setItem(KEEPS, "yes");
  else localStorage.removeItem(KEEPS);
}

// The conversation of this tab; undefined: it has none.
export function chatOfTab() {
  return parsedChat(sessionStorage.getItem(TAB)) ?? undefined;
}

// Keep a conversation as it is now; gives a sentence where that has failed, or cost others.
export function saveChat(chat) {
  const text = JSON.stringify(chat);
  try {
    sessionStorage.setItem(TAB, text);
  } catch {
    sessionStorage.removeItem(TAB);
  }
  return keeps() && chat.messages.length ? saveForLong(chat, text) : "";
}

function saveForLong(chat, text) {
  if (text.length > CHARS_MAX)
    return "This conversation is too long for the history: export it, and begin a new one.";
  const gone = makeRoom(chat.id, CHARS_MAX - text.length);
  if (!put(chat.id, text))
    return "This browser has no room for the history: delete conversations, or export them.";
  if (!gone) return "";
  return `The history is full: ${gone === 1 ? "its oldest conversation is" : `its ${gone} oldest conversations are`} deleted.`;
}

// Delete the oldest until the others take so much; how many had to go.
function makeRoom(id, chars) {
  const others = keptChats().filter((one) => one.chat.id !== id);
  let left = others.reduce((sum, one) => sum + one.chars, 0);
  let gone = 0;
  while (left > chars) {
    const oldest = others.pop();
    left -= oldest.chars;
    gone += 1;
    remove(oldest.chat.id);
  }
  return gone;
}

// {chat, chars} of all that are kept, the latest first.
function keptChats() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(CHAT));
  const found = names.map((name) => {
    const text = localStorage.getItem(name);
    return { chat: parsedChat(text) ?? { id: name.slice(CHAT.length), at: 0, messages: [] }, chars: text.length };
  });
  return found.sort((one, other) => other.chat.at - one.chat.at);
}

function remove(id) {
  localStorage.removeItem(CHAT + id);
}

// Keep conversations of a file, the latest first, beside those that are here: of one that both have,
// the later. Nothing that is here has to go. How many are {added, known, left}.
function merge(chats) {
  keep(true);
  const here = keptChats();
  let room = CHARS_MAX - here.reduce((sum, one) => sum + one.chars, 0);
  const count = { added: 0, known: 0, left: 0 };
  for (const chat of [...chats].sort((one, other) => other.at - one.at)) {
    const old = here.find((one) => one.chat.id === chat.id);
    const text = JSON.stringify(chat);
    const more = text.length - (old?.chars ?? 0);
    if (old && old.chat.at >= chat.at) count.known += 1;
    else if (more > room || !put(chat.id, text)) count.left += 1;
    else {
      room -= more;
      count.added += 1;
      here.push({ chat, chars: text.length });
    }
  }
  return count;
}

function put(id, text) {
  try {
    localStorage.setItem(CHAT + id, text);
    return true;
  } catch {
    return false;
  }
}

// What became of a file's conversations, as a sentence.
function mergedText({ added, known, left }) {
  const parts = [`${added} added`];
  if (known) parts.push(`${known} known already`);
  if (left) parts.push(`${left} without room: delete others, and import the file again`);
  return `Conversations of the file: ${parts.join(", ")}.`;
}

function asMarkdown(chat) {
  const said = chat.messages.map((one) => {
    const place = placeOf(one.from);
    const who = one.role === "user" ? "You" : `Answer${place && ` (${one.from.model} at ${place})`}`;
    const end = endText(one.end);
    return `## ${who}\n\n${one.content}\n${end && `\n*${end}*\n`}`;
  });
  return `# ${titleOf(chat)}\n\n${said.join("\n")}`;
}

// The dialog with all that is kept. `current` gives the conversation of now, `onOpen` gets another, or
// none for a new one.
export function historyDialog(current, onOpen) {
  const dialog = byId("history");
  const json = (value) => JSON.stringify(value, null, 1);
  const all = () => keptChats().map((one) => one.chat);
  on("open-history", "click", open);
  on("close-history", "click", () => dialog.close());
  on("keep-history", "change", (event) => {
    keep(event.target.checked);
    show(saveChat(current()));
  });
  on("delete-history", "click", ({ target }) => {
    const sure = `Press again to delete all (${all().length})`;
    if (target.textContent === sure) forget(all());
    else target.textContent = sure;
  });
  on("export-markdown", "click", () => download("conversation.md", "text/markdown", asMarkdown(current())));
  on("export-json", "click", () => download("conversation.json", "application/json", json(current())));
  on("export-all", "click", () => download("conversations.json", "application/json", json(all())));
  onFiles("import-history", "import-file", ([file]) => read(file));

  async function read(file) {
    if (file.size > FILE_BYTES_MAX) {
      const megabytes = (bytes) => `${Math.round(bytes / 1e6)} MB`;
      show(`This file has ${megabytes(file.size)}, at most ${megabytes(FILE_BYTES_MAX)} are read: save fewer conversations into it.`);
    } else {
      const chats = chatsOf(await file.text());
      const none = "This file holds no conversations: import one that this page has saved as JSON.";
      show(chats ? mergedText(merge(chats)) : none);
      openLater();
    }
    byId("keep-history").checked = keeps();
  }

  // What is open would else be kept over a later state of it.
  function openLater() {
    const { id, at } = current();
    const later = all().find((chat) => chat.id === id && chat.at > at);
    if (later) onOpen(later);
  }

  function open() {
    byId("keep-history").checked = keeps();
    show();
    dialog.showModal();
  }

  function show(trouble = "") {
    byId("delete-history").textContent = "Delete all";
    const rows = all().map(row);
    byId("chats").replaceChildren(...rows);
    for (const id of ["delete-history", "export-all"]) byId(id).disabled = rows.length === 0;
    const isEmpty = current().messages.length === 0;
    for (const id of ["export-markdown", "export-json"]) byId(id).disabled = isEmpty;
    byId("history-told").textContent = trouble || (rows.length ? "" : "No conversation is kept.");
  }

  function row(chat) {
    // As it is kept by then; one that is open is ahead of what is kept.
    const title = button(titleOf(chat), () => {
      const kept = all().find(({ id }) => id === chat.id);
      if (!kept) return show("This conversation has been deleted.");
      dialog.close();
      if (kept.id !== current().id) onOpen(kept);
    });
    title.className = "title";
    const places = new Set(chat.messages.map((one) => placeOf(one.from)).filter(Boolean));
    const facts = [new Date(chat.at).toLocaleDateString(), ...places].join(", ");
    const gone = deleteButton(titleOf(chat), () => forget([chat]));
    return element("li", "row", title, element("span", "faint small", facts), gone);
  }

  // What is open is left first: its answer, or the next one, would else bring it back.
  async function forget(chats) {
    if (chats.some(({ id }) => id === current().id)) await onOpen();
    for (const { id } of chats) remove(id);
    show();
    byId("close-history").focus();
  }
}
