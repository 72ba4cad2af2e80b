// What the reader has set: of this tab alone, and gone with it.
//
// The key is a secret, so nothing here outlives the tab, unless the reader has the key remembered. Keys
// of other addresses are in `addresses.js`: here it is always the key of the address that is asked.

import { changeChosen, chosenAddress, keepsAddresses } from "./addresses.js";
import { byId, on } from "./dom.js";

const KEY = "molink-key";
const SETTINGS = "molink-settings";

class Settings {
  temperature = null;
  maxTokens = null;
  systemPrompt = "";

  constructor() {
    try {
      Object.assign(this, JSON.parse(sessionStorage.getItem(SETTINGS) ?? "{}"));
    } catch {
      sessionStorage.removeItem(SETTINGS);
    }
  }

  // Who is asked, as `api.js` takes it.
  get server() {
    const { url, name } = chosenAddress() ?? { url: "", name: "" };
    return { url, name, key: this.key };
  }

  get key() {
    return chosenAddress()?.key ?? sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
  }

  set key(secret) {
    if (chosenAddress()) return changeChosen({ key: secret });
    if (secret) return sessionStorage.setItem(KEY, secret);
    for (const store of [sessionStorage, localStorage]) store.removeItem(KEY);
  }

  // Whether the key is remembered on this device.
  get remembersKey() {
    return chosenAddress() ? keepsAddresses() : localStorage.getItem(KEY) !== null;
  }

  // Of another address it is chosen with all addresses.
  set remembersKey(isRemembered) {
    if (chosenAddress()) return;
    if (isRemembered && this.key) localStorage.setItem(KEY, this.key);
    else localStorage.removeItem(KEY);
  }

  save(values) {
    Object.assign(this, values);
    sessionStorage.setItem(SETTINGS, JSON.stringify(values));
  }

  // A request for the answer to a conversation; `goesOn`: its last answer goes on. An answer that came
  // to reasoning alone is left out with its question.
  request(model, messages, goesOn) {
    const said = messages.filter((one, at) => one.content && messages[at + 1]?.content !== "");
    const input = said.map(({ role, content }) => ({ role, content }));
    const request = { model, input };
    if (this.systemPrompt.trim()) request.instructions = this.systemPrompt.trim();
    if (this.temperature !== null) request.temperature = this.temperature;
    if (this.maxTokens !== null) request.max_output_tokens = this.maxTokens;
    if (goesOn) request.continue_final_message = true;
    return request;
  }
}

export const settings = new Settings();

// The dialog in which settings are changed. `onKey` is called when the reader wants another key, or
// none (true). Gives what tells the dialog what the server has said of its model.
export function settingsDialog(onKey) {
  const dialog = byId("settings");
  const [temperature, maxTokens, systemPrompt] = ["temperature", "max-tokens", "system-prompt"].map(byId);
  on("open-settings", "click", open);
  on("cancel-settings", "click", () => dialog.close());
  on("settings-form", "submit", save);
  for (const id of ["change-key", "forget-key"]) {
    on(id, "click", () => {
      dialog.close();
      onKey(id === "forget-key");
    });
  }

  function open() {
    temperature.value = settings.temperature ?? "";
    maxTokens.value = settings.maxTokens ?? "";
    systemPrompt.value = settings.systemPrompt;
    wrongField();
    const { key, remembersKey } = settings;
    const where = remembersKey ? ", remembered on this device" : "";
    byId("key-state").textContent = key ? `in use, ending in ${key.slice(-4)}${where}` : "none";
    byId("forget-key").disabled = !key;
    byId("api-docs").href = `${settings.server.url}docs`;
    dialog.showModal();
  }

  function save(event) {
    event.preventDefault();
    const wrong = wrongField();
    if (wrong) return wrong.focus();
    settings.save({
      temperature: numberIn(temperature),
      maxTokens: numberIn(maxTokens),
      systemPrompt: systemPrompt.value,
    });
    dialog.close();
  }

  // Say beside each field what is wrong with it; the first one that is.
  function wrongField() {
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

  return (name, tokensMax) => {
    byId("settings-model").textContent = name;
    maxTokens.max = tokensMax ?? "";
    const most = tokensMax ? `, at most ${tokensMax} with the conversation` : "";
    byId("max-tokens-hint").textContent = `Empty: as many as fit${most}.`;
  };
}

function numberIn(field) {
  return field.value === "" ? null : field.valueAsNumber;
}
