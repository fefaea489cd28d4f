// The cluster now: nodes x GPUs, who runs, who waits and why.

import { ask } from "./api.js";
import { behind, expectedWords, fact, fixed, h, isNumber, jobHref, jobName, num, planWords, plainTable, section, setText, stamp, times } from "./dom.js";
import { gainReader } from "./gain.js";
import { Rows } from "./table.js";

const BAR_PX = 190; // of a node at the least, and of a digit in it
const DIGIT_PX = 7;
const MANY_NODES = 64; // above, groups of them are closed at first

const size = (job) => (job.wanted_gpus && job.wanted_gpus !== job.gpus ? `${job.gpus} → ${job.wanted_gpus}` : String(job.gpus));

const COMMON = [
  { label: "Job", text: jobName, value: (job) => job.job_id, href: (job) => jobHref(job.job_id) },
  { label: "Name", text: (job) => job.name, kind: "clip" },
  { label: "User", text: (job) => job.user },
];
const NOTES = (job) => [job.paused ? "paused" : "", job.held ? "held" : "", job.action === "waits" ? "" : job.action].filter(Boolean).join(", ");
const RUNNING = [
  ...COMMON,
  { label: "GPUs", text: size, value: (job) => job.gpus, num: true },
  { label: "Asked", text: (job) => num(job.asked_gpus), value: (job) => job.asked_gpus, num: true },
  { label: "Goodput", text: (job) => times(job.relative_goodput), value: (job) => job.relative_goodput ?? -1, num: true },
  { label: "Plan", text: (job) => planWords(job.plan) },
  { label: "Batch", text: (job) => num(job.global_batch), value: (job) => job.global_batch ?? -1, num: true },
  { label: "Step", text: (job) => num(job.step), value: (job) => job.step ?? -1, num: true },
  { label: "Loss", text: (job) => fixed(job.loss, 4), value: (job) => (isNumber(job.loss) ? job.loss : -1), num: true },
  { label: "Restarts", text: (job) => num(job.restarts), value: (job) => job.restarts, num: true },
  { label: "Next", text: NOTES },
];
const WAITING = [
  ...COMMON,
  { label: "Asked", text: (job) => num(job.asked_gpus), value: (job) => job.asked_gpus, num: true },
  { label: "Start", text: (job) => expectedWords(job.start), value: (job) => job.start?.middle_s ?? Infinity },
  { label: "Next", text: NOTES },
  { label: "Why", text: (job) => job.why, kind: "wide" },
];

export function nowView(context) {
  const mine = (job) => job.user === context.me?.user;
  const choice = chooser(mine, () => { if (shown) drawJobs(shown); });
  const facts = h("dl", { class: "facts" });
  const notes = h("div");
  const nodes = section("Nodes", null, h("div"));
  const running = new Rows({ caption: "Jobs that hold GPUs", columns: RUNNING, key: (j) => j.job_id, empty: "Nothing runs.", mine, filter: "Filter those that run" });
  const waiting = new Rows({ caption: "Jobs that wait", columns: WAITING, key: (j) => j.job_id, empty: "Nothing waits.", mine, filter: "Filter those that wait" });
  const runs = section("Running", running.tools, running.element);
  const waits = section("Waiting", waiting.tools, waiting.element);
  waits.element.classList.add("short");
  const element = h("div", null, h("h1", { tabindex: -1 }, "The cluster now"), facts, notes, choice.element, waits.element, runs.element, nodes.element);
  let etag = "";
  let refused = "";
  let cluster = null;
  let shown = null; // the status as it came
  const gain = gainReader(context);

  function drawJobs(status) {
    const jobs = choice.of(status.jobs);
    const held = jobs.filter((job) => job.gpus > 0);
    // those without a #SYNERGY line wait in the same queue
    const plain = (status.waiting ?? []).map((job) => ({ ...job, asked_gpus: job.gpus, action: "" }));
    const rest = [...jobs.filter((job) => !job.gpus), ...choice.of(plain)];
    running.update(held);
    waiting.update(rest);
    setText(runs.count, ` ${num(held.length)}`);
    setText(waits.count, ` ${num(rest.length)}`);
  }

  async function load(status) {
    shown = status;
    const held = status.jobs.filter((job) => job.gpus > 0);
    const rest = status.jobs.filter((job) => !job.gpus);
    choice.update(status.jobs);
    drawJobs(status);
    try {
      const answer = await ask("GET", "cluster", { known: etag, signal: context.signal });
      if (answer.status !== 304) {
        etag = answer.etag;
        cluster = answer.body;
        drawNodes(nodes.element.lastElementChild, cluster, status, mine);
      }
    } catch (error) {
      if (error.status !== 403) throw error;
      refused = error.message;
    }
    drawFacts(status, held, rest);
    await gain.load(); // a month is read for it: what is there is shown first
    drawFacts(status, held, rest);
  }

  function drawFacts(status, held, rest) {
    const up = cluster ? cluster.nodes.filter((node) => node.up).reduce((sum, node) => sum + node.gpus, 0) : null;
    const used = held.reduce((sum, job) => sum + job.gpus, 0);
    facts.replaceChildren(
      fact("GPUs of Synergy's jobs", num(used), up === null ? "" : `of ${num(up)} up`),
      fact("Running", num(held.length)),
      fact("Waiting", num(rest.length)),
      fact("Goodput", num(cluster?.goodput_gpus), cluster ? "GPUs, predicted" : ""),
      ...gain.facts(),
      fact("Last epoch", status.epoch_s ? stamp(status.epoch_s).slice(11) : "none yet"));
    const plain = status.plain_jobs ? `Plain jobs with GPUs, without a #SYNERGY line: ${num(status.plain_jobs)}. They hold ${num(status.plain_held_gpus)} GPUs.` : "";
    const said = [
      status.dry_run ? "Dry run: this is what Synergy would do; it touches no job." : "",
      plain,
      refused,
      ...status.bad_nodes.map((node) => `${node.name}: ${node.why}${node.drained ? " (drained)" : ""}`),
    ].filter(Boolean);
    if (notes.textContent !== said.join("")) notes.replaceChildren(...said.map((text) => h("p", { class: "note warn" }, text)));
  }

  return { element, title: "The cluster now", update: load };
}

// Which jobs the two tables show: one's own, or those of an account or a partition.
function chooser(mine, onChange) {
  const own = h("input", { type: "checkbox", id: "only-mine", onchange: onChange });
  const account = h("select", { id: "only-account", onchange: onChange });
  const partition = h("select", { id: "only-partition", onchange: onChange });
  const all = [["Account", account, (job) => [job.account]], ["Partition", partition, (job) => (job.partition ?? "").split(",")]];
  const element = h("div", { class: "tools" }, h("label", { for: "only-mine" }, own, " only mine"),
    all.map(([label, select]) => h("span", null, h("label", { for: select.id, class: "note" }, `${label} `), select)));
  function update(jobs) {
    for (const [label, select, of] of all) {
      const names = [...new Set(jobs.flatMap(of).filter(Boolean))].sort();
      const known = [...select.options].slice(1).map((option) => option.value);
      select.parentElement.hidden = !names.length;
      if (names.join("\n") === known.join("\n")) continue;
      const chosen = select.value;
      select.replaceChildren(h("option", { value: "" }, `all ${label.toLowerCase()}s`), ...names.map((name) => h("option", { value: name }, name)));
      select.value = names.includes(chosen) ? chosen : "";
    }
  }
  const of = (jobs) => jobs.filter((job) => (!own.checked || mine(job)) && all.every(([, select, names]) => !select.value || names(job).includes(select.value)));
  return { element, update, of };
}

// What a group of nodes is: how many, what is free, and why some are not available.
function groupWords(nodes, free) {
  const away = nodes.filter((node) => !node.up);
  const reasons = new Map();
  for (const node of away) reasons.set(node.reason || "no reason given", (reasons.get(node.reason || "no reason given") ?? 0) + 1);
  const why = [...reasons].map(([reason, count]) => `${count}: ${reason}`).join("; ");
  const gpus = nodes.reduce((sum, node) => sum + node.gpus, 0);
  return `${num(nodes.length)} nodes, ${num(free)} of ${num(gpus)} GPUs free${away.length ? `, ${away.length} not available (${why})` : ""}`;
}

function drawNodes(place, cluster, status, mine) {
  const jobs = new Map(status.jobs.map((job) => [job.job_id, job]));
  const sorted = [...cluster.nodes].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  const light = (id, on) => place.querySelectorAll(`[data-job="${Number(id)}"]`).forEach((one) => one.classList.toggle("lit", on));
  const block = (kind, gpus, text, title, id) => {
    const one = h(id ? "a" : "span", { class: kind, title, tabindex: id ? -1 : null, href: id ? jobHref(id) : null, "data-job": id },
      text);
    one.style.flex = `${gpus} 1 0`;
    if (id) {
      one.addEventListener("pointerenter", () => light(id, true));
      one.addEventListener("pointerleave", () => light(id, false));
    }
    return one;
  };
  const bar = (node) => {
    const held = node.jobs.map((one) => {
      const job = jobs.get(one.job_id);
      const words = `job ${one.job_id}${job ? ` ${job.name}, ${job.user}` : ""}: ${one.gpus} of ${node.gpus} GPUs of ${node.name}`;
      const name = job ? jobName(job) : String(one.job_id);
      const fits = (one.gpus / node.gpus) * BAR_PX > name.length * DIGIT_PX;
      return block(`job${job && mine(job) ? " mine" : ""}`, one.gpus, fits ? name : "", words, one.job_id);
    });
    const taken = node.other_gpus + node.jobs.reduce((sum, one) => sum + one.gpus, 0);
    if (node.other_gpus) held.push(block("other", node.other_gpus, "", `${node.other_gpus} GPUs of other jobs`));
    for (let i = taken; i < node.gpus; i += 1) held.push(block("free", 1, "", node.up ? "free" : `not available${node.reason ? `: ${node.reason}` : ""}`));
    return held;
  };
  const free = (node) => (node.up ? Math.max(0, node.gpus - node.other_gpus - node.jobs.reduce((sum, one) => sum + one.gpus, 0)) : 0);
  const map = (nodes) => h("div", { class: "nodes", "aria-hidden": "true" }, nodes.map((node) =>
    h("div", { class: node.up ? "node" : "node down" }, h("span", { class: "name", title: `${node.name} ${node.gpu_type} ${node.reason}` }, node.name), h("span", { class: "gpus" }, bar(node)))));
  const groups = new Map();
  for (const node of sorted) groups.set(node.group, [...(groups.get(node.group) ?? []), node]);
  const wide = sorted.length > MANY_NODES; // then groups open one by one
  const opened = new Set([...place.querySelectorAll("details.group[open]")].map((one) => one.dataset.group));
  const grid = groups.size < 2 && !wide ? map(sorted) : h("div", null, [...groups].map(([name, nodes]) => {
    const words = groupWords(nodes, nodes.reduce((sum, node) => sum + free(node), 0));
    const box = h("details", { class: "group", "data-group": name, open: wide ? opened.has(name) : true },
      h("summary", null, h("strong", null, name || "no partition"), ` ${words}`));
    const draw = () => { if (box.open && box.children.length === 1) box.append(map(nodes)); };
    box.addEventListener("toggle", draw);
    draw();
    return box;
  }));
  const key = h("div", { class: "key", "aria-hidden": "true" },
    [["job", "Synergy's jobs"], ["job mine", "yours"], ["other", "other jobs"], ["free", "free"]].map(([kind, text]) => h("span", null, h("i", { class: kind }), text)));
  const open = place.querySelector(":scope > details")?.open;
  const table = behind(() => plainTable("Nodes and who holds their GPUs",
    [{ label: "Node" }, { label: "Type" }, { label: "GPUs", num: true }, { label: "Free", num: true }, { label: "State" }, { label: "Jobs (GPUs)" , wide: true }],
    sorted.map((node) => [node.name, node.gpu_type, num(node.gpus),
      num(Math.max(0, node.gpus - node.other_gpus - node.jobs.reduce((sum, one) => sum + one.gpus, 0))),
      node.up ? "up" : `not available ${node.reason}`.trim(),
      [...node.jobs.map((one) => h("a", { href: jobHref(one.job_id) }, `${one.job_id} (${one.gpus}) `)), node.other_gpus ? `others (${node.other_gpus})` : ""]])));
  if (open) return; // somebody reads it: it is drawn again once it is closed
  place.replaceChildren(key, grid, table);
}
