// Pause, resume and bounds of one job. Two who steer one job: the later one is told, and saves again if they still want to.

import { ask } from "./api.js";
import { h, setText } from "./dom.js";

const FIELDS = [["min_gpus", "At least (GPUs)"], ["max_gpus", "At most (GPUs)"], ["weight", "Weight"]];

export function steerForm(job_id, context, changed) {
  const path = `jobs/${job_id}/steering`;
  const inputs = new Map();
  const said = h("p", { class: "said", role: "status" });
  let etag = "";
  let present = {};
  let paused = false;

  const say = (text, warn = false) => {
    said.className = warn ? "said warn" : "said";
    setText(said, text);
  };
  const trouble = (error) => (error.status === 401 ? context.trouble(error) : say(error.message, true));
  const words = (of) => FIELDS.filter(([key]) => of[key] !== null).map(([key]) => `${key}=${of[key]}`).join(" ") || "as in its script";

  async function read(fill) {
    const answer = await ask("GET", path, { signal: context.signal });
    etag = answer.etag;
    present = answer.body;
    if (fill) for (const [key, input] of inputs) input.value = present[key] ?? "";
  }

  async function save(event) {
    event.preventDefault();
    const wanted = {};
    for (const [key, input] of inputs) {
      const value = input.value.trim();
      if (value && !(Number(value) > 0)) return say(`${key}: ${value} is no number above 0`, true);
      wanted[key] = value ? Number(value) : null;
    }
    try {
      const answer = await ask("PUT", path, { body: wanted, match: etag, signal: context.signal });
      etag = answer.etag;
      present = answer.body;
      say(`Set: ${words(present)}. It counts from the next epoch on.`);
      changed();
    } catch (error) {
      if (error.status !== 412) return trouble(error);
      await read(false).catch(trouble);
      say(`Somebody else has changed it since, to: ${words(present)}. Save again to replace that.`, true);
    }
    return undefined;
  }

  async function toggle() {
    try {
      const answer = await ask("POST", `jobs/${job_id}/${paused ? "resume" : "pause"}`, { body: {}, signal: context.signal });
      show(answer.body.paused);
      say(paused ? "Paused: it keeps its size." : "Resumed: Synergy may resize it.");
      changed();
    } catch (error) {
      trouble(error);
    }
  }

  const button = h("button", { type: "button", onclick: toggle }, "Pause");
  function show(now) {
    paused = now;
    setText(button, paused ? "Resume resizing" : "Pause resizing");
  }

  const fields = FIELDS.map(([key, label]) => {
    const input = h("input", { id: `steer-${key}`, inputmode: "decimal", autocomplete: "off", placeholder: "as in its script" });
    inputs.set(key, input);
    return h("div", null, h("label", { for: `steer-${key}` }, label), h("br"), input);
  });
  const form = h("form", { class: "row steer", onsubmit: save }, fields, h("button", null, "Save"), button);
  const element = h("section", { "aria-label": "Steer the job" }, h("h2", null, "Steer"), form, said);
  show(false);
  return { element, show, load: () => read(true).catch((error) => (error.status === 404 ? say("It has left the queue.") : trouble(error))) };
}
