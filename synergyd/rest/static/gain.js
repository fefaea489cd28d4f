// What Synergy has brought this month, as the service counts it for `synergyctl usage` too, and what was predicted of it.

import { ask } from "./api.js";
import { fact, num } from "./dom.js";

const AGAIN_MS = 60000;

const signed = (value, digits) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;

export function gainReader(context) {
  let etag = "";
  let total = null;
  let asked_ms = -AGAIN_MS;

  async function load() {
    if (performance.now() - asked_ms < AGAIN_MS) return;
    asked_ms = performance.now();
    try {
      const answer = await ask("GET", "usage", { known: etag, signal: context.signal });
      if (answer.status === 304) return;
      etag = answer.etag;
      total = answer.body.total;
    } catch (error) {
      if (error.status !== 429) throw error; // the same user asks in many places: what is known stays
    }
  }

  function facts() {
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
