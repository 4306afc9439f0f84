// What the run ran with: its configuration and what it ran on.

import { h, replace } from "./dom.js";

export class SetupView {
  constructor(container, book) {
    this.container = container;
    this.book = book;
  }

  update(info) {
    replace(this.container,
      h("h2", {}, "Settings"),
      info.config ? h("pre", { class: "config", tabindex: "0", "aria-label": "config.toml" }, info.config) : h("p", { class: "note" }, "This run has no configuration in its folder."),
      Object.keys(info.meta).length ? [h("h2", {}, "Ran on"), h("dl", { class: "meta" }, rows(info.meta))] : null);
  }

  leave() {}
}

function rows(table, before = "") {
  return Object.entries(table).flatMap(([key, value]) => {
    const isTable = value !== null && typeof value === "object" && !Array.isArray(value);
    return isTable ? rows(value, `${before}${key}.`) : [h("dt", {}, before + key), h("dd", {}, Array.isArray(value) ? value.join(" ") : String(value))];
  });
}
