// Other coordinators that this reader asks from this page: a name, an address and a key each.
//
// A key goes to its own address alone: whoever asks takes both as one `server` {url, key, name}, whose
// url is empty for the page's own. Addresses stay in this tab, and in this browser only by choice.
// The page's policy lets it ask its own server, and one other origin that the page was loaded with
// (`?with=`); so to choose an address of another origin loads the page anew.

import { button, byId, element, on } from "./dom.js";

const BOOK = "molink-addresses";
const CHOSEN = "molink-chosen";
const OWN_MODELS = "molink-models";

const ENTRIES_MAX = 30;
const NAME_CHARS = 40;

// As the server takes them into its policy, which has no place for other letters.
const HOST = /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/;
const SECRET = /^[\x21-\x7e]*$/;

// What is no address is left out.
function parsed(text) {
  try {
    const isEntry = (one) => [one.name, one.url, one.key].every((part) => typeof part === "string");
    return JSON.parse(text ?? "[]").filter(isEntry);
  } catch {
    return [];
  }
}

// [url, model] that were chosen in this tab.
function choice() {
  return JSON.parse(sessionStorage.getItem(CHOSEN) ?? "[]");
}

export class AddressBook {
  // Whether addresses are kept in this browser.
  get keeps() {
    return localStorage.getItem(BOOK) !== null;
  }

  set keeps(isKept) {
    const { entries } = this;
    for (const store of [localStorage, sessionStorage]) store.removeItem(BOOK);
    this.#write(entries, isKept);
  }

  // {name, url, key, models} of each; `models` as they were when it was last asked.
  get entries() {
    return parsed((this.keeps ? localStorage : sessionStorage).getItem(BOOK));
  }

  #write(entries, isKept = this.keeps) {
    (isKept ? localStorage : sessionStorage).setItem(BOOK, JSON.stringify(entries));
  }

  #change(url, known) {
    this.#write(this.entries.map((one) => (one.url === url ? { ...one, ...known } : one)));
  }

  // The entry whose address is asked now; null: the page's own server is.
  get chosen() {
    return this.entries.find((one) => one.url === choice()[0]) ?? null;
  }

  // The model that was chosen, which the address may have no more; null: none was.
  get model() {
    const [url, model] = choice();
    return url === (this.chosen?.url ?? "") ? (model ?? null) : null;
  }

  choose(url, model = null) {
    sessionStorage.setItem(CHOSEN, JSON.stringify([url, model]));
  }

  // The address that is asked now has said which models it has.
  learned(models) {
    if (this.chosen) this.#change(this.chosen.url, { models });
    else sessionStorage.setItem(OWN_MODELS, JSON.stringify(models));
  }

  set key(secret) {
    this.#change(this.chosen.url, { key: secret });
  }

  // All that can be chosen, the page's own server first.
  servers() {
    const models = JSON.parse(sessionStorage.getItem(OWN_MODELS) ?? "[]");
    return [{ name: "This page's server", url: "", models }, ...this.entries];
  }

  remove(url) {
    this.#write(this.entries.filter((one) => one.url !== url));
  }

  // Add an address, or change what is given of a known one. Gives what became of it as a sentence.
  add({ name, address, key }) {
    const { url, secret, wrong } = readAddress(address);
    if (wrong) return { told: wrong };
    const given = key.trim() || secret;
    if (!SECRET.test(given)) return { told: "A key has no spaces: copy it whole." };
    const others = this.entries.filter((one) => one.url !== url);
    if (others.length >= ENTRIES_MAX)
      return { told: `There are ${ENTRIES_MAX} addresses: delete one first.` };
    const old = this.entries.find((one) => one.url === url) ?? { key: "", models: [] };
    const called = name.trim().slice(0, NAME_CHARS) || old.name || new URL(url).host;
    this.#write([...others, { ...old, name: called, url, key: given || old.key }]);
    return { isIn: true, told: `${called} can be chosen beside the models now.` };
  }

  // Where this page has to be loaded from for its policy to let it ask the chosen address.
  get place() {
    const origin = this.chosen ? new URL(this.chosen.url).origin : location.origin;
    const isOther = origin !== location.origin;
    return location.pathname + (isOther ? `?with=${encodeURIComponent(origin)}` : "");
  }

  // Whether it is loaded from there.
  get isInPlace() {
    const named = (query) => new URLSearchParams(query).get("with");
    return named(location.search) === named(this.place.split("?")[1]);
  }
}

// An address as people give it: {url, secret}, or {wrong}: why it is none. A link with a key brings it.
function readAddress(text) {
  const plain = text.trim();
  const full = plain.includes("://") ? plain : `${location.protocol}//${plain}`;
  const url = URL.canParse(full) ? new URL(full) : null;
  if (!plain || !url || !/^https?:$/.test(url.protocol) || !HOST.test(url.hostname) || url.username)
    return { wrong: "Give an address such as chat.example:8000, or a link with a key." };
  if (location.protocol === "https:" && url.protocol === "http:")
    return { wrong: "This page came over HTTPS, so a browser lets it ask addresses of HTTPS alone." };
  const secret = new URLSearchParams(url.hash.slice(1)).get("key")?.trim() ?? "";
  const path = url.pathname.replace(/\/(v1\/?)?$/, "") + "/";
  if (url.origin + path === location.origin + location.pathname)
    return { wrong: "This is the address of this page itself: it is always there to choose." };
  return { url: url.origin + path, secret };
}

// The models of all addresses, to choose from; in sight once there are several.
export class ModelChoice {
  #book;
  #select = byId("models");

  // `onChoice` is called once another is chosen, with whether it is of another address.
  constructor(book, onChoice) {
    this.#book = book;
    this.#select.addEventListener("change", () => {
      const before = book.chosen?.url ?? "";
      const [url, model] = JSON.parse(this.#select.value);
      book.choose(url, model);
      onChoice(url !== before);
    });
  }

  show(model) {
    const groups = this.#book.servers().map(groupOf);
    const options = groups.flatMap((one) => [...one.children]);
    this.#select.replaceChildren(...(groups.length > 1 ? groups : options));
    this.#select.hidden = options.length < 2;
    byId("model").hidden = !this.#select.hidden;
    this.#select.value = valueOf(this.#book.chosen?.url ?? "", model);
  }
}

function valueOf(url, model) {
  return JSON.stringify([url, model]);
}

function groupOf({ name, url, models }) {
  const group = element("optgroup", "");
  group.label = name;
  const known = models?.length ? models : [null];
  for (const model of known) {
    const option = element("option", "", model ?? name);
    option.value = valueOf(url, model);
    group.append(option);
  }
  return group;
}

// The dialog in which addresses are added and deleted.
export class AddressDialog {
  #book;
  #onChange;
  #dialog = byId("addresses");

  // `onChange` is called after each change, with whether the address that is asked has gone.
  constructor(book, onChange) {
    this.#book = book;
    this.#onChange = onChange;
    on("open-addresses", "click", () => this.open());
    on("close-addresses", "click", () => this.#dialog.close());
    on("keep-addresses", "change", (event) => {
      book.keeps = event.target.checked;
    });
    on("address-form", "submit", (event) => this.#added(event));
    byId("page-origin").textContent = location.origin;
  }

  open() {
    byId("settings").close();
    byId("keep-addresses").checked = this.#book.keeps;
    this.#show("");
    this.#dialog.showModal();
  }

  #added(event) {
    event.preventDefault();
    const fields = ["name", "url", "key"].map((part) => byId(`address-${part}`));
    const [name, address, key] = fields.map((field) => field.value);
    const { isIn, told } = this.#book.add({ name, address, key });
    for (const field of isIn ? fields : []) field.value = "";
    byId("address-url").setAttribute("aria-invalid", String(!isIn));
    byId("address-url").focus();
    this.#show(told);
    this.#onChange(false);
  }

  #show(told) {
    byId("addresses-told").textContent = told;
    byId("address-list").replaceChildren(...this.#book.entries.map((entry) => this.#row(entry)));
  }

  #row({ name, url, key }) {
    const remove = button("Delete", () => {
      const isAsked = this.#book.chosen?.url === url;
      this.#book.remove(url);
      this.#show(`${name} is deleted here, with its key.`);
      byId("close-addresses").focus();
      this.#onChange(isAsked);
    });
    remove.setAttribute("aria-label", `Delete: ${name}`);
    const known = key ? `key ending in ${key.slice(-4)}` : "no key";
    const facts = element("span", "faint small", `${url}, ${known}`);
    const words = element("span", "words", element("strong", "", name), element("br", ""), facts);
    return element("li", "row", words, remove);
  }
}
