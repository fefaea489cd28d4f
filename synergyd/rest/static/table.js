// A table that is kept up to date cell by cell, so that neither the focus nor a screen reader loses its place.
// column: {label, text(row), value(row)?, num?, href(row)?, kind?}

import { h, setText } from "./dom.js";

let count = 0;

export class Rows {
  constructor({ caption, columns, key, empty, mine = () => false, filter = null, limit = 1000 }) {
    Object.assign(this, { columns, key, mine, filter, limit });
    this.kept = new Map();
    this.rows = [];
    this.sorted = null; // [column, 1 or -1]
    this.body = h("tbody");
    this.heads = columns.map((column) => h("th", { scope: "col", class: column.num ? "num" : null },
      h("button", { type: "button", onclick: () => this.sortBy(column) }, column.label)));
    this.table = h("table", null, h("caption", { class: "unseen" }, caption), h("thead", null, h("tr", null, this.heads)), this.body);
    this.empty = h("p", { class: "empty" }, empty);
    const box = h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": caption }, this.table);
    this.box = box;
    this.tools = filter ? this.filterField(filter) : null;
    this.element = h("div", null, box, this.empty);
  }

  filterField(label) {
    const id = `filter-${(count += 1)}`;
    this.input = h("input", { id, type: "search", autocomplete: "off", oninput: () => this.draw() });
    this.matching = h("span", { class: "note", role: "status" });
    return h("div", { class: "tools" }, h("label", { for: id, class: "note" }, label), this.input, this.matching);
  }

  sortBy(column) {
    const up = this.sorted && this.sorted[0] === column ? -this.sorted[1] : column.num ? -1 : 1;
    this.sorted = [column, up];
    this.heads.forEach((head, i) => {
      if (this.columns[i] === column) head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    this.draw();
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    let rows = this.rows;
    const wanted = this.input ? this.input.value.trim().toLowerCase() : "";
    if (wanted) rows = rows.filter((row) => this.columns.some((c) => c.text(row).toLowerCase().includes(wanted)));
    if (this.matching) setText(this.matching, wanted ? `${rows.length} of ${this.rows.length}` : "");
    if (this.sorted) {
      const [column, up] = this.sorted;
      const value = column.value ?? column.text;
      rows = [...rows].sort((a, b) => up * compare(value(a), value(b)));
    }
    rows = rows.slice(0, this.limit);
    this.box.hidden = !this.rows.length;
    this.empty.hidden = Boolean(this.rows.length);
    if (this.tools) this.tools.hidden = !this.rows.length;
    const left = new Map(this.kept);
    rows.forEach((row, place) => {
      const key = this.key(row);
      left.delete(key);
      const shown = this.kept.get(key) ?? this.made(key);
      this.fill(shown, row);
      if (this.body.children[place] !== shown.line) this.body.insertBefore(shown.line, this.body.children[place] ?? null);
    });
    for (const [key, { line }] of left) {
      line.remove();
      this.kept.delete(key);
    }
  }

  made(key) {
    const cells = this.columns.map((column, i) => {
      const cell = h(i ? "td" : "th", { scope: i ? null : "row", class: column.num ? "num" : column.kind });
      const holder = column.href ? cell.appendChild(h("a")) : cell;
      return { cell, holder };
    });
    const made = { line: h("tr", null, cells.map((c) => c.cell)), cells };
    this.kept.set(key, made);
    return made;
  }

  fill({ line, cells }, row) {
    line.classList.toggle("mine", this.mine(row));
    this.columns.forEach((column, i) => {
      const text = column.text(row);
      setText(cells[i].holder, text);
      if (column.kind === "clip") cells[i].cell.title = text;
      if (column.href) cells[i].holder.href = column.href(row);
    });
  }
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? 1 : -1;
  return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
}
