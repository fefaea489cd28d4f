// Which view is shown, who is signed in, and what is said when the service or the token is gone.

import { Problem, ask, claims, setToken, token, watch } from "./api.js";
import { h, setText, stamp } from "./dom.js";
import { dayView } from "./day.js";
import { daysView } from "./days.js";
import { jobView } from "./job.js";
import { nowView } from "./now.js";
import { whatIfView } from "./whatif.js";

const byId = (id) => document.getElementById(id);
const main = byId("main");
const state = byId("state");
let view = null; // what is shown
let refused = ""; // why a link has opened no session
let leave = new AbortController(); // of that view
let session = new AbortController(); // of the watch
const context = { me: null, status: null, signal: leave.signal, trouble };

function route() {
  const [, name = "", id = ""] = location.hash.split("/");
  if (name === "login") return ["now", nowView]; // until the link has opened a session
  if (name === "jobs" && /^\d{1,10}$/.test(id)) return ["job", (c) => jobView(c, Number(id))];
  if (name === "day") return ["day", dayView];
  if (name === "week") return ["day", (c) => daysView(c, 7)];
  if (name === "month") return ["day", (c) => daysView(c, 31)];
  return name === "what-if" ? ["what-if", whatIfView] : ["now", nowView];
}

function show(focus) {
  const [name, make] = route();
  leave.abort();
  leave = new AbortController();
  context.signal = leave.signal;
  view = make(context);
  main.replaceChildren(view.element);
  document.title = `${view.title} · Synergy`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (focus) {
    window.scrollTo(0, 0);
    view.element.querySelector("h1").focus({ preventScroll: true });
  }
  update();
}

async function update() {
  const shown = view;
  if (!context.status || !shown) return;
  try {
    await shown.update(context.status);
  } catch (error) {
    if (shown !== view || error.name === "AbortError") return;
    if (error.status === 404) main.replaceChildren(h("h1", { tabindex: -1 }, shown.title), h("p", { class: "empty" }, error.message));
    else trouble(error);
  }
}

// null: all is well again. What is shown stays, in any case.
function trouble(error) {
  if (error instanceof Problem && error.status === 401) {
    session.abort();
    const ended_s = claims().exp;
    const expired = ended_s && ended_s * 1000 < Date.now();
    askForToken(!token() ? "" : expired ? `Your token has expired at ${stamp(ended_s)}: paste a new one.` : `Your token is not taken: ${error.title}. Paste a new one.`);
    return;
  }
  state.className = error ? "" : "calm";
  const since = context.status?.epoch_s ? ` What is shown is of ${stamp(context.status.epoch_s)}.` : "";
  setText(state, error ? `${error.message}${error instanceof Problem ? "" : " Trying again."}${since}` : "");
}

function askForToken(why) {
  const clear = !window.isSecureContext;
  const warning = clear ? "This page came over the network in clear: a token typed here could be read on its way. Open it through https or an ssh tunnel." : "";
  byId("token").disabled = clear;
  setText(byId("signin-why"), [why || refused, warning].filter(Boolean).join(" "));
  byId("signin").hidden = false;
  main.hidden = !context.status;
  if (!main.contains(document.activeElement)) byId("token").focus();
}

async function begin() {
  session.abort();
  session = new AbortController();
  const { signal } = session;
  if (!token()) return askForToken("");
  setText(state, "");
  for (let wait_ms = 1000; !context.me || context.me.token !== token(); wait_ms = Math.min(30000, 2 * wait_ms)) {
    try {
      context.me = { ...(await ask("GET", "me", { signal })).body, token: token() };
    } catch (error) {
      if (signal.aborted) return undefined;
      trouble(error);
      if (error.status === 401) return undefined;
      await new Promise((done) => setTimeout(done, wait_ms));
    }
  }
  trouble(null);
  refused = "";
  byId("signin").hidden = true;
  main.hidden = false;
  const out = h("button", { type: "button", class: "link", onclick: signOut }, "Sign out");
  byId("who").replaceChildren(context.me.user, out);
  return watch("status", signal, (status) => {
    context.status = status;
    const since = status.stale_since_s;
    state.className = since ? "" : "calm";
    setText(state, since ? `Stale: the service can't read its database since ${stamp(since)}; all that is shown is of then.` : "");
    update();
  }, trouble);
}

function signOut() {
  setToken("");
  context.me = context.status = null;
  byId("who").replaceChildren();
  show(false);
  begin();
}

byId("signin-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value);
  byId("token").value = "";
  begin();
});
byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = byId("find-job").value.trim();
  if (/^\d{1,10}$/.test(id)) location.hash = `#/jobs/${id}`;
});
window.addEventListener("hashchange", async () => {
  if (location.hash.startsWith("#/login/")) {
    await openLink();
    begin();
  }
  if (location.hash !== "#main") show(true);
});
let resizing = 0;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => view?.resized?.(), 150);
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
// A link of `synergyctl page`: its secret is exchanged for a session, and leaves the address at once.
async function openLink() {
  const [, name, link] = location.hash.split("/");
  if (name !== "login" || !link) return;
  history.replaceState(null, "", "#/");
  session.abort();
  setToken("");
  try {
    const answer = await ask("POST", "session", { body: { link } });
    setToken(answer.body.token);
  } catch (error) {
    refused = error.message;
  }
}

openLink().then(() => {
  show(false);
  begin();
});
