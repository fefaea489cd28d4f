// The last day: goodput against plain Slurm's, and the Gantt chart.

import { ask } from "./api.js";
import { lineChart } from "./chart.js";
import { behind, clock, fact, h, num, plainTable, span } from "./dom.js";
import { gainReader } from "./gain.js";
import { gantt } from "./gantt.js";

const AGAIN_MS = 15000;

// the choice of a span, shown on each view of one
export function spans(days) {
  const link = ([n, name, words]) => h("a", { href: `#/${name}`, "aria-current": n === days ? "page" : null }, words);
  return h("p", { class: "spans" }, [[1, "day", "Day"], [7, "week", "Week"], [31, "month", "Month"]].map(link));
}

export function dayView(context) {
  const facts = h("dl", { class: "facts" });
  const goodput = h("div");
  const chart = h("div");
  const element = h("div", null, h("h1", { tabindex: -1 }, "The last day"), spans(1), facts,
    h("section", null, h("h2", null, "Goodput of the cluster"), goodput), h("section", null, h("h2", null, "Jobs and their sizes"), chart));
  let etag = "";
  let told = null;
  let asked_ms = -AGAIN_MS;
  const gain = gainReader(context);

  function draw() {
    if (!told) return;
    const { totals, jobs } = told;
    const first = Math.min(totals[0]?.at_s ?? told.to_s, ...jobs.flatMap((job) => job.held.slice(0, 1).map((one) => one.from_s)));
    const from = Math.max(told.from_s, first);
    const width = Math.max(320, element.clientWidth);
    const goodputs = totals.reduce((sum, one) => sum + one.goodput_gpus, 0) / (totals.length || 1);
    facts.replaceChildren(
      fact("Recorded", span(told.to_s - from)),
      fact("Goodput, mean", num(goodputs), "GPUs, predicted"),
      ...gain.facts());
    goodput.replaceChildren(lineChart({
      title: "In GPUs of jobs at the size asked for.",
      note: "Plain Slurm: the same jobs, first come first served with backfill, each at the size asked for. Both are predictions of each epoch, without restarts: no measure of the gain.",
      series: [
        { name: "Synergy's allocation", points: totals.map((one) => [one.at_s, one.goodput_gpus]) },
        { name: "plain Slurm's", kind: "second", points: totals.map((one) => [one.at_s, one.plain_gpus]) },
      ],
      from, to: told.to_s, width, height: 200,
      table: behind(() => plainTable("Goodput over time", [{ label: "Time" }, { label: "Synergy", num: true }, { label: "Plain Slurm", num: true }, { label: "GPUs up", num: true }],
        totals.map((one) => [clock(one.at_s, true), num(one.goodput_gpus), num(one.plain_gpus), num(one.gpus)]))),
    }));
    const place = chart.querySelector(".gantt")?.scrollTop ?? 0;
    chart.replaceChildren(jobs.length ? gantt({ jobs, from, to: told.to_s, width, me: context.me?.user }) : h("p", { class: "empty" }, "No job in the last day."));
    const box = chart.querySelector(".gantt");
    if (box) box.scrollTop = place;
  }

  async function load() {
    if (performance.now() - asked_ms < AGAIN_MS) return;
    asked_ms = performance.now();
    const busy = element.contains(document.activeElement) && document.activeElement.closest("figure");
    const [answer] = await Promise.all([ask("GET", "history", { known: etag, signal: context.signal }), gain.load()]);
    if (answer.status === 304 || context.signal.aborted) return;
    etag = answer.etag;
    told = answer.body;
    const open = [...element.querySelectorAll("details[open]")].length;
    if (!busy && !open) draw(); // nobody reads a table or walks the chart
  }

  return { element, title: "The last day", update: load, resized: draw };
}
