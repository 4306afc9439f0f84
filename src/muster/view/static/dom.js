// Elements from plain values. Text goes in as text, never as markup: what a model wrote stays inert.

const STEERING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

/** The text with a visible sign for each character that can't be seen or that changes direction. */
export function visible(text) {
  return String(text).replace(STEERING, (letter) => {
    return `\u27e8U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

/** An element: `h("button", { class: "quiet", onclick: go }, "Go")`. Null attributes and children are left out. */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for drawings. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "var") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  append(element, children);
  return element;
}

/** Adds children: elements, texts, lists of them; null and false are nothing. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
}

/** Puts these children in place of those there are. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** What a screen reader says now. */
export function speak(text) {
  document.getElementById("spoken").textContent = visible(text);
}

/** The element of this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Calls a function once the calls to it pause for so many milliseconds. */
export function pausing(wait, call) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), wait);
  };
}
