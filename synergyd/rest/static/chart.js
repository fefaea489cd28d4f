// Line charts over time, as SVG.

import { clock, h, isNumber, num, s, stamp } from "./dom.js";

// around the picture of a chart, in pixels
export const LEFT = 46;
export const RIGHT = 8;
export const TOP = 8;
export const BOTTOM = 20;

// round numbers from 0 or near `low` to above `high`
export function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

const STEPS_S = [10, 30, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

export function timeTicks(from, to, most) {
  const step = STEPS_S.find((n) => n >= (to - from) / most) ?? 86400;
  const shift = new Date(from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return found;
}

export function timeAxis(from, to, x, y, width) {
  const found = timeTicks(from, to, Math.max(2, Math.floor(width / 80)));
  const fine = to - from < 300;
  return found.map((at) => s("text", { x: x(at), y, "text-anchor": "middle" }, clock(at, fine)));
}

export function valueAxis(values, y, right, format) {
  return values.map((v) => [
    s("line", { class: "axis", x1: LEFT, x2: right, y1: y(v), y2: y(v) }),
    s("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, format(v)),
  ]);
}

// series: [{name, points: [[time, value or null]], kind?, steps?}]; marks: times of restarts; returns <figure>
export function lineChart({ title, note, series, from, to, width, height = 150, format = num, marks = [], log = false, table, zero = true }) {
  const values = series.flatMap((one) => one.points.map(([, v]) => v)).filter((v) => isNumber(v) && (!log || v > 0));
  const read = h("span", { class: "read", "aria-hidden": "true" });
  const caption = h("figcaption", null, h("span", null, title, note ? h("span", { class: "note" }, ` ${note}`) : null), read);
  if (!values.length) return h("figure", null, caption, h("p", { class: "empty" }, "Nothing recorded yet."));
  const least = Math.min(...values);
  const most = Math.max(...values);
  const scale = log ? Math.log2 : (v) => v;
  const spread = (most - least) || Math.abs(most) || 1;
  const low = log ? Math.floor(Math.log2(least)) : zero && least >= 0 ? 0 : least - 0.05 * spread;
  const high = log ? Math.max(Math.ceil(Math.log2(most)), low + 1) : most + 0.08 * (zero && least >= 0 ? most || 1 : spread);
  const right = width - RIGHT;
  const bottom = height - BOTTOM;
  const x = (at) => LEFT + ((at - from) / (to - from || 1)) * (right - LEFT);
  const y = (v) => bottom - ((scale(v) - low) / (high - low)) * (bottom - TOP);
  const rows = log ? ticks(low, high, 4).filter(Number.isInteger).map((n) => 2 ** n) : ticks(low, high, 4);
  const picture = s("svg", { width, height, role: "img", "aria-label": words(title, series, format) },
    valueAxis(rows, y, right, format),
    timeAxis(from, to, x, height - 5, right - LEFT),
    marks.map((at) => s("line", { class: "mark", x1: x(at), x2: x(at), y1: TOP, y2: bottom })),
    series.map((one) => s("path", { class: `line ${one.kind ?? ""}`, d: path(one, x, y, log) })));
  pointer(picture, read, { series, from, to, x, format, bottom });
  const key = series.length > 1 ? h("div", { class: "key" }, series.map((one) => h("span", null, h("i", { class: one.kind ? "dash" : "solid" }), one.name))) : null;
  return h("figure", null, caption, key, picture, table ?? null);
}

// breaks where a value is missing or the daemon was away
function path({ points, steps }, x, y, log) {
  const gaps = points.slice(1).map((p, i) => p[0] - points[i][0]).sort((a, b) => a - b);
  const away = Math.max(5 * (gaps[Math.floor(gaps.length / 2)] ?? 0), 120);
  let d = "";
  let last = null;
  for (const [at, value] of points) {
    if (!isNumber(value) || (log && value <= 0)) { last = null; continue; }
    const place = `${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    if (last === null || (!steps && at - last > away)) d += `M${place}`;
    else d += steps ? `H${x(at).toFixed(1)}V${y(value).toFixed(1)}` : `L${place}`;
    last = at;
  }
  if (points.length === 1) d += "h2";
  return d;
}

function words(title, series, format) {
  const last = series.map((one) => {
    const known = one.points.filter(([, v]) => isNumber(v));
    return known.length ? `${one.name} ${format(known[known.length - 1][1])}` : "";
  });
  return `${title}: line chart; at the end ${last.filter(Boolean).join(", ")}`;
}

// what the series were at the pointer's time
function pointer(picture, read, { series, from, to, x, format, bottom }) {
  const cross = s("line", { class: "cross", y1: TOP, y2: bottom, visibility: "hidden" });
  picture.append(cross);
  picture.addEventListener("pointermove", (event) => {
    const at = from + ((event.offsetX - x(from)) / (x(to) - x(from))) * (to - from);
    if (at < from || at > to) return;
    cross.setAttribute("x1", x(at));
    cross.setAttribute("x2", x(at));
    cross.setAttribute("visibility", "visible");
    const told = series.map((one) => {
      const before = one.points.filter(([when]) => when <= at).pop();
      return before && isNumber(before[1]) ? `${one.name} ${format(before[1])}` : null;
    });
    read.textContent = [stamp(at), ...told.filter(Boolean)].join("   ");
  });
  picture.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    read.textContent = "";
  });
}
