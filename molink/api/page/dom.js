// Small helpers that every part of the page uses.

export const byId = (id) => document.getElementById(id);
export const on = (id, event, act) => byId(id).addEventListener(event, act);

// An element with a class (empty: none) and children; a string becomes a text node, never HTML.
export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// Three digits are as much as anybody reads.
export function amount(value) {
  if (value >= 100) return Math.round(value).toString();
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

// A time as people say it.
export function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${amount(ms / 1000)} s`;
}

// A button that does something here.
export function button(label, onClick) {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

// A button that deletes what has this name.
export function deleteButton(name, onClick) {
  const made = button("Delete", onClick);
  made.setAttribute("aria-label", `Delete: ${name}`);
  return made;
}

// Have a button ask for files, which `take` gets.
export function onFiles(asks, input, take) {
  on(asks, "click", () => byId(input).click());
  on(input, "change", async ({ target }) => {
    if (target.files.length) await take([...target.files]);
    target.value = "";
  });
}

// A button that copies what `text` gives, and says so.
export function copyButton(label, text) {
  const made = button("Copy", async () => {
    made.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => (made.textContent = "Copy"), 2000);
  });
  made.setAttribute("aria-label", label);
  return made;
}

// Browsers lend their clipboard to pages of HTTPS; at any other address a selection is copied.
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const [area, before] = [element("textarea", "hidden"), document.activeElement];
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  before?.focus();
  return done;
}

// After some milliseconds; rejects with AbortError once `signal` is aborted.
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const abort = () => {
      clearTimeout(timer);
      reject(new DOMException("", "AbortError"));
    };
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
  });
}

// Give a file to the browser to save.
export function download(name, type, text) {
  const link = element("a", "");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
