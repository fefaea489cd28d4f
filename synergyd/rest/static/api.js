// Talks to the service. The token travels in a header alone and is kept for this tab alone.

const BASE = new URL("../v1/", document.baseURI);
const KEY = "synergy-token";
const ANSWER_MS = 40000; // above the longest long poll
const GAP_MS = 2000; // between two answers of a watch

export class Problem extends Error {
  constructor(status, told) {
    super(told.detail || told.title || `the service answered ${status}`);
    this.status = status;
    this.title = told.title || "";
    this.right = told.right || "";
  }
}

export class Away extends Error {}

export const token = () => sessionStorage.getItem(KEY) || "";

export function setToken(text) {
  const found = text.trim().replace(/^(export\s+)?SLURM_JWT=/, "");
  if (found) sessionStorage.setItem(KEY, found);
  else sessionStorage.removeItem(KEY);
}

// What the token itself says: its user and end. Only for words; the service checks it.
export function claims() {
  try {
    const part = token().split(".")[1].replace(/-/g, "+").replace(/_/g, "/");
    return JSON.parse(atob(part));
  } catch {
    return {};
  }
}

export async function ask(method, path, { body, known, match, signal } = {}) {
  const headers = { "X-SLURM-USER-TOKEN": token() };
  if (known) headers["If-None-Match"] = known;
  if (match) headers["If-Match"] = match;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const limit = AbortSignal.timeout(ANSWER_MS);
  let answer;
  let told = null;
  try {
    answer = await fetch(new URL(path, BASE), {
      method, headers, cache: "no-store", credentials: "omit", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    const text = await answer.text();
    told = text ? JSON.parse(text) : null;
  } catch (error) {
    if (signal && signal.aborted) throw error;
    throw new Away("The service does not answer.");
  }
  if (answer.status >= 500 && answer.status !== 503) throw new Away(`The service answered ${answer.status}.`);
  if (answer.status >= 400) throw new Problem(answer.status, told || {});
  return { status: answer.status, etag: answer.headers.get("ETag") || "", body: told };
}

const pause = (ms, signal) => new Promise((done) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
});

const shown = (signal) => new Promise((done) => {
  if (!document.hidden) return done();
  const look = () => { if (!document.hidden || signal.aborted) { document.removeEventListener("visibilitychange", look); done(); } };
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", look, { once: true });
  return undefined;
});

// Calls onNews with each new answer until the signal; onTrouble(error) when it fails, onTrouble(null) when it works again.
export async function watch(path, signal, onNews, onTrouble) {
  let etag = "";
  let wait_ms = GAP_MS;
  let failures = 0;
  while (!signal.aborted) {
    await shown(signal);
    try {
      const answer = await ask("GET", etag ? `${path}?wait=25` : path, { known: etag, signal });
      if (signal.aborted) return;
      if (failures) onTrouble(null);
      failures = 0;
      wait_ms = GAP_MS;
      if (answer.status !== 304) {
        etag = answer.etag;
        onNews(answer.body);
      }
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      const fleeting = error instanceof Away && failures === 1; // a connection's own end
      if (!fleeting) onTrouble(error);
      if (error instanceof Problem && error.status === 401) return; // a new token begins a new watch
      wait_ms = fleeting ? 500 : Math.min(30000, wait_ms * 1.7);
    }
    await pause(wait_ms, signal);
  }
}
