// A link to this page with a key in its fragment, `#key=...`, which no server and no log ever sees.

// The key of this page's address, which is taken out of it at once; empty: there is none.
export function takeKeyFromLink() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (!fragment.has("key")) return "";
  history.replaceState(null, "", location.pathname + location.search);
  const secret = fragment.get("key").trim();
  return isKey(secret) ? secret : "";
}

export function isKey(text) {
  return /^[\x21-\x7e]+$/.test(text);
}
