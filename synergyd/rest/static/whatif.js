// What if: another policy or setting on the recorded queue, in the background, against how it is now.

import { ask } from "./api.js";
import { fixed, h, num, percent, plainTable, setText, span } from "./dom.js";

export const POLICIES = ["synergy", "exact", "fifo", "first-fit", "backfill", "srtf", "srsf", "tiresias", "optimus", "pollux", "sia", "crius", "dally"];
const POLL_MS = 1000;

export function whatIfView(context) {
  const policy = h("select", { id: "policy", "aria-describedby": "about-policy" }, POLICIES.map((name) => h("option", { value: name }, name)));
  let inputs = []; // [setting, its field], once the present values are known
  const begin = h("button", { class: "first" }, "Run");
  const end = h("button", { type: "button", hidden: true, onclick: () => act("DELETE") }, "Stop");
  const said = h("p", { class: "said", role: "status" });
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Simulated so far", hidden: true });
  const result = h("div");
  const buttons = h("div", { class: "row" }, begin, end, bar);
  const form = h("form", { class: "grid wide", onsubmit: start }, buttons);
  const element = h("div", null, h("h1", { tabindex: -1 }, "What if"),
    h("p", { class: "note" }, "Replays the queue that the daemon has recorded, twice: with the present settings, which the fields show, and with what you change. Nothing real is touched. It runs on the service's host, one run a user, for ten minutes at most."),
    form, said, result);
  let timer = 0;
  let state = "";

  const trouble = (error) => {
    if (context.signal.aborted) return;
    if (error.status === 401) context.trouble(error);
    said.className = "said warn";
    setText(said, error.message);
  };

  // each field has the present value and says what it is about
  function fill([first, ...settings]) {
    const field = (id, { key, text, takes }, input) => h("div", null, h("label", { for: id }, key), input,
      h("p", { class: "note", id: `about-${id}` }, `${text} ${input === policy ? "" : `It takes ${takes}.`}`));
    policy.value = first.value;
    policy.dataset.now = first.value;
    inputs = settings.map((one) => [one, h("input", { id: `set-${one.key}`, autocomplete: "off", value: one.value, "aria-describedby": `about-set-${one.key}` })]);
    form.replaceChildren(field("policy", first, policy), ...inputs.map(([one, input]) => field(`set-${one.key}`, one, input)), buttons);
  }

  function start(event) {
    event.preventDefault();
    const changed = inputs.filter(([one, input]) => input.value.trim() && input.value.trim() !== one.value);
    const settings = Object.fromEntries(changed.map(([one, input]) => [one.key, input.value.trim()]));
    const chosen = policy.value === policy.dataset.now ? "" : policy.value;
    if (!chosen && !changed.length) {
      said.className = "said warn";
      return setText(said, "Choose a policy or change a setting.");
    }
    return act("POST", { policy: chosen, settings });
  }

  async function act(method, body) {
    try {
      show((await ask(method, "what-if", { body, signal: context.signal })).body);
    } catch (error) {
      trouble(error);
    }
  }

  function show(run) {
    if (run.now.length && !inputs.length) fill(run.now);
    const runs = run.state === "running" || run.state === "waiting";
    begin.disabled = runs;
    end.hidden = bar.hidden = !runs;
    bar.value = run.share;
    said.className = run.state === "failed" ? "said warn" : "said";
    const asked = [run.policy, ...run.settings].filter(Boolean).join(", ");
    const words = { none: "", waiting: `Waits for the runs of others: ${asked}.`, running: `Running: ${asked}.`, done: `Done: ${asked}. ${run.left_out}`, failed: `${asked}: ${run.problem}`, stopped: `Stopped: ${asked}.` };
    setText(said, words[run.state]); // said once a state, not at each step of the bar
    if (run.state !== state) result.replaceChildren(...(run.figures.length ? [compared(run.figures)] : []));
    state = run.state;
    clearTimeout(timer);
    if (runs && !context.signal.aborted) timer = setTimeout(() => act("GET"), POLL_MS);
  }

  let loaded = false;
  async function load() {
    if (loaded) return;
    loaded = true;
    await act("GET");
  }

  return { element, title: "What if", update: load };
}

const ROWS = [
  ["Average job completion time", "avg_jct_s", span], ["Median", "median_jct_s", span], ["99th percentile", "p99_jct_s", span],
  ["Makespan", "makespan_s", span], ["Time to the first start, average", "avg_queueing_s", span], ["Restarts a job", "restarts_per_job", (v) => fixed(v, 2)],
  ["GPU hours", "gpu_hours", num], ["Useful GPU time", "efficiency", percent], ["Worst finish-time fairness", "worst_ftf", num],
];

function compared([now, then]) {
  const change = (key) => (now[key] ? `${then[key] >= now[key] ? "+" : "−"}${Math.abs((100 * (then[key] - now[key])) / now[key]).toFixed(1)} %` : "–");
  return plainTable(`${num(now.jobs)} recorded jobs, in simulated time`, [{ label: "" }, { label: now.label, num: true }, { label: then.label, num: true }, { label: "Change", num: true }],
    ROWS.map(([label, key, format]) => [label, format(now[key]), format(then[key]), change(key)]));
}
