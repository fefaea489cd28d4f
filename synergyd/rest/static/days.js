// The last week or month: what the GPU hours of each day went into, as a bar per day.

import { ask } from "./api.js";
import { BOTTOM, LEFT, RIGHT, TOP, ticks, valueAxis } from "./chart.js";
import { behind, fact, h, num, percent, plainTable, s, stamp } from "./dom.js";
import { spans } from "./day.js";
import { gainReader } from "./gain.js";

const AGAIN_MS = 60000;
const HEIGHT = 260;
// from the ground up; the names are those of `synergyctl usage`
const PARTS = [
  ["training", "training_gpu_h"], ["start", "start_gpu_h"], ["checkpoint", "checkpoint_gpu_h"], ["resize", "resize_gpu_h"],
  ["failure", "failure_gpu_h"], ["straggler", "straggler_gpu_h"], ["idle", "idle_gpu_h"], ["not known", "unknown_gpu_h"],
];
const kind = (name) => `part ${name.replace(" ", "-")}`;

export function daysView(context, days) {
  const title = days > 7 ? "The last month" : "The last week";
  const facts = h("dl", { class: "facts" });
  const chart = h("div");
  const element = h("div", null, h("h1", { tabindex: -1 }, title), spans(days), facts, h("section", null, h("h2", null, "GPU hours by day"), chart));
  const gain = gainReader(context);
  let etag = "";
  let told = null;
  let asked_ms = -AGAIN_MS;

  function draw() {
    if (!told) return;
    const { losses, total } = told;
    facts.replaceChildren(
      fact("Held", num(losses.held_gpu_h), "GPU hours"),
      fact("In training", percent(losses.effective), "of the hours of which it is known"),
      fact("Jobs", num(total.jobs)),
      ...gain.facts());
    const known = told.days.filter((day) => day.losses.held_gpu_h > 0);
    chart.replaceChildren(known.length ? bars(told.days, losses, Math.max(320, element.clientWidth)) : h("p", { class: "empty" }, "No job has held GPUs in these days."));
  }

  async function load() {
    if (performance.now() - asked_ms < AGAIN_MS) return;
    asked_ms = performance.now();
    const [answer] = await Promise.all([ask("GET", `usage?days=${days}`, { known: etag, signal: context.signal }), gain.load()]);
    if (answer.status === 304 || context.signal.aborted) return;
    etag = answer.etag;
    told = answer.body;
    if (!element.querySelector("details[open]")) draw(); // nobody reads the table
  }

  return { element, title, update: load, resized: draw };
}

const date = (at_s) => stamp(at_s).slice(5, 10);

function bars(days, losses, width) {
  const most = Math.max(...days.map((day) => day.losses.held_gpu_h));
  const rows = ticks(0, most, 4);
  const high = Math.max(most, rows[rows.length - 1]);
  const right = width - RIGHT;
  const bottom = HEIGHT - BOTTOM;
  const pitch = (right - LEFT) / days.length;
  const y = (hours) => bottom - (Math.max(0, hours) / high) * (bottom - TOP);
  const every = Math.ceil(44 / pitch); // a date takes 40 px
  const shown = PARTS.filter(([, key]) => losses[key] > 0);
  const picture = s("svg", { width, height: HEIGHT, role: "img", "aria-label": "Bars by day; the table behind them says the same" },
    valueAxis(rows, y, right, num),
    days.map((day, i) => {
      const x = LEFT + i * pitch + 0.15 * pitch;
      let below = 0;
      const parts = shown.map(([name, key]) => {
        const hours = Math.max(0, day.losses[key]);
        below += hours;
        return hours > 0 ? s("rect", { class: kind(name), x, y: y(below), width: 0.7 * pitch, height: y(below - hours) - y(below) }) : null;
      });
      const words = shown.map(([name, key]) => `${name} ${num(day.losses[key])}`).join(", ");
      return s("g", { class: "day" }, s("title", null, `${date(day.from_s)}: ${words}`), parts,
        (days.length - 1 - i) % every ? null : s("text", { x: x + 0.35 * pitch, y: HEIGHT - 5, "text-anchor": "middle" }, date(day.from_s)));
    }));
  const key = h("div", { class: "key" }, shown.map(([name, field]) => h("span", null, h("i", { class: kind(name) }), `${name} ${num(losses[field])}`)));
  return h("figure", null, key, picture,
    behind(() => plainTable("GPU hours by day", [{ label: "Day" }, { label: "held", num: true }, { label: "in training", num: true }, ...shown.map(([label]) => ({ label, num: true }))],
      days.map((day) => [date(day.from_s), num(day.losses.held_gpu_h), percent(day.losses.effective), ...shown.map(([, field]) => num(day.losses[field]))]))));
}
