// What the reader has set: of this tab alone, and gone with it.
//
// The key is a secret, so nothing here outlives the tab, unless the reader has the key remembered. Keys
// of other addresses are in `addresses.js`: here it is always the key of the address that is asked.

import { AddressBook } from "./addresses.js";
import { byId, on } from "./dom.js";

const KEY = "molink-key";
const SETTINGS = "molink-settings";

export class Settings {
  temperature = null;
  maxTokens = null;
  systemPrompt = "";
  book = new AddressBook();

  constructor() {
    try {
      Object.assign(this, JSON.parse(sessionStorage.getItem(SETTINGS) ?? "{}"));
    } catch {
      sessionStorage.removeItem(SETTINGS);
    }
  }

  // Who is asked, as `api.js` takes it.
  get server() {
    const { chosen } = this.book;
    return { url: chosen?.url ?? "", name: chosen?.name ?? "", key: this.key };
  }

  get key() {
    if (this.book.chosen) return this.book.chosen.key;
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
  }

  set key(secret) {
    if (this.book.chosen) {
      this.book.key = secret;
      return;
    }
    if (secret) {
      sessionStorage.setItem(KEY, secret);
      return;
    }
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  }

  // Whether the key is remembered on this device.
  get remembersKey() {
    if (this.book.chosen) return this.book.keeps;
    return localStorage.getItem(KEY) !== null;
  }

  // Of another address it is chosen with all addresses.
  set remembersKey(isRemembered) {
    if (this.book.chosen) return;
    if (isRemembered && this.key) localStorage.setItem(KEY, this.key);
    else localStorage.removeItem(KEY);
  }

  save(values) {
    Object.assign(this, values);
    sessionStorage.setItem(SETTINGS, JSON.stringify(values));
  }

  // A request for the answer to a conversation; `goesOn`: its last answer goes on.
  request(model, messages, goesOn) {
    const input = messages.map(({ role, content }) => ({ role, content }));
    const request = { model, input };
    if (this.systemPrompt.trim()) request.instructions = this.systemPrompt.trim();
    if (this.temperature !== null) request.temperature = this.temperature;
    if (this.maxTokens !== null) request.max_output_tokens = this.maxTokens;
    if (goesOn) request.continue_final_message = true;
    return request;
  }
}

// The dialog in which settings are changed.
export class SettingsDialog {
  #settings;
  #dialog = byId("settings");
  #fields = {
    temperature: byId("temperature"),
    maxTokens: byId("max-tokens"),
    systemPrompt: byId("system-prompt"),
  };

  // `onKey` is called when the reader wants another key, or none (true).
  constructor(settings, onKey) {
    this.#settings = settings;
    on("open-settings", "click", () => this.open());
    on("cancel-settings", "click", () => this.#dialog.close());
    on("settings-form", "submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    for (const [id, forget] of [
      ["change-key", false],
      ["forget-key", true],
    ]) {
      on(id, "click", () => {
        this.#dialog.close();
        onKey(forget);
      });
    }
  }

  // Tell what the server has said of its model.
  model(name, tokensMax) {
    byId("settings-model").textContent = name;
    this.#fields.maxTokens.max = tokensMax ?? "";
    const most = tokensMax ? `, at most ${tokensMax} with the conversation` : "";
    byId("max-tokens-hint").textContent = `Empty: as many as fit${most}.`;
  }

  open() {
    const { temperature, maxTokens, systemPrompt } = this.#fields;
    temperature.value = this.#settings.temperature ?? "";
    maxTokens.value = this.#settings.maxTokens ?? "";
    systemPrompt.value = this.#settings.systemPrompt;
    this.#check();
    const key = this.#settings.key;
    const where = this.#settings.remembersKey ? ", remembered on this device" : "";
    byId("key-state").textContent = key ? `in use, ending in ${key.slice(-4)}${where}` : "none";
    byId("forget-key").disabled = !key;
    this.#dialog.showModal();
  }

  #save() {
    const wrong = this.#check();
    if (wrong) {
      wrong.focus();
      return;
    }
    const { temperature, maxTokens, systemPrompt } = this.#fields;
    this.#settings.save({
      temperature: numberIn(temperature),
      maxTokens: numberIn(maxTokens),
      systemPrompt: systemPrompt.value,
    });
    this.#dialog.close();
  }

  // Say beside each field what is wrong with it; the first one that is.
  #check() {
    const { temperature, maxTokens } = this.#fields;
    const most = maxTokens.max ? `from 1 to ${maxTokens.max}` : "of 1 or more";
    const sentences = [
      [temperature, "Give a number from 0 to 100, or nothing."],
      [maxTokens, `Give a whole number ${most}, or nothing.`],
    ];
    for (const [field, sentence] of sentences) {
      const isWrong = !field.checkValidity();
      byId(`${field.id}-error`).textContent = isWrong ? sentence : "";
      field.setAttribute("aria-invalid", String(isWrong));
    }
    return [temperature, maxTokens].find((field) => !field.checkValidity());
  }
}

function numberIn(field) {
  return field.value === "" ? null : field.valueAsNumber;
}
