// A form for each operation of /openapi.json. Everything is written as text, never as HTML.
"use strict";

// Where a proxy has put the server: the path before that of this page, often none.
const BELOW = location.pathname.replace(/\/docs$/, "");

function make(tag, text, ...children) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function resolved(root, value) {
  if (!value || !value.$ref) return value;
  return value.$ref.slice(2).split("/").reduce((place, name) => place[name], root);
}

function typeOf(root, schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  const several = schema.anyOf || schema.oneOf;
  if (several) return several.map((one) => typeOf(root, one)).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(root, schema.items || {})}`;
  return schema.type || "any";
}

function fieldsTable(root, schema) {
  const table = make("table", "", make("tr", "", make("th", "Field"), make("th", "Type"), make("th", "Meaning")));
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const marked = (schema.required || []).includes(name) ? `${name} *` : name;
    table.append(make("tr", "", make("td", marked), make("td", typeOf(root, field)), make("td", field.description || "")));
  }
  return table;
}

function labelled(text, control) {
  return make("label", `${text} `, control);
}

// Paragraphs, with what stands between backticks as code; a long list of refused fields is folded.
function described(text) {
  return text.split("\n\n").map((paragraph) => {
    const shown = make("p", "", ...paragraph.split("`").map(
      (part, index) => index % 2 ? make("code", part) : part));
    return paragraph.startsWith("Refused unless") ? make("details", "",
      make("summary", "Fields that are refused"), shown) : shown;
  });
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function asCurl(method, path, inputs, body) {
  const words = ["curl", "-N", quoted(location.origin + addressOf(path, inputs))];
  if (method !== "GET") words.splice(2, 0, "-X", method);
  if (document.getElementById("key").value.trim()) words.push("-H", '"Authorization: Bearer $MOLINK_API_KEY"');
  for (const [name, value] of headersIn(inputs)) words.push("-H", quoted(`${name}: ${value}`));
  if (body !== null) words.push("-H", quoted("Content-Type: application/json"), "-d", quoted(body));
  return words.join(" ");
}

function curlFor(method, path, inputs, body) {
  const shown = make("pre");
  const folded = make("details", "", make("summary", "As a command"), shown);
  const fill = () => {
    if (folded.open) shown.textContent = asCurl(method, path, inputs, body && body.value);
  };
  folded.addEventListener("toggle", fill);
  document.addEventListener("input", fill);
  return folded;
}

function headersIn(inputs) {
  const given = inputs.filter(([parameter, input]) => parameter.in === "header" && input.value);
  return given.map(([parameter, input]) => [parameter.name, input.value]);
}

// The path and query of an operation with what its form says, without headers.
function addressOf(path, inputs) {
  const query = new URLSearchParams();
  let place = BELOW + path;
  for (const [parameter, input] of inputs) {
    if (!input.value) continue;
    if (parameter.in === "path") place = place.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    else if (parameter.in === "query") query.set(parameter.name, input.value);
  }
  return query.size ? `${place}?${query}` : place;
}

function formFor(root, method, path, operation) {
  const inputs = [];
  const parts = [];
  for (const given of operation.parameters || []) {
    const parameter = resolved(root, given);
    const input = make("input");
    if (parameter.in === "path") input.required = true;
    inputs.push([parameter, input]);
    parts.push(labelled(`${parameter.name} (${parameter.in})`, input));
  }
  let body = null;
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  if (content) {
    body = make("textarea");
    body.rows = 10;
    body.spellcheck = false;
    body.value = JSON.stringify(content.example || {}, null, 2);
    parts.push(labelled("Body", body));
    const fields = make("details", "", make("summary", "Fields of the body"));
    fields.append(fieldsTable(root, resolved(root, content.schema)));
    parts.push(fields);
  }
  const send = make("button", "Send");
  const stop = make("button", "Stop");
  stop.type = "button";
  // Who is on a button stays there: what is disabled loses the focus.
  const run = (isRunning) => {
    send.setAttribute("aria-disabled", isRunning);
    stop.setAttribute("aria-disabled", !isRunning);
  };
  run(false);
  const shown = make("pre");
  shown.hidden = true;
  shown.tabIndex = 0;
  shown.setAttribute("role", "log");
  shown.setAttribute("aria-label", `Answer of ${method} ${path}`);
  const form = make("form", "", ...parts, send, stop, curlFor(method, path, inputs, body), shown);
  let asked = null;
  stop.addEventListener("click", () => asked && asked.abort());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (asked) return;
    asked = new AbortController();
    run(true);
    shown.hidden = false;
    await ask(method, path, inputs, body && body.value, shown, asked.signal);
    asked = null;
    run(false);
  });
  return form;
}

async function ask(method, path, inputs, body, shown, signal) {
  const headers = new Headers();
  const key = document.getElementById("key").value.trim();
  shown.textContent = "…";
  try {
    if (key) headers.set("Authorization", `Bearer ${key}`);
    if (body !== null) headers.set("Content-Type", "application/json");
    for (const [name, value] of headersIn(inputs)) headers.set(name, value);
    const response = await fetch(addressOf(path, inputs), { method, headers, body, signal });
    await show(response, shown);
  } catch (error) {
    shown.textContent += `\n${error.name === "AbortError" ? "Stopped." : error.message}`;
  }
}

async function show(response, shown) {
  const told = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
  shown.textContent = `${response.status} ${response.statusText}\n${told}\n\n`;
  if (!(response.headers.get("Content-Type") || "").startsWith("text/event-stream")) {
    const text = await response.text();
    shown.append(pretty(text));
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    shown.append(value);
    shown.scrollTop = shown.scrollHeight;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function start() {
  const root = await (await fetch("openapi.json")).json();
  document.getElementById("about").textContent = `${root.info.version}. ${root.info.description}`;
  const main = document.getElementById("operations");
  const groups = new Map();
  for (const [path, methods] of Object.entries(root.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!groups.has(tag)) groups.set(tag, make("section", "", make("h2", tag)));
      const name = `${method.toUpperCase()} ${path}`;
      const heading = make("summary", "", make("b", name), make("span", ` ${operation.summary}`));
      const details = make("details", "", heading, ...described(operation.description));
      details.append(formFor(root, method.toUpperCase(), path, operation));
      groups.get(tag).append(details);
    }
  }
  main.append(...groups.values());
}

start().catch((error) => {
  document.getElementById("about").textContent = `The document cannot be read: ${error.message}`;
});
