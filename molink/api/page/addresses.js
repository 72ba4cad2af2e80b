// Other coordinators that this reader asks from this page: a name, an address and a key each.
//
// A key goes to its own address alone: whoever asks takes both as one `server` {url, key, name}, whose
// url is empty for the page's own. Addresses stay in this tab, and in this browser only by choice.
// The page's policy lets it ask its own server, and one other origin that the page was loaded with
// (`?with=`); so to choose an address of another origin loads the page anew.

import { byId, deleteButton, element, on } from "./dom.js";
import { isKey } from "./links.js";

const BOOK = "molink-addresses";
const CHOSEN = "molink-chosen";
const OWN_MODELS = "molink-models";

const ENTRIES_MAX = 30;
const NAME_CHARS = 40;

// As the server takes them into its policy, which has no place for other letters.
const HOST = /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/;

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

// Whether addresses are kept in this browser.
export function keepsAddresses() {
  return localStorage.getItem(BOOK) !== null;
}

function keepAddresses(isKept) {
  const all = addresses();
  for (const store of [localStorage, sessionStorage]) store.removeItem(BOOK);
  write(all, isKept);
}

// {name, url, key, models} of each; `models` as they were when it was last asked.
function addresses() {
  return parsed((keepsAddresses() ? localStorage : sessionStorage).getItem(BOOK));
}

function write(all, isKept = keepsAddresses()) {
  (isKept ? localStorage : sessionStorage).setItem(BOOK, JSON.stringify(all));
}

// The address that is asked now; null: the page's own server is.
export function chosenAddress() {
  return addresses().find((one) => one.url === choice()[0]) ?? null;
}

// The model that was chosen, which the address may have no more; null: none was.
export function chosenModel() {
  const [url, model] = choice();
  return url === (chosenAddress()?.url ?? "") ? (model ?? null) : null;
}

export function choose(url, model = null) {
  sessionStorage.setItem(CHOSEN, JSON.stringify([url, model]));
}

// Change what is known of the chosen address.
export function changeChosen(known) {
  const { url } = chosenAddress();
  write(addresses().map((one) => (one.url === url ? { ...one, ...known } : one)));
}

// The address that is asked now has said which models it has.
export function learnModels(models) {
  if (chosenAddress()) changeChosen({ models });
  else sessionStorage.setItem(OWN_MODELS, JSON.stringify(models));
}

// All that can be chosen, the page's own server first.
function servers() {
  const models = JSON.parse(sessionStorage.getItem(OWN_MODELS) ?? "[]");
  return [{ name: "This page's server", url: "", models }, ...addresses()];
}

// Add an address, or change what is given of a known one. Gives what became of it as a sentence.
function add({ name, address, key }) {
  const { url, secret, wrong } = readAddress(address);
  if (wrong) return { told: wrong };
  const given = key.trim() || secret;
  if (given && !isKey(given)) return { told: "A key has no spaces: copy it whole." };
  const others = addresses().filter((one) => one.url !== url);
  if (others.length >= ENTRIES_MAX)
    return { told: `There are ${ENTRIES_MAX} addresses: delete one first.` };
  const old = addresses().find((one) => one.url === url) ?? { key: "", models: [] };
  const called = name.trim().slice(0, NAME_CHARS) || old.name || new URL(url).host;
  write([...others, { ...old, name: called, url, key: given || old.key }]);
  return { isIn: true, told: `${called} can be chosen beside the models now.` };
}

// Where this page has to be loaded from for its policy to let it ask the chosen address.
export function placeOfChosen() {
  const origin = new URL(chosenAddress()?.url ?? location).origin;
  const isOther = origin !== location.origin;
  return location.pathname + (isOther ? `?with=${encodeURIComponent(origin)}` : "");
}

// Whether it is loaded from there.
export function isInPlace() {
  const named = (query) => new URLSearchParams(query).get("with");
  return named(location.search) === named(placeOfChosen().split("?")[1]);
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

// The models of all addresses, to choose from; in sight once there are several. `onChoice` is called
// once another is chosen, with whether it is of another address. Gives what shows them: the model of now.
export function modelChoice(onChoice) {
  const select = byId("models");
  const asked = () => chosenAddress()?.url ?? "";
  select.addEventListener("change", () => {
    const before = asked();
    const [url, model] = JSON.parse(select.value);
    choose(url, model);
    onChoice(url !== before);
  });
  return (model) => {
    const groups = servers().map(groupOf);
    const options = groups.flatMap((one) => [...one.children]);
    select.replaceChildren(...(groups.length > 1 ? groups : options));
    select.hidden = options.length < 2;
    byId("model").hidden = !select.hidden;
    select.value = valueOf(asked(), model);
  };
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

// The dialog in which addresses are added and deleted. `onChange` is called after each change, with
// whether the address that is asked has gone.
export function addressDialog(onChange) {
  const dialog = byId("addresses");
  on("open-addresses", "click", open);
  on("close-addresses", "click", () => dialog.close());
  on("keep-addresses", "change", (event) => keepAddresses(event.target.checked));
  on("address-form", "submit", submit);
  byId("page-origin").textContent = location.origin;

  function open() {
    byId("settings").close();
    byId("keep-addresses").checked = keepsAddresses();
    show("");
    dialog.showModal();
  }

  function submit(event) {
    event.preventDefault();
    const fields = ["name", "url", "key"].map((part) => byId(`address-${part}`));
    const [name, address, key] = fields.map((field) => field.value);
    const { isIn, told } = add({ name, address, key });
    for (const field of isIn ? fields : []) field.value = "";
    byId("address-url").setAttribute("aria-invalid", String(!isIn));
    byId("address-url").focus();
    show(told);
    onChange(false);
  }

  function show(told) {
    byId("addresses-told").textContent = told;
    byId("address-list").replaceChildren(...addresses().map(row));
  }

  function row({ name, url, key }) {
    const known = key ? `key ending in ${key.slice(-4)}` : "no key";
    const facts = element("span", "faint small", `${url}, ${known}`);
    const words = element("span", "words", element("strong", "", name), element("br", ""), facts);
    return element("li", "row", words, deleteButton(name, () => remove(name, url)));
  }

  function remove(name, url) {
    const isAsked = chosenAddress()?.url === url;
    write(addresses().filter((one) => one.url !== url));
    show(`${name} is deleted here, with its key.`);
    byId("close-addresses").focus();
    onChange(isAsked);
  }
}
