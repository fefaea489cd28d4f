// The last day of each job: a bar while it runs, as high as its share of its own largest size, with its GPUs written in.

import { behind, h, jobHref, num, plainTable, s, span, stamp } from "./dom.js";
import { timeAxis, timeTicks } from "./chart.js";

const ROW = 22;
const LABEL = 190;
const RIGHT = 8;
const MOST_ROWS = 600;

export function gantt({ jobs, from, to, width, me }) {
  const rows = [...jobs].sort((a, b) => b.job_id - a.job_id).slice(0, MOST_ROWS);
  const right = width - RIGHT;
  const x = (at) => LABEL + ((Math.max(at, from) - from) / (to - from || 1)) * (right - LABEL);
  const height = rows.length * ROW + 4;
  const grid = timeTicks(from, to, Math.max(2, Math.floor((right - LABEL) / 80)))
    .map((at) => s("line", { class: "axis", x1: x(at), x2: x(at), y1: 0, y2: height }));
  const picture = s("svg", { width, height, "aria-hidden": "true" }, grid, rows.map((job, i) => row(job, i * ROW, x, from, me)));
  const head = h("div", { class: "head", "aria-hidden": "true" }, s("svg", { width, height: 18 }, timeAxis(from, to, x, 13, right - LABEL)));
  const resizes = rows.reduce((sum, job) => sum + changes(job), 0);
  const title = `${num(rows.length)} jobs, ${num(resizes)} resizes`;
  return h("figure", null,
    h("figcaption", null, h("span", null, title, rows.length < jobs.length ? ` (the newest of ${num(jobs.length)})` : "", ". ",
      h("span", { class: "note" }, "A bar is as high as the job's share of its largest size; the number is its GPUs. Dotted: it waits."))),
    h("div", { class: "gantt", role: "region", "aria-label": "Gantt chart; the table behind it says the same", tabindex: 0 }, head, picture),
    behind(() => plainTable("Who held how much, and when",
      [{ label: "Job" }, { label: "Name" }, { label: "User" }, { label: "From" }, { label: "For" , num: true }, { label: "GPUs", num: true }, { label: "Restarts", num: true }],
      rows.flatMap((job) => job.held.map((one) => [
        h("a", { href: jobHref(job.job_id) }, String(job.job_id)), job.name, job.user, stamp(one.from_s), span(one.to_s - one.from_s),
        one.gpus ? num(one.gpus) : "waits", num(one.restarts),
      ])))));
}

// a change of size between two times that it ran
export function changes(job) {
  const sizes = job.held.filter((one) => one.gpus).map((one) => one.gpus);
  return sizes.slice(1).filter((gpus, i) => gpus !== sizes[i]).length;
}

function row(job, top, x, from, me) {
  const largest = Math.max(1, ...job.held.map((one) => one.gpus));
  const mine = job.user === me ? " mine" : "";
  const label = `${job.job_id} ${job.name}`;
  const parts = job.held.filter((one) => one.to_s > from).flatMap((one) => {
    const left = x(one.from_s);
    const wide = Math.max(1, x(one.to_s) - left);
    if (!one.gpus) return [s("line", { class: "waits", x1: left, x2: left + wide, y1: top + ROW - 5, y2: top + ROW - 5 })];
    const tall = Math.max(4, (ROW - 5) * (one.gpus / largest));
    const words = `${label}: ${num(one.gpus)} GPUs from ${stamp(one.from_s)} for ${span(one.to_s - one.from_s)}`;
    return [
      s("rect", { class: `bar${mine}`, x: left, y: top + ROW - 3 - tall, width: wide, height: tall }, s("title", null, words)),
      wide > 8 * String(one.gpus).length + 6 ? s("text", tall > 10 ? { class: `bar-text${mine}`, x: left + 4, y: top + ROW - 7 } : { class: "bar-text", x: left + 4, y: top + ROW - 5 - tall }, num(one.gpus)) : null,
    ];
  });
  const short = label.length > 27 ? `${label.slice(0, 26)}…` : label;
  return s("a", { href: jobHref(job.job_id), tabindex: -1 },
    s("text", { class: "on", x: 0, y: top + ROW - 7 }, short, s("title", null, `${label}, ${job.user}`)), parts);
}
