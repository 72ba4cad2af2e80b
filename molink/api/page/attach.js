// Text files that a reader attaches: what they hold goes into the message, to be read and changed there.

import { onFiles } from "./dom.js";

// Some 25,000 tokens: as much as many models read at once.
const FILE_KB_MAX = 100;

// Take files by the button, or dropped anywhere: `put` gets their text, `tell` why one is not taken.
export function takeFiles(put, tell) {
  const take = async (files) => {
    const blocks = await Promise.all(files.map((file) => blockOf(file, tell)));
    put(blocks.filter(Boolean).join("\n"));
  };
  onFiles("attach", "attach-file", take);
  addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    const files = [...event.dataTransfer.files];
    if (files.length) event.preventDefault(); // A browser would leave the page to show it.
    if (files.length) take(files);
  });
}

// A file's name and text, between fences longer than any in it; nothing: it is told why not.
async function blockOf(file, tell) {
  const kb = Math.ceil(file.size / 1000);
  if (kb > FILE_KB_MAX) return tell(`${file.name} has ${kb} kB: attach at most ${FILE_KB_MAX} kB of text.`);
  const text = await textOf(file);
  if (text === null) return tell(`${file.name} is no text in UTF-8: only text can be attached.`);
  const ticks = text.match(/`{3,}/g) ?? [];
  const fence = "`".repeat(Math.max(3, ...ticks.map((one) => one.length + 1)));
  return `${file.name}\n${fence}\n${text.trimEnd()}\n${fence}\n`;
}

async function textOf(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
