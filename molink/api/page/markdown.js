// A model's text as DOM nodes: a small part of Markdown, and everything else as it stands.
//
// It comes from PCs that nobody has checked: it is only put into text nodes, no image is loaded, and
// a link says where it leads. While an answer grows, blocks whose source is the same keep their
// nodes, so a selection in them stays.

import { copyButton, element } from "./dom.js";
import { mathNode } from "./math.js";

// The patterns of inline marks may take time quadratic in a paragraph's length.
const INLINE_CHARS_MAX = 10_000;

// Quotes in lists in quotes: beyond it a block is shown as it stands.
const DEPTH_MAX = 6;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s|$)/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const PIPES = /^ {0,3}\|/;
const TASK = /^\[([ xX])\]\s/;
const MATH = /^ {0,3}(\$\$|\\\[)/;
const MATH_ENDS = { $$: "$$", "\\[": "\\]" };
const BLANK = /^\s*$/;

// A table may be wider than any screen, but not endless.
const COLUMNS_MAX = 64;

const INLINE = new RegExp(
  [
    /(?<ticks>`+)(?<code>[^`](?:.*?[^`])?)\k<ticks>(?!`)/,
    /!?\[(?<label>[^\[\]]+)\]\((?<target>[^\s()]*(?:\([^\s()]*\)[^\s()]*)?)\)/,
    /\*\*(?<strong>\S(?:.*?\S)?)\*\*(?!\*)/,
    /(?<!\w)__(?<strong2>\S(?:.*?\S)?)__(?!\w)/,
    /\*(?<em>[^\s*](?:[^*]*[^\s*])?)\*/,
    /(?<!\w)_(?<em2>[^\s_](?:[^_]*[^\s_])?)_(?!\w)/,
    /(?<url>https?:\/\/[^\s<>"`]*[^\s<>"`.,;:!?)\]'*_])/,
    /\$\$(?<math>[^$]+)\$\$/,
    /(?<![\w$])\$(?<math2>[^\s$](?:[^$\n]{0,400}[^\s$])?)\$(?![\d$])/,
    /\\\((?<math3>[^\n]{0,400}?)\\\)|\\\[(?<math4>.{0,400}?)\\\]/,
    /\\(?<escaped>[\\`*_{}\[\]()#+\-.!|>~])/,
  ]
    .map((pattern) => pattern.source)
    .join("|"),
  "gs",
);

// A container's content, kept equal to a text that grows.
export class MarkdownView {
  #container;
  #shown = []; // Sources of the blocks that are the container's children.

  constructor(container) {
    this.#container = container;
  }

  update(text) {
    const blocks = blocksOf(text.split("\n"));
    const same = blocks.findIndex((block, index) => block.source !== this.#shown[index]);
    const kept = same < 0 ? blocks.length : same;
    while (this.#container.childNodes.length > kept) this.#container.lastChild.remove();
    for (const block of blocks.slice(kept)) this.#container.append(nodeOf(block, 0));
    this.#shown = blocks.map((block) => block.source);
  }
}

// Blocks of lines: {kind, lines, source}, and for code its language.
export function blocksOf(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const [kind, end] = blockAt(lines, at);
    const own = lines.slice(at, end);
    blocks.push({ kind, lines: own, source: `${kind}\n${own.join("\n")}` });
    at = end;
  }
  return blocks;
}

// The kind of the block that begins at a line, and the line behind its last one.
function blockAt(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return ["code", fenceEnd(lines, at)];
  if (HEADING.test(line)) return ["heading", at + 1];
  if (RULE.test(line)) return ["rule", at + 1];
  if (QUOTE.test(line)) return ["quote", whileTrue(lines, at, (one) => QUOTE.test(one))];
  if (ITEM.test(line)) return ["list", listEnd(lines, at)];
  if (MATH.test(line) && mathEnd(lines, at)) return ["math", mathEnd(lines, at)];
  if (isTable(lines, at)) {
    return ["table", whileTrue(lines, at + 2, (one) => one.includes("|") && goesOn(one))];
  }
  if (PIPES.test(line)) return ["pipes", whileTrue(lines, at, (one) => PIPES.test(one))];
  const isText = (one, index) => index === at || (goesOn(one) && !isTable(lines, index));
  return ["paragraph", whileTrue(lines, at, isText)];
}

// Whether a line is the head of a table: the next one rules it off, cell by cell.
function isTable(lines, at) {
  const rule = lines[at + 1] ?? "";
  const isRule = rule.includes("-") && /^[\s|:-]+$/.test(rule);
  if (!isRule || !lines[at].includes("|")) return false;
  const rules = cellsOf(rule);
  return rules.length === cellsOf(lines[at]).length && rules.every((one) => /^:?-+:?$/.test(one));
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/, COLUMNS_MAX).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// The line behind a formula that has lines of its own; 0: it has none, or does not end yet.
function mathEnd(lines, at) {
  const [before, mark] = lines[at].match(MATH);
  const ends = (line) => line.trimEnd().endsWith(MATH_ENDS[mark]);
  if (ends(lines[at].slice(before.length))) return at + 1;
  const end = whileTrue(lines, at + 1, (line) => !BLANK.test(line) && !ends(line));
  return end < lines.length && ends(lines[end]) ? end + 1 : 0;
}

function whileTrue(lines, at, holds) {
  let end = at;
  while (end < lines.length && holds(lines[end], end)) end += 1;
  return end;
}

// Whether a line goes on with the paragraph before it.
function goesOn(line) {
  return ![BLANK, FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

function fenceEnd(lines, at) {
  const [, mark] = inItem(lines[at]).match(FENCE);
  const body = whileTrue(lines, at + 1, (line) => !closes(line, mark));
  return Math.min(body + 1, lines.length);
}

function closes(line, mark) {
  return line.trim().startsWith(mark) && /^[`~]+$/.test(line.trim());
}

// What a line of an item says, without the item's mark and indentation.
function inItem(line) {
  return line.replace(ITEM, "").trimStart();
}

// A list goes on with items of its own kind, lines that are indented, and over blank lines between; code
// in it goes to its own end.
function listEnd(lines, at) {
  const ordered = isOrdered(lines[at]);
  const belongs = (line) =>
    /^\s{2,}\S/.test(line) || (ITEM.test(line) && isOrdered(line) === ordered);
  let end = at;
  while (end < lines.length) {
    if (belongs(lines[end]) && FENCE.test(inItem(lines[end]))) {
      end = fenceEnd(lines, end);
    } else if (BLANK.test(lines[end])) {
      const next = whileTrue(lines, end, (line) => BLANK.test(line));
      if (next >= lines.length || !belongs(lines[next])) return end;
      end = next;
    } else if (RULE.test(lines[end]) || !(belongs(lines[end]) || goesOn(lines[end]))) {
      return end;
    } else {
      end += 1;
    }
  }
  return end;
}

function isOrdered(line) {
  return /\d/.test(line.match(ITEM)?.[2] ?? "");
}

// -- nodes --

function nodeOf(block, depth) {
  const { kind, lines } = block;
  if (depth >= DEPTH_MAX) return element("pre", "", lines.join("\n"));
  switch (kind) {
    case "code":
      return codeNode(lines);
    case "heading":
      return headingNode(lines[0]);
    case "rule":
      return element("hr", "");
    case "quote":
      return inner("blockquote", lines.map((line) => line.replace(QUOTE, "")), depth);
    case "list":
      return listNode(lines, depth);
    case "table":
      return scrolling(element("div", "wide", tableNode(lines)), "Table");
    case "pipes":
      return scrolling(element("pre", "", lines.join("\n")), "Table");
    case "math":
      return mathBlock(lines.join("\n").trim());
    default:
      return textNode("p", lines.join("\n"));
  }
}

function inner(tag, lines, depth) {
  return element(tag, "", ...blocksOf(lines).map((block) => nodeOf(block, depth + 1)));
}

function codeNode(lines) {
  const [, mark, language] = lines[0].match(FENCE);
  const isClosed = lines.length > 1 && closes(lines.at(-1), mark);
  const code = element("code", "", lines.slice(1, isClosed ? -1 : undefined).join("\n"));
  const body = scrolling(element("pre", "", code), language ? `Code, ${language}` : "Code");
  const copy = copyButton("Copy the code", () => code.textContent);
  return element("div", "code", element("div", "head", element("span", "", language), copy), body);
}

function tableNode([head, rule, ...rows]) {
  const sides = cellsOf(rule).map((one) =>
    !one.endsWith(":") ? "" : one.startsWith(":") ? "middle" : "right",
  );
  const line = (source, tag) => {
    const given = cellsOf(source);
    return element("tr", "", ...sides.map((side, at) => cellNode(tag, given[at] ?? "", side)));
  };
  const body = element("tbody", "", ...rows.map((row) => line(row, "td")));
  return element("table", "", element("thead", "", line(head, "th")), body);
}

function cellNode(tag, text, side) {
  const cell = textNode(tag, text);
  if (side) cell.className = side;
  return cell;
}

// A formula on lines of its own.
function mathBlock(source) {
  const math = mathNode(source.slice(2, -2), true);
  return scrolling(math ? element("div", "wide", math) : element("pre", "", source), "Formula");
}

// What may be wider than the page must be reachable by keyboard to be scrolled.
function scrolling(node, label) {
  node.tabIndex = 0;
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", label);
  return node;
}

// Below the page's own headings and those of the messages.
function headingNode(line) {
  const [before, marks] = line.match(HEADING);
  return textNode(`h${Math.min(6, marks.length + 2)}`, line.slice(before.length).trim());
}

function listNode(lines, depth) {
  const list = element(isOrdered(lines[0]) ? "ol" : "ul", "");
  const first = parseInt(lines[0].trim(), 10);
  if (list.tagName === "OL" && first !== 1) list.start = first;
  for (const item of itemsOf(lines)) list.append(itemNode(item, depth));
  return list;
}

// Lines of each item, without its mark and indentation.
function itemsOf(lines) {
  const items = [];
  let indent = 0;
  // An item of the other kind is one under it from two spaces on, whatever the mark's width.
  const least = (line) => (isOrdered(line) === isOrdered(lines[0]) ? indent : 2);
  for (const line of lines) {
    const mark = line.match(ITEM);
    if (mark && (items.length === 0 || mark[1].length < least(line))) {
      indent = mark[0].trimEnd().length + 1;
      items.push([line.slice(mark[0].length)]);
    } else {
      const own = line.search(/\S/);
      items.at(-1).push(line.slice(own < 0 ? line.length : Math.min(own, indent)));
    }
  }
  return items;
}

// An item that is one paragraph needs none around it.
function itemNode(lines, depth) {
  const task = lines[0].match(TASK);
  if (task) lines = [lines[0].slice(task[0].length), ...lines.slice(1)];
  const item = inner("li", lines, depth);
  const only = item.firstElementChild;
  if (only?.tagName === "P" && !item.querySelector(":scope > p ~ p"))
    only.replaceWith(...only.childNodes);
  if (task) {
    item.className = "task";
    item.prepend(boxNode(task[1] !== " "));
  }
  return item;
}

function boxNode(isDone) {
  const box = element("span", "box", isDone ? "☑" : "☐");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", isDone ? "done" : "to do");
  return box;
}

function textNode(tag, text) {
  const node = element(tag, "");
  node.dir = "auto";
  if (text.length > INLINE_CHARS_MAX) node.append(text);
  else appendInline(node, text, 0);
  return node;
}

function appendInline(node, text, depth) {
  let from = 0;
  for (const match of depth < DEPTH_MAX ? text.matchAll(INLINE) : []) {
    node.append(text.slice(from, match.index), inlineNode(match, depth));
    from = match.index + match[0].length;
  }
  node.append(text.slice(from));
}

function inlineNode(match, depth) {
  const { code, label, target, strong, strong2, em, em2, url, escaped } = match.groups;
  if (code !== undefined) return element("code", "", code);
  if (url !== undefined) return linkNode(url, url) ?? match[0];
  if (label !== undefined) return linkNode(label, target) ?? match[0];
  if (escaped !== undefined) return escaped;
  const { math, math2, math3, math4 } = match.groups;
  const tex = math ?? math2 ?? math3 ?? math4;
  if (tex !== undefined) return mathNode(tex, false) ?? match[0];
  const isStrong = (strong ?? strong2) !== undefined;
  const marked = element(isStrong ? "strong" : "em", "");
  appendInline(marked, strong ?? strong2 ?? em ?? em2, depth + 1);
  return marked;
}

// A link that says where it leads; nothing for what is no web address.
function linkNode(label, target) {
  const url = URL.canParse(target) ? new URL(target) : null;
  if (!url || !["http:", "https:"].includes(url.protocol)) return null;
  const isPlain = label === target && !url.username;
  const link = element("a", "", isPlain ? label : `${label} (${url.host})`);
  link.href = url.href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return link;
}
