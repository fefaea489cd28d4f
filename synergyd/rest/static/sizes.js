// Why this size and not that: goodput over GPUs, the chosen size among those that it did not get.

import { h, num, planWords, s, times } from "./dom.js";

const LEFT = 52;
const BOTTOM = 34;
const TOP = 22;
const HEIGHT = 240;

const shapeWords = (shape) => `${num(shape.nodes * shape.gpus_per_node)} GPUs, ${shape.nodes} × ${shape.gpus_per_node} ${shape.gpu_type}`;

// the choices as rows: the chosen one first, then the best that it did not get; the size asked for where it can be told
export function choices(decision, asked_gpus) {
  const rows = [];
  const cell = decision.cell;
  if (cell) rows.push({ mark: "●", kind: "chosen", cell, why: "chosen" });
  decision.alternatives.forEach((one, i) => rows.push({ mark: String(i + 1), kind: "", cell: one.cell, why: one.why_not }));
  const gpus = (row) => row.cell.shape.nodes * row.cell.shape.gpus_per_node;
  const per = cell && decision.relative_goodput ? cell.goodput / decision.relative_goodput : null;
  return { rows: rows.map((row) => ({ ...row, gpus: gpus(row), gain: per ? row.cell.goodput / per : null })), asked: per && asked_gpus ? { gpus: asked_gpus, goodput: per } : null };
}

export function sizesFigure(decision, asked_gpus, width) {
  const { rows, asked } = choices(decision, asked_gpus);
  if (!rows.length) return h("p", { class: "empty" }, "No size has been found for it yet.");
  const head = ["", "Size", "Plan", "Batch", "Predicted goodput", "Against asked", "Why"];
  return h("figure", null,
    h("figcaption", null, h("span", null, "Predicted goodput by GPUs. ", h("span", { class: "note" }, "● chosen; numbers: sizes that it did not get; ◆ as asked at sbatch."))),
    picture(rows, asked, Math.min(width, 760)),
    h("div", { class: "scroll" }, h("table", null,
      h("caption", null, "The choices"),
      h("thead", null, h("tr", null, head.map((text, i) => h("th", { scope: "col", class: i > 2 && i < 6 ? "num" : null }, text)))),
      h("tbody", null, rows.map((row) => h("tr", { class: row.kind },
        h("th", { scope: "row" }, row.kind ? h("span", { "aria-label": "chosen" }, row.mark) : row.mark), h("td", null, shapeWords(row.cell.shape)), h("td", null, planWords(row.cell.plan)),
        h("td", { class: "num" }, num(row.cell.plan.global_batch)), h("td", { class: "num" }, num(row.cell.goodput)),
        h("td", { class: "num" }, times(row.gain)), h("td", { class: "wide" }, row.why)))))));
}

function picture(rows, asked, width) {
  const all = [...rows.map((row) => ({ gpus: row.gpus, goodput: row.cell.goodput })), ...(asked ? [asked] : [])];
  const most = Math.max(...all.map((one) => one.goodput)) * 1.12 || 1;
  const from = Math.log2(Math.min(...all.map((one) => one.gpus))) - 0.4;
  const to = Math.log2(Math.max(...all.map((one) => one.gpus))) + 0.4;
  const x = (gpus) => LEFT + ((Math.log2(gpus) - from) / (to - from)) * (width - LEFT - 16);
  const y = (goodput) => HEIGHT - BOTTOM - (goodput / most) * (HEIGHT - BOTTOM - TOP);
  const sizes = [...new Set(all.map((one) => one.gpus))].sort((a, b) => a - b);
  const lines = [0.25, 0.5, 0.75, 1].map((part) => (part * most) / 1.12);
  const taken = new Map(); // several plans of one size: their numbers side by side
  const dots = rows.map((row) => {
    const at = `${row.gpus} ${Math.round(y(row.cell.goodput) / 12)}`;
    const beside = taken.get(at) ?? 0;
    taken.set(at, beside + 1);
    return [
      s("circle", { class: `dot ${row.kind}`, cx: x(row.gpus), cy: y(row.cell.goodput), r: row.kind ? 6 : 4.5 }),
      row.kind ? s("text", { class: "on", x: x(row.gpus), y: y(row.cell.goodput) - 11, "text-anchor": "middle" }, `${num(row.gpus)} GPUs`)
        : s("text", { class: "on", x: x(row.gpus) + 8 + 12 * beside, y: y(row.cell.goodput) + 4 }, row.mark),
    ];
  });
  const chosen = rows.find((row) => row.kind);
  const words = `Predicted goodput by GPUs; ${chosen ? `chosen: ${chosen.gpus} GPUs` : "none chosen"}; the table below says the same`;
  return s("svg", { width, height: HEIGHT, role: "img", "aria-label": words },
    lines.map((v) => [s("line", { class: "axis", x1: LEFT, x2: width - 8, y1: y(v), y2: y(v) }), s("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, num(v))]),
    s("line", { class: "axis", x1: LEFT, x2: width - 8, y1: y(0), y2: y(0) }),
    spaced(sizes, x).map((gpus) => s("text", { x: x(gpus), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, num(gpus))),
    s("text", { x: width - 8, y: HEIGHT - 4, "text-anchor": "end" }, "GPUs"),
    s("text", { x: 0, y: 10 }, "sequences/s × efficiency"),
    asked ? s("path", { class: "dot asked", d: `M${x(asked.gpus)} ${y(asked.goodput) - 7}l7 7l-7 7l-7 -7z` }, s("title", null, `as asked: ${asked.gpus} GPUs`)) : null,
    dots);
}

function spaced(sizes, x) {
  const kept = [];
  for (const gpus of sizes) if (!kept.length || x(gpus) - x(kept[kept.length - 1]) > 26) kept.push(gpus);
  return kept;
}
