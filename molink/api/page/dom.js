// Small helpers that every part of the page uses.

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
  return ms < 1000 ? `${ms < 10 ? amount(ms) : Math.round(ms)} ms` : `${amount(ms / 1000)} s`;
}
