// The server's endpoints: JSON, and answers that come as server-sent events.
//
// Whatever goes wrong becomes one ApiError, whose message is a sentence to show. Paths are relative
// to the page, so that a proxy may put it below a path of its own. Who is asked is a `server` {url,
// key, name}: an address with the one key that goes there; an empty url is the page's own server.

// An event holds a round's tokens, the last one who served the answer: none of ours is longer.
const EVENT_CHARS_MAX = 2 ** 20;

const RESPONSES = "v1/responses";

const NOT_REACHED = "The server cannot be reached: check that it runs and that you are online.";

// A browser does not tell a page why another address gave it nothing.
const OTHER_NOT_REACHED =
  "cannot be reached: check that it runs, and that whoever runs it lets this page ask, with --cors-origin";
export const BROKEN_OFF = "The connection was lost before the answer was complete.";

export class ApiError extends Error {
  // `retryS`: seconds after which the server says that another try may do better; null: it does not.
  constructor(message, status = 0, code = null, retryS = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryS = retryS;
  }
}

// The JSON at `path` of a server.
export async function getJson(path, server, signal) {
  const response = await answered(path, server, { signal });
  return reached(response.json(), server);
}

// Stream the answer to a request: `onHeaders` gets the response's headers, then each event is yielded.
export async function* streamResponse(request, server, signal, onHeaders) {
  const how = { method: "POST", body: { ...request, stream: true }, signal };
  const response = await answered(RESPONSES, server, how);
  onHeaders(response.headers);
  yield* parsedEvents(response, server);
}

// Stream an answer that was begun before, from its first event on.
export async function* readResponse(id, server, signal) {
  const path = `${RESPONSES}/${encodeURIComponent(id)}?stream=true`;
  yield* parsedEvents(await answered(path, server, { signal }), server);
}

// Have the server end an answer, or forget it. What goes wrong is nothing that a reader could mend.
export function cancelResponse(id, server) {
  const how = { method: "POST", body: {}, keepalive: true };
  return asked(`${RESPONSES}/${id}/cancel`, server, how).catch(() => null);
}

export function forgetResponse(id, server) {
  const how = { method: "DELETE", keepalive: true };
  return asked(`${RESPONSES}/${id}`, server, how).catch(() => null);
}

function asked(path, { url, key }, { body, ...how }) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  return fetch(url + path, { cache: "no-store", ...how, headers, body: JSON.stringify(body) });
}

async function answered(path, server, how) {
  const response = await reached(asked(path, server, how), server);
  if (!response.ok) throw await refusal(response);
  return response;
}

async function* parsedEvents(response, server) {
  for await (const data of events(response.body, server)) {
    const event = parsed(data);
    if (event.error && !event.type) throw new ApiError(event.error.message, 200, event.error.code);
    yield event;
  }
}

// The data of each event of a stream of bytes.
async function* events(stream, server) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reached(reader.read(), server);
    if (done) return;
    const pieces = (held + value).split("\n\n");
    held = pieces.pop();
    if (held.length > EVENT_CHARS_MAX) {
      reader.cancel();
      throw new ApiError("The server sends an event that is too long for this page.");
    }
    for (const piece of pieces) {
      const data = piece.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield data.slice(6);
    }
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sends what this page cannot read: load the page again.");
  }
}

// What a promise of the network gives; what was aborted stays an AbortError.
async function reached(promise, { url, name }) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error instanceof SyntaxError) throw new ApiError(BROKEN_OFF);
    throw new ApiError(url ? `${name} ${OTHER_NOT_REACHED} ${location.origin}.` : NOT_REACHED);
  }
}

async function refusal(response) {
  const told = await response.json().catch(() => ({}));
  const message = told.error?.message ?? `The server refuses with status ${response.status}.`;
  const retryS = Number(response.headers.get("Retry-After")) || null;
  return new ApiError(message, response.status, told.error?.code ?? null, retryS);
}
