// What Synergy has brought this month, as the service counts it for `synergyctl usage` too, and what was predicted of it.

import { ask } from "./api.js";
import { fact, num } from "./dom.js";

const AGAIN_MS = 60000;

const signed = (value, digits) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;

export function gainReader(context) {
  let etag = "";
  let month = null; // GPU hours of this month
  let would = null; // the sums of a dry run, while nothing was gained
  let asked_ms = -AGAIN_MS;

  async function load() {
    if (performance.now() - asked_ms < AGAIN_MS) return;
    asked_ms = performance.now();
    try {
      const answer = await ask("GET", "usage", { known: etag, signal: context.signal });
      if (answer.status !== 304) {
        etag = answer.etag;
        month = answer.body;
      }
      would = null;
      if (month.total.gain === null && context.status?.dry_run) {
        const span = `from=${Math.floor(month.from_s)}&to=${Math.floor(month.to_s)}`;
        would = (await ask("GET", `would-have?${span}`, { signal: context.signal })).body.total;
      }
    } catch (error) {
      if (error.status !== 429) throw error; // the same user asks in many places: what is known stays
    }
  }

  function facts() {
    const total = month?.total;
    if (would && would.gain !== null) {
      return [fact("Gain this month, had it acted", `${signed(100 * would.gain, 1)} %`,
        `± ${(100 * would.gain_sigma).toFixed(1)}, ${signed(would.saved_h, 2)} h saved, ${num(would.sooner_h)} h waited less`)];
    }
    const known = total && total.gain !== null;
    const audited = total && total.prediction_error !== null;
    return [
      fact("Gain this month", known ? `${signed(100 * total.gain, 1)} %` : "–", known ? `± ${(100 * total.gain_sigma).toFixed(1)}, ${signed(total.saved_h, 2)} h saved` : ""),
      fact("Restarts audited", total ? `${num(total.audited)} of ${num(total.changes)}` : "–",
        audited ? `${signed(total.predicted_h, 2)} h predicted, ${signed(total.measured_h, 2)} h measured, ${total.change_h.toFixed(2)} h spent` : ""),
    ];
  }

  return { load, facts };
}
