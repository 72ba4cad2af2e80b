// TeX as models write it, as MathML: what is common in answers, and the rest as it stands.
//
// The text comes from PCs that nobody has checked: it becomes elements of this file's choice, with
// text nodes in them.

const MATHML = "http://www.w3.org/1998/Math/MathML";

// Longer or deeper formulas are shown as they stand.
const CHARS_MAX = 4000;
const DEPTH_MAX = 24;

const LETTERS = pairs(
  "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ " +
  "mu μ nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ " +
  "Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ Re ℜ Im ℑ " +
  "aleph ℵ emptyset ∅ varnothing ∅ angle ∠ ldots … cdots ⋯ vdots ⋮ ddots ⋱ dots … prime ′ degree °",
);

const SIGNS = pairs(
  "cdot ⋅ times × div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet • oplus ⊕ otimes ⊗ leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ " +
  "ll ≪ gg ≫ approx ≈ sim ∼ simeq ≃ cong ≅ equiv ≡ propto ∝ to → rightarrow → leftarrow ← leftrightarrow ↔ " +
  "Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ iff ⟺ implies ⟹ mapsto ↦ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ " +
  "supset ⊃ supseteq ⊇ cup ∪ cap ∩ setminus ∖ land ∧ wedge ∧ lor ∨ vee ∨ neg ¬ lnot ¬ forall ∀ exists ∃ mid ∣ " +
  "parallel ∥ perp ⊥ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lvert | rvert | vert | Vert ‖ { { } } | ‖ % % & & # # $ $ _ _",
);

const LARGE = { sum: "∑", prod: "∏", int: "∫", iint: "∬", oint: "∮", bigcup: "⋃", bigcap: "⋂" };
const NAMES = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lim max min sup inf det dim ker gcd deg arg Pr".split(" ");
const LIMITS = "sum prod bigcup bigcap lim max min sup inf".split(" ");
const ACCENTS = { hat: "^", bar: "‾", overline: "‾", tilde: "~", vec: "→", dot: "˙", ddot: "¨", widehat: "^" };
const STYLES = { mathbf: "bold", boldsymbol: "bold", mathbb: "double", mathcal: "script", mathrm: "plain", operatorname: "plain", mathit: "italic", mathsf: "plain" };
const TEXTS = ["text", "textbf", "textit", "mbox", "textrm"];
const SPACES = { ",": 0.17, ":": 0.22, ";": 0.28, " ": 0.25, "!": 0, quad: 1, qquad: 2 };
const FENCES = { pmatrix: "()", bmatrix: "[]", vmatrix: "||", cases: "{", Bmatrix: "{}" };
const IGNORED = "displaystyle textstyle limits nolimits big Big bigg Bigg bigl bigr Bigl Bigr nonumber".split(" ");

const TOKEN = /\\(?:[A-Za-z]+|[^A-Za-z])|\d+(?:[.,]\d+)*|\S/gsu;

// A formula as an element; null for what is not worth it or too much.
export function mathNode(tex, isBlock) {
  if (tex.length > CHARS_MAX) return null;
  try {
    const reader = new Reader(tex);
    const row = reader.row((token) => token === undefined);
    const math = made("math", row);
    return isBlock ? marked(math, "display", "block") : math;
  } catch {
    return null;
  }
}

// Names and signs that take turns.
function pairs(text) {
  return Object.fromEntries(text.match(/\S+ \S+/g).map((pair) => pair.split(" ")));
}

function made(tag, ...children) {
  const node = document.createElementNS(MATHML, tag);
  node.append(...children);
  return node;
}

function marked(node, name, value) {
  node.setAttribute(name, value);
  return node;
}

class Reader {
  #tokens;
  #spaced; // Texts with their spaces, which are no tokens.
  #at = 0;
  #depth = 0;

  constructor(tex) {
    const matches = [...tex.matchAll(TOKEN)];
    this.#tokens = matches.map((match) => match[0]);
    this.#spaced = { tex, from: matches.map((match) => match.index) };
  }

  get #next() {
    return this.#tokens[this.#at];
  }

  #take() {
    return this.#tokens[this.#at++];
  }

  // Elements until `ends` holds for a token, which is passed over.
  row(ends) {
    if (++this.#depth > DEPTH_MAX) throw new Error("too deep");
    const row = made("mrow");
    while (this.#at < this.#tokens.length && !ends(this.#next)) this.#part(row);
    this.#at += 1;
    this.#depth -= 1;
    return row;
  }

  #part(row) {
    const token = this.#next;
    if (token === "^" || token === "_") return this.#scripts(row.lastChild ?? row.appendChild(made("mrow")));
    if (token === "'") {
      this.#at += 1;
      return void row.append(made("mo", "′"));
    }
    const node = this.#atom();
    if (node) row.append(node);
  }

  // Put what follows ^ and _ on an element.
  #scripts(base) {
    const found = {};
    while (["^", "_"].includes(this.#next) && !(this.#next in found)) {
      const mark = this.#take();
      found[mark] = this.#argument();
    }
    const isOver = base.dataset.limits === "yes";
    const kinds = isOver ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    const { _: below, "^": above } = found;
    const node = made(kinds[below && above ? 2 : above ? 1 : 0]);
    base.replaceWith(node);
    node.append(base, ...[below, above].filter(Boolean));
  }

  // One element: what a command takes, or a group in braces.
  #argument() {
    if (++this.#depth > DEPTH_MAX) throw new Error("too deep");
    const node = (this.#at < this.#tokens.length && this.#atom()) || made("mrow");
    this.#depth -= 1;
    return node;
  }

  #atom() {
    const token = this.#take();
    if (token === "{") return this.row((one) => one === "}");
    if (token === "}" || token === "&") return null;
    if (token.startsWith("\\") && token.length > 1) return this.#command(token.slice(1));
    if (/^\d/.test(token)) return made("mn", token);
    if (/^\p{L}/u.test(token)) return made("mi", token);
    return made("mo", token === "-" ? "−" : token === "*" ? "∗" : token);
  }

  #command(name) {
    if (Object.hasOwn(LETTERS, name)) return made("mi", LETTERS[name]);
    if (Object.hasOwn(SIGNS, name)) return made("mo", SIGNS[name]);
    if (Object.hasOwn(LARGE, name)) return limited(made("mo", LARGE[name]), name);
    if (NAMES.includes(name)) return limited(made("mi", name), name);
    if (Object.hasOwn(SPACES, name)) return marked(made("mspace"), "width", `${SPACES[name]}em`);
    if (Object.hasOwn(ACCENTS, name)) return this.#accented(ACCENTS[name]);
    if (Object.hasOwn(STYLES, name)) return styled(this.#argument(), STYLES[name]);
    if (TEXTS.includes(name)) return made("mtext", this.#text());
    if (IGNORED.includes(name)) return null;
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
        return this.#fraction();
      case "binom":
        return made("mrow", made("mo", "("), marked(this.#fraction(), "linethickness", "0"), made("mo", ")"));
      case "sqrt":
        return this.#root();
      case "left":
        return this.#fenced();
      case "begin":
        return this.#table(this.#text());
      case "boxed":
        return this.#argument();
      case "\\":
        return made("mspace");
      default:
        return made("mtext", `\\${name}`);
    }
  }

  #fraction() {
    return made("mfrac", this.#argument(), this.#argument());
  }

  #accented(sign) {
    return marked(made("mover", this.#argument(), made("mo", sign)), "accent", "true");
  }

  #root() {
    if (this.#next !== "[") return made("msqrt", this.#argument());
    this.#at += 1;
    const index = this.row((one) => one === "]");
    return made("mroot", this.#argument(), index);
  }

  // What stands between \left and \right, with its fences; a point is none.
  #fenced() {
    const open = this.#fence();
    const row = this.row((one) => one === "\\right");
    return made("mrow", open, row, this.#fence());
  }

  #fence() {
    const token = this.#take() ?? ".";
    const name = token.slice(1);
    const sign = token.startsWith("\\") ? (Object.hasOwn(SIGNS, name) ? SIGNS[name] : name) : token;
    return made("mo", sign === "." ? "" : sign);
  }

  #table(kind) {
    if (kind === "array" && this.#next === "{") this.#text();
    const table = made("mtable");
    do {
      const line = made("mtr");
      do line.append(made("mtd", this.row((one) => ["&", "\\\\", "\\end"].includes(one))));
      while (this.#tokens[this.#at - 1] === "&");
      table.append(line);
    } while (this.#tokens[this.#at - 1] === "\\\\");
    if (this.#next === "{") this.#text();
    const name = kind.replace("*", "");
    const [open, close] = Object.hasOwn(FENCES, name) ? FENCES[name] : "";
    return made("mrow", ...(open ? [made("mo", open)] : []), table, ...(close ? [made("mo", close)] : []));
  }

  // The text of a group in braces, as it stands.
  #text() {
    const from = this.#at + 1;
    if (this.#next !== "{") return this.#take() ?? "";
    let depth = 0;
    do {
      depth += { "{": 1, "}": -1 }[this.#take()] ?? 0;
    } while (depth && this.#at < this.#tokens.length);
    const { tex, from: places } = this.#spaced;
    return tex.slice(places[from - 1] + 1, depth ? undefined : places[this.#at - 1]);
  }
}

function limited(node, name) {
  if (LIMITS.includes(name)) node.dataset.limits = "yes";
  return node;
}

// Letters of another style have places of their own in Unicode.
const FIRST = { bold: [0x1d400, 0x1d41a], double: [0x1d538, 0x1d552], script: [0x1d49c, 0x1d4b6] };
const ELSEWHERE = { double: { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }, script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ" } };

function styled(node, style) {
  const isLeaf = node.localName === "mi";
  if (style === "plain") {
    const isName = isLeaf || [...node.childNodes].every((one) => one.localName === "mi");
    return isName ? marked(made("mi", node.textContent), "mathvariant", "normal") : node;
  }
  for (const letter of isLeaf ? [node] : node.querySelectorAll("mi")) {
    letter.textContent = letter.textContent.replace(/[A-Za-z]/g, (one) => {
      const first = FIRST[style];
      if (!first) return one;
      const other = ELSEWHERE[style]?.[one];
      const at = one >= "a" ? first[1] + one.charCodeAt(0) - 97 : first[0] + one.charCodeAt(0) - 65;
      return other ?? String.fromCodePoint(at);
    });
  }
  return node;
}
