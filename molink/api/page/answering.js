// One answer, from its question to its end, over as many connections as that takes.
//
// The server keeps an answer in the background while it writes it. So when a connection breaks, the
// page is loaded again, or the server starts anew, its events are read once more from the first on:
// who shows them has the same text again, and then the rest.

import { ApiError, BROKEN_OFF, cancelResponse, forgetResponse, readResponse, streamResponse } from "./api.js";
import { pause } from "./dom.js";

// Until the next try to read on; a server that starts anew needs seconds.
const AGAIN_MS = 2000;

// How long the server goes on with an answer that no page reads any more.
const LINGER_S = 300;

const NOT_THERE = "The server does not have this answer any more.";

// Events of an answer: {id}, {text}, {reasoning}, and at last {end, tokens, served}; {again} says that
// all of it follows once more. `request` is asked, or what `id` names is read on. `onHeaders` gets
// those of the first response, `onBroken` is called while the server cannot be reached. Throws
// ApiError, and AbortError once `signal` is aborted; then the server ends the answer, too.
export async function* answerEvents({ request, id, key, signal, onHeaders, onBroken }) {
  const known = { id };
  signal.addEventListener("abort", () => known.id && endAtServer(known.id, key));
  for (let connections = 0; ; connections++) {
    try {
      if (connections) yield { again: true };
      const stream = known.id
        ? readResponse(known.id, key, signal)
        : streamResponse(inBackground(request), key, signal, onHeaders);
      for await (const event of stream) {
        const told = toldBy(event);
        if (told?.id) known.id = told.id;
        if (told) yield told;
        if (told?.end) return void forgetResponse(known.id, key);
      }
      throw new ApiError(BROKEN_OFF);
    } catch (error) {
      if (known.id && error.status === 404) throw new ApiError(NOT_THERE, 404);
      if (!known.id || !mayPass(error)) throw error;
      onBroken();
    }
    await pause(AGAIN_MS, signal);
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
async function endAtServer(id, key) {
  await cancelResponse(id, key);
  await forgetResponse(id, key);
}
