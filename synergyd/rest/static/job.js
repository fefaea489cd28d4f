// One job: what it has and why, its curves, its story.

import { ask } from "./api.js";
import { lineChart } from "./chart.js";
import { behind, clock, expectedWords, fact, fixed, h, num, percent, planWords, plainTable, span, stamp, times } from "./dom.js";
import { sizesFigure } from "./sizes.js";
import { steerForm } from "./steer.js";

const AGAIN_MS = 5000;

export function jobView(context, job_id) {
  const heading = h("h1", { tabindex: -1 }, `Job ${job_id}`);
  const facts = h("dl", { class: "facts" });
  const notes = h("div");
  const sizes = h("div");
  const curves = h("div", { class: "charts" });
  const story = h("div");
  const steer = steerForm(job_id, context, () => { asked_ms = -AGAIN_MS; load(context.status); });
  const element = h("div", null, heading, facts, notes,
    h("section", null, h("h2", null, "Why this size"), sizes), steer.element,
    h("section", null, h("h2", null, "Its last day"), curves), h("section", null, h("h2", null, "Story"), story));
  let asked_ms = -AGAIN_MS;
  let told = null;
  let seen = "";
  let steered = false;

  function draw() {
    if (!told) return;
    const { explain, history, row } = told;
    drawFacts(facts, heading, explain, row, job_id);
    notes.replaceChildren(...notesOf(explain, row).map(([text, warn]) => h("p", { class: warn ? "note warn" : "note" }, text)));
    const width = Math.max(320, element.clientWidth);
    sizes.replaceChildren(...why(explain, row, width));
    if (!curves.querySelector("details[open]")) drawCurves(curves, history, width);
    drawStory(story, explain);
  }

  async function load(status) {
    if (performance.now() - asked_ms < AGAIN_MS) return;
    asked_ms = performance.now();
    const row = (status?.jobs ?? []).find((job) => job.job_id === job_id);
    const signal = context.signal;
    const [explain, history] = await Promise.all([ask("GET", `jobs/${job_id}/explain`, { signal }), ask("GET", `jobs/${job_id}/history`, { signal })]);
    if (signal.aborted) return;
    told = { explain: explain.body, history: history.body, row };
    const now = JSON.stringify(told);
    if (now !== seen) draw();
    seen = now;
    const mine = row && (context.me?.commands_all || context.me?.user === row.user || context.me?.coordinates.includes(row.account));
    steer.element.hidden = !mine;
    steer.show(explain.body.paused);
    if (mine && !steered) {
      steered = true;
      await steer.load();
    }
  }

  return { element, title: `Job ${job_id}`, update: load, resized: draw };
}

function drawFacts(facts, heading, explain, row, job_id) {
  const report = explain.report;
  heading.textContent = row ? `Job ${row.slurm_name || job_id}: ${row.name}` : `Job ${job_id}`;
  const plan = row ? row.plan : report?.plan;
  facts.replaceChildren(...[
    row ? fact("User", row.user, row.account) : fact("State", explain.lifecycle ?? ending(explain.end)),
    row ? fact("State", row.state.toLowerCase(), row.action) : fact("Last seen", explain.story.length ? stamp(explain.story[explain.story.length - 1].at_s) : "–"),
    explain.expected?.start ? fact("Starts", expectedWords(explain.expected.start), "in 8 of 10 cases") : null,
    explain.expected?.end ? fact("Ends", expectedWords(explain.expected.end), "in 8 of 10 cases") : null,
    fact("GPUs", num(row?.gpus), row ? `asked ${num(row.asked_gpus)}` : ""),
    fact("Goodput", times(row?.relative_goodput ?? explain.decision?.relative_goodput), "of the size asked for"),
    fact("Plan", planWords(plan)),
    fact("Batch", num(plan?.global_batch), plan ? `micro ${plan.micro_batch}` : ""),
    fact("Noise scale", num(report?.noise_scale), "sequences"),
    fact("Step", num(report?.step), report?.step_s ? `${num(report.step_s)} s each` : ""),
    explain.achieved?.mfu ? fact("MFU", percent(explain.achieved.mfu), `${num(explain.achieved.tokens_per_s)} tokens/s`) : null,
    explain.achieved?.predicted_step_s ? fact("Step predicted", `${num(explain.achieved.predicted_step_s)} s`, `measured ${num(explain.achieved.step_s)} s`) : null,
    explain.kernels ? fact("Kernels", ...kernelWords(explain.kernels)) : null,
    ...activityFacts(report?.gpu_activity, !explain.achieved),
    fact("Loss", fixed(report?.loss, 4)),
    fact("Restarts", num(row?.restarts ?? report?.restarts)),
  ].filter(Boolean));
}

// "detected: ...; assumed: ...": how they are known, and which.
function kernelWords(text) {
  const [word, ...rest] = text.split(": ");
  return [word, rest.join(": ")];
}

// The GPUs of the node that reports: recent means, and of a run that is over the whole run's.
function activityFacts(activity, isOver) {
  if (!activity) return [];
  const [busy, power] = isOver ? [activity.run_utilisation, activity.run_power_w] : [activity.utilisation, activity.power_w];
  const tensor = !isOver && activity.tensor != null ? `tensor cores ${percent(activity.tensor)}` : "by NVML";
  return [
    busy != null ? fact("GPUs busy", percent(busy), tensor) : null,
    power != null ? fact("Power", `${num(power)} W`, "a GPU") : null,
    activity.memory_bytes != null ? fact("GPU memory", `${num(activity.memory_bytes / 2 ** 30)} GiB`, "in use") : null,
  ];
}

// How a job that has left the queue ended, by Slurm.
function ending(end) {
  if (!end) return "has left the queue";
  return `${end.state.toLowerCase()}, ${end.signal ? `signal ${end.signal}` : `exit code ${end.exit_code}`}`;
}

function notesOf(explain, row) {
  return [
    explain.expected?.why ? [explain.expected.why, false] : null,
    explain.dry_run ? ["Dry run: this is what Synergy would do.", false] : null,
    explain.paused ? ["Paused: Synergy leaves it at its size.", false] : null,
    ...explain.warnings.map((text) => [text, true]),
    explain.note ? [`The job says: ${explain.note}`, false] : null,
    row?.held ? ["Held in Slurm.", true] : null,
  ].filter(Boolean);
}

function why(explain, row, width) {
  const decision = explain.decision;
  if (!decision) return [h("p", { class: "empty" }, row?.why || "Nothing has been decided about it yet.")];
  const figure = decision.cell || decision.action === "wait" ? [sizesFigure(decision, row?.asked_gpus, width)] : explain.lines.map((text) => h("p", null, text));
  const parts = [h("p", null, decision.why, h("span", { class: "note" }, ` Decided ${stamp(explain.decided_s)}: ${decision.action}.`)), ...figure];
  if (decision.worth.length || decision.fairness !== null) {
    parts.push(h("h3", { class: "note" }, "What the allocation counted for it"),
      h("dl", { class: "facts" }, decision.worth.map(([name, value]) => fact(name, num(value))), decision.fairness === null ? null : fact("finish-time fairness", num(decision.fairness))));
  }
  if (explain.links.length) parts.push(h("ul", null, explain.links.map((text) => h("li", null, text))));
  return parts;
}

function drawCurves(place, history, whole) {
  const { points, decided, held } = history;
  const times_s = [...points.map((p) => p.at_s), ...decided.map((d) => d.at_s), ...held.map((one) => one.from_s)];
  if (!times_s.length) {
    place.replaceChildren(h("p", { class: "empty" }, "Nothing recorded yet."));
    return;
  }
  const from = Math.max(Math.min(...times_s), history.to_s - 86400);
  const to = Math.max(history.to_s, ...times_s);
  const columns = Math.max(1, Math.min(3, Math.floor((whole + 32) / 400)));
  const width = Math.floor((whole - (columns - 1) * 32) / columns);
  const marks = restarts(points, held).filter((at) => at >= from);
  const lasting = (series) => (series.length ? [...series, [to, series[series.length - 1][1]]] : []);
  const of = (key) => points.map((p) => [p.at_s, p[key]]);
  const common = { from, to, width, marks };
  place.replaceChildren(
    lineChart({ ...common, title: "GPUs held", series: [{ name: "GPUs", steps: true, points: lasting(held.map((one) => [Math.max(from, one.from_s), one.gpus])) }],
      table: behind(() => plainTable("GPUs held", [{ label: "From" }, { label: "For", num: true }, { label: "GPUs", num: true }, { label: "Restarts", num: true }],
        held.map((one) => [stamp(one.from_s), span(one.to_s - one.from_s), num(one.gpus), num(one.restarts)]))) }),
    lineChart({ ...common, title: "Goodput", note: "as predicted, against the size asked for", format: (v) => `${num(v)}×`,
      series: [{ name: "goodput", steps: true, points: lasting(decided.filter((d) => d.at_s >= from).map((d) => [d.at_s, d.relative_goodput])) }],
      table: behind(() => plainTable("Decisions", [{ label: "Time" }, { label: "GPUs", num: true }, { label: "Goodput", num: true }, { label: "Against asked", num: true }, { label: "Plan" }],
        decided.map((d) => [stamp(d.at_s), num(d.gpus), num(d.goodput), times(d.relative_goodput), d.plan]))) }),
    lineChart({ ...common, title: "Batch and noise scale", note: "sequences", log: true, series: [
      { name: "batch", steps: true, points: lasting(of("global_batch")) }, { name: "noise scale", kind: "second", points: of("noise_scale") }], table: reported(points) }),
    lineChart({ ...common, title: "Loss", zero: false, format: (v) => num(v, 4), series: [{ name: "loss", points: of("loss") }], table: reported(points) }),
    lineChart({ ...common, title: "Seconds a step", series: [{ name: "seconds", points: of("step_s") }], table: reported(points) }),
    lineChart({ ...common, title: "Steps", series: [{ name: "step", points: of("step") }], table: reported(points) }));
}

const reported = (points) => behind(() => plainTable("What the job reported",
  [{ label: "Time" }, { label: "Step", num: true }, { label: "Loss", num: true }, { label: "Noise scale", num: true }, { label: "Batch", num: true }, { label: "Step s", num: true }],
  points.map((p) => [clock(p.at_s, true), num(p.step), fixed(p.loss, 4), num(p.noise_scale), num(p.global_batch), num(p.step_s)])));

function restarts(points, held) {
  const seen = [...held.map((one) => [one.from_s, one.restarts]), ...points.map((p) => [p.at_s, p.restarts])].sort((a, b) => a[0] - b[0]);
  return seen.filter(([, n], i) => i && n > seen[i - 1][1]).map(([at]) => at);
}

function drawStory(place, explain) {
  const lines = [...explain.story].reverse();
  if (!lines.length) return place.replaceChildren(h("p", { class: "empty" }, "Nothing has happened yet."));
  return place.replaceChildren(h("ol", { class: "story", reversed: true }, lines.map((line) =>
    h("li", null, h("time", { datetime: new Date(line.at_s * 1000).toISOString() }, stamp(line.at_s)), h("span", { class: "state" }, line.state.toLowerCase()), h("span", null, line.detail || line.event)))));
}
