// One answer, from its question to its end, over as many connections as that takes.
//
// The server writes an answer in the background. So when a connection breaks, the page is loaded
// again, or the server starts anew, its events are read once more from the first on. A line that went
// without a word, as where a phone has changed its network, is known by its silence.

import { ApiError, BROKEN_OFF, cancelResponse, forgetResponse, readResponse, streamResponse } from "./api.js";
import { pause } from "./dom.js";

// Until the next try to read on; a server that starts anew needs seconds.
const AGAIN_MS = 2000;

// How long the server goes on with an answer that no page reads any more.
const LINGER_S = 300;

// Nothing for so long, and it is read on another connection; of a slow ring that costs some KB.
const QUIET_MS = 15_000;

// Why a reader's signal is aborted who only leaves: the server goes on.
export const LEFT = new DOMException("Left", "AbortError");

const NOT_THERE = "The server does not have this answer any more.";

// Events of an answer: {id}, {text}, {reasoning}, and at last {end, tokens, served}; {again} says that
// all of it follows once more. `request` is asked, or what `id` names is read on. `onHeaders` gets
// those of the first response, `onBroken` is called while the server cannot be reached. Throws
// ApiError, and AbortError once `signal` is aborted; then the server ends the answer, too, but for LEFT.
export async function* answerEvents({ request, id, server, signal, onHeaders, onBroken }) {
  const known = { id };
  signal.addEventListener("abort", () => {
    if (known.id && signal.reason !== LEFT) endAtServer(known.id, server);
  });
  for (let connections = 0; ; connections++) {
    const line = new Line(signal, () => known.id);
    try {
      if (connections) yield { again: true };
      const stream = known.id
        ? readResponse(known.id, server, line.signal)
        : streamResponse(inBackground(request), server, line.signal, onHeaders);
      for await (const event of stream) {
        line.heard();
        const told = toldBy(event);
        if (told?.id) known.id = told.id;
        if (told) yield told;
        if (told?.end) return void forgetResponse(known.id, server);
      }
      throw new ApiError(BROKEN_OFF);
    } catch (error) {
      if (line.isQuiet && !signal.aborted) continue;
      if (known.id && error.status === 404) throw new ApiError(NOT_THERE, 404);
      if (known.id && error.status === 200) forgetResponse(known.id, server); // It has failed there.
      if (!known.id || !mayPass(error)) throw error;
      onBroken();
    } finally {
      line.end();
    }
    await pause(AGAIN_MS, signal);
  }
}

// One connection: its `signal` is aborted with the reader's, and after a silence once `mayEnd`.
class Line {
  isQuiet = false;
  signal;
  #own = new AbortController();
  #timer = null;
  #mayEnd;

  constructor(signal, mayEnd) {
    this.signal = AbortSignal.any([signal, this.#own.signal]);
    this.#mayEnd = mayEnd;
    this.heard();
  }

  // Something has come: silence begins anew.
  heard() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#quiet(), QUIET_MS);
  }

  #quiet() {
    if (!this.#mayEnd()) return;
    this.isQuiet = true;
    this.end();
  }

  end() {
    clearTimeout(this.#timer);
    this.#own.abort();
  }
}

function inBackground(request) {
  return { ...request, background: true, linger_s: LINGER_S };
}

// Whether another try may do better: the network, or a server that starts.
function mayPass(error) {
  return error instanceof ApiError && (error.status === 0 || error.status >= 500 || error.status === 429);
}

function toldBy(event) {
  switch (event.type) {
    case "response.created":
      return { id: event.response.id };
    case "response.output_text.delta":
      return { text: event.delta };
    case "response.reasoning_text.delta":
      return { reasoning: event.delta };
    case "response.completed":
    case "response.incomplete":
    case "response.cancelled":
      return {
        end: event.type.slice("response.".length),
        tokens: event.response.usage?.output_tokens,
        served: event.molink,
      };
    case "response.failed":
      throw new ApiError(event.response.error.message, 200);
    default:
      return null;
  }
}

// A stop is no error of anybody's: what comes of it is not waited for.
async function endAtServer(id, server) {
  await cancelResponse(id, server);
  await forgetResponse(id, server);
}
