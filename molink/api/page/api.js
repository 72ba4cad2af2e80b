// The server's endpoints: JSON, and answers that come as server-sent events.
//
// Whatever goes wrong becomes one ApiError, whose message is a sentence to show. Paths are relative
// to the page, so that a proxy may put it below a path of its own.

// An event holds a round's tokens and what is known of them, the last one who served the answer; a
// longer one is no server of ours.
const EVENT_CHARS_MAX = 2 ** 20;

const NOT_REACHED = "The server cannot be reached: check that it runs and that you are online.";
const BROKEN_OFF = "The connection was lost before the answer was complete.";

export class ApiError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The JSON at `path`. `key` is sent where there is one.
export async function getJson(path, key) {
  const response = await reached(fetch(path, { headers: headersOf(key), cache: "no-store" }));
  if (!response.ok) throw await refusal(response);
  return reached(response.json());
}

// Stream the answer to a chat request: `onHeaders` gets the response's headers, then each chunk is
// yielded. Aborting `signal` closes the connection, which ends the request at the server.
export async function* streamChat(body, key, signal, onHeaders) {
  const response = await reached(
    fetch("v1/chat/completions", {
      method: "POST",
      headers: { ...headersOf(key), "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    }),
  );
  if (!response.ok) throw await refusal(response);
  onHeaders(response.headers);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = parsed(data);
    if (chunk.error) throw new ApiError(chunk.error.message, 200, chunk.error.code);
    yield chunk;
  }
  throw new ApiError(BROKEN_OFF);
}

// The data of each event of a stream of bytes.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) return;
    const pieces = (held + value).split("\n\n");
    held = pieces.pop();
    if (held.length > EVENT_CHARS_MAX) {
      reader.cancel();
      throw new ApiError("The server sends an event that is too long for this page.");
    }
    for (const piece of pieces) {
      if (piece.startsWith("data: ")) yield piece.slice(6);
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

function headersOf(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// What a promise of the network gives; a stop by the reader stays an AbortError.
async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(error instanceof SyntaxError ? BROKEN_OFF : NOT_REACHED);
  }
}

async function refusal(response) {
  const told = await response.json().catch(() => ({}));
  const message = told.error?.message ?? `The server refuses with status ${response.status}.`;
  return new ApiError(message, response.status, told.error?.code ?? null);
}
