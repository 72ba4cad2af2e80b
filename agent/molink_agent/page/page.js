// The owner's page: asks the agent every two seconds, and orders what its buttons say.

const EVERY_MS = 2000;
const TOKEN = "molink-agent-token";
const byId = (id) => document.getElementById(id);

// The address brings the token once; this tab keeps it, and no history shows it.
if (location.hash.length > 1) {
  sessionStorage.setItem(TOKEN, location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
}

async function ask(path, body) {
  const headers = { "X-Molink-Token": sessionStorage.getItem(TOKEN) ?? "" };
  const options = body === undefined ? { headers } : {
    method: "POST", headers: { ...headers, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  const response = await fetch(path, options);
  if (response.status === 401) throw new Error(await response.text());
  const answer = await response.json();
  if (answer.error) throw new Error(answer.error);
  return answer;
}

function show(state) {
  document.title = `${state.name} in MoLink`;
  byId("name").textContent = state.name;
  byId("cluster").textContent = state.cluster + (state.connected ? "" : " (out of reach now)");
  setText("now", state.now);
  byId("problems").replaceChildren(...state.problems.map((text) => element("li", text)));
  byId("problems").hidden = !state.problems.length;
  const button = byId("switch");
  button.disabled = false;
  button.textContent = state.paused ? "Lend again" : "Pause";
  button.dataset.order = state.paused ? "/resume" : "/pause";
  byId("switch-note").textContent = state.paused
    ? "Nothing is lent until you say so." : "What it is doing ends or moves to another PC.";
  byId("tonight").textContent = state.tonight
    ? `Since noon: ${state.tonight}. Thank you.` : "Nothing since noon yet.";
  byId("thanks").textContent = state.thanks;
  const ranks = state.ranking.map((text) => element("li", text));
  byId("ranking").querySelector("ul").replaceChildren(...ranks);
  byId("ranking").hidden = !ranks.length;
  byId("total").textContent = state.total ? `Since it joined: ${state.total}.` : "";
  showNights(state.nights);
  showLimits(state.limits);
}

function setText(id, text) {
  // Screen readers announce a change; the same text is none.
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function showNights(nights) {
  const rows = nights.map(({ night, given }) => {
    const row = document.createElement("tr");
    row.append(element("td", night), element("td", given));
    return row;
  });
  byId("nights").tBodies[0].replaceChildren(...rows);
  byId("nights").hidden = !rows.length;
}

function typed(value) {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.join(",") : String(value);
}

function showLimits(limits) {
  const form = byId("limits");
  if (!form.children.length) form.append(...limits.map(limitRow));
  for (const limit of limits) {
    const input = byId(`limit-${limit.name}`);
    const isWrong = input.getAttribute("aria-invalid") === "true";
    if (input !== document.activeElement && !isWrong) input.value = typed(limit.value);
  }
}

function limitRow({ name, usual, meaning, example }) {
  const row = document.createElement("div");
  const label = element("label", name);
  label.htmlFor = `limit-${name}`;
  const input = document.createElement("input");
  input.id = label.htmlFor;
  input.name = name;
  input.placeholder = typed(usual) || `none; for example ${example.replaceAll('"', "")}`;
  const note = element("p", meaning);
  note.id = `meaning-${name}`;
  const said = element("p", "");
  said.id = `said-${name}`;
  said.setAttribute("role", "status");
  input.setAttribute("aria-describedby", `${note.id} ${said.id}`);
  input.addEventListener("change", () => change(input));
  row.append(label, input, note, said);
  return row;
}

// What came of it stands in the limit's own row, until a further change.
async function change(input) {
  const { name, value } = input;
  const isSet = await doing(async () => {
    const { state, said } = await ask("/limits", { key: name, value: value.trim() || "none" });
    setText(`said-${name}`, said.join(" "));
    show(state);
  }, `said-${name}`);
  input.setAttribute("aria-invalid", String(!isSet));
  if (!isSet && input !== document.activeElement) input.value = value;
}

// Whether it could be done; else why not is said.
async function doing(work, place) {
  try {
    await work();
    return true;
  } catch (error) {
    setText(place, error instanceof TypeError ? "The agent does not run now." : error.message);
    if (place === "now") byId("switch").disabled = true;
    return false;
  }
}

const look = () => doing(async () => show((await ask("/state")).state), "now");

byId("limits").addEventListener("submit", (event) => event.preventDefault());
byId("switch").addEventListener("click", (event) => doing(async () => {
  show((await ask(event.target.dataset.order, {})).state);
}, "now"));
look();
setInterval(look, EVERY_MS);
