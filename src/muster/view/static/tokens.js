// A completion token by token: one span each, coloured by a class, its numbers on hover and on focus.

import { byId, h, replace, speak, visible } from "./dom.js";
import { classOf, numbersOf } from "./colours.js";
import { number, signed } from "./format.js";

const CHUNK = 400;
/** From this many tokens on, stretches of text are laid out only when they are in view. */
const LONG = 1200;

export class TokenText {
  constructor(rollout, clip) {
    this.rollout = rollout;
    this.clip = clip;
    this.spans = [];
    this.active = 0;
    this.element = h("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": `Rollout ${rollout.index}: arrow keys go from token to token` });
    this.element.addEventListener("pointerover", (event) => this.point(event));
    this.element.addEventListener("pointerleave", hideTip);
    this.element.addEventListener("keydown", (event) => this.step(event));
    this.element.addEventListener("blur", () => this.mark(null));
  }

  /** Shows the text as a whole: of a rollout without tokens, or until they come. */
  plain() {
    replace(this.element, this.rollout.text);
    this.element.className = "tokens plain";
    return this.element;
  }

  /** Shows tokens; `isDifferent` tells which of them another rollout does not have. */
  fill(tokens, colour, range, { ids = false, isDifferent = null } = {}) {
    this.tokens = tokens;
    this.numbers = tokens.ids.map((_, at) => numbersOf(tokens, at, this.rollout, this.clip));
    this.element.className = `tokens${ids ? " with-ids" : ""}${tokens.pieces ? "" : " only-ids"}`;
    this.turns = turnsOf(tokens.emitted);
    this.isDifferent = isDifferent;
    this.spans = tokens.ids.map((id, at) => this.span(id, at, ids));
    replace(this.element, tokens.pieces ? null : h("div", { class: "whole" }, this.rollout.text), this.chunks());
    this.colour(colour, range);
  }

  span(id, at, ids) {
    const span = document.createElement("span");
    const piece = this.tokens.pieces ? shownPiece(this.tokens.pieces[at]) : String(id);
    span.textContent = ids && this.tokens.pieces ? `${piece.replace(/\n/g, "")}\u2009${id}` : piece;
    span.dataset.at = at;
    if (this.turns.has(at)) span.dataset.turn = this.turns.get(at);
    return span;
  }

  /** The spans in stretches that end where a line does, so that each can be a block of its own. */
  chunks() {
    if (this.spans.length < LONG) return this.spans;
    const chunks = [];
    let start = 0;
    for (let at = 0; at < this.spans.length; at++) {
      const isLineEnd = this.spans[at].textContent.endsWith("\n");
      if ((at - start >= CHUNK && isLineEnd) || at - start >= 3 * CHUNK) {
        chunks.push(h("div", { class: "chunk" }, this.spans.slice(start, at + 1)));
        start = at + 1;
      }
    }
    chunks.push(h("div", { class: "chunk" }, this.spans.slice(start)));
    return chunks;
  }

  /** Colours the tokens that are shown by something else. */
  colour(colour, range) {
    this.spans.forEach((span, at) => {
      const off = this.numbers[at].given ? " given" : this.numbers[at].counts === false ? " off" : "";
      const other = this.isDifferent ? (this.isDifferent[at] ? " other" : " same") : "";
      span.className = `t ${classOf(colour, this.numbers[at], this.rollout, range)}${off}${other}`;
    });
  }

  point(event) {
    const span = event.target.closest("[data-at]");
    if (span) showTip(span, this.facts(Number(span.dataset.at)));
  }

  step(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (!move || !this.spans.length) return;
    event.preventDefault();
    this.mark(Math.max(0, Math.min(this.spans.length - 1, this.marked === undefined || this.marked === null ? 0 : this.marked + move)));
  }

  mark(at) {
    if (this.marked !== null && this.marked !== undefined) this.spans[this.marked]?.classList.remove("marked");
    this.marked = at;
    if (at === null) return hideTip();
    const span = this.spans[at];
    span.classList.add("marked");
    span.scrollIntoView({ block: "nearest" });
    const facts = this.facts(at);
    showTip(span, facts);
    speak(facts.map(([name, value]) => `${name} ${value}`).join(", "));
  }

  facts(at) {
    const one = this.numbers[at], piece = this.tokens.pieces ? this.tokens.pieces[at] : null;
    return [
      ["token", piece === null ? "\u2013" : piece === "" ? "(part of the next)" : JSON.stringify(piece)], ["id", String(this.tokens.ids[at])], ["place", `${at + 1} of ${this.spans.length}`], ["said by", one.given ? "template or environment" : "\u2013"],
      ["logprob", withShare(one.logprob)], ["old", number(one.old)], ["new", number(one.now)], ["ratio", number(one.ratio)], ["entropy", number(one.entropy)],
      ["reference", number(one.ref)], ["KL", signed(one.kl)], ["advantage", signed(this.rollout.advantage)],
      ["counts", one.counts === null ? "\u2013" : one.counts ? "yes" : "no"], ["clipped", one.clipped === null ? "\u2013" : one.clipped || "no"],
    ].filter(([, value]) => value !== "\u2013");
  }
}

/** The first token of each of the policy's turns, with the number of the turn; none where it emitted everything. */
function turnsOf(emitted) {
  const turns = new Map();
  if (!emitted) return turns;
  emitted.forEach((own, at) => {
    if (own && !emitted[at - 1]) turns.set(at, `turn ${turns.size + 1}`);
  });
  return turns;
}

function withShare(logprob) {
  return logprob === null ? "\u2013" : `${number(logprob)} (p ${number(Math.exp(logprob))})`;
}

/** A piece as it is shown: line ends with a sign before them, everything unseen made visible. */
function shownPiece(piece) {
  return visible(piece).replace(/\t/g, "\u21e5\t").replace(/\n/g, "\u21b5\n");
}

function showTip(span, facts) {
  const tip = byId("tip");
  replace(tip, h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, h("bdi", {}, value))])));
  tip.hidden = false;
  const at = span.getClientRects()[0] || span.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, innerWidth - size.width - 8));
  const isBelow = at.bottom + size.height + 12 < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${isBelow ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)}px`;
}

/** Takes the tip away. */
export function hideTip() {
  byId("tip").hidden = true;
}

/** For two lists of ids: which of the first, and which of the second, are not in their longest common part. */
export function differences(first, second) {
  let head = 0;
  while (head < first.length && head < second.length && first[head] === second[head]) head++;
  let tail = 0;
  while (tail < first.length - head && tail < second.length - head && first[first.length - 1 - tail] === second[second.length - 1 - tail]) tail++;
  const a = first.slice(head, first.length - tail), b = second.slice(head, second.length - tail);
  const marks = [first.map((_, at) => at >= head && at < first.length - tail), second.map((_, at) => at >= head && at < second.length - tail)];
  // The table of the exact comparison has one cell for each pair of tokens.
  if (a.length * b.length > 4e6) return marks;
  const width = b.length + 1, table = new Uint16Array((a.length + 1) * width);
  for (let x = a.length - 1; x >= 0; x--)
    for (let y = b.length - 1; y >= 0; y--)
      table[x * width + y] = a[x] === b[y] ? table[(x + 1) * width + y + 1] + 1 : Math.max(table[(x + 1) * width + y], table[x * width + y + 1]);
  for (let x = 0, y = 0; x < a.length && y < b.length; ) {
    if (a[x] === b[y]) (marks[0][head + x++] = false), (marks[1][head + y++] = false);
    else if (table[(x + 1) * width + y] >= table[x * width + y + 1]) x++;
    else y++;
  }
  return marks;
}
