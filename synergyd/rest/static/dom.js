// Elements and words. Everything that comes from the service becomes a text node or an attribute here, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

export const h = (tag, props, ...children) => filled(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => filled(document.createElementNS(SVG, tag), props, children);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

// 3 significant digits where there is a fraction, whole numbers in full; "–" for what is not known
export function num(x, digits = 3) {
  if (!isNumber(x)) return "–";
  if (Number.isInteger(x) || Math.abs(x) >= 10 ** digits) return Math.round(x).toLocaleString("en-US");
  return x.toLocaleString("en-US", { maximumSignificantDigits: digits, useGrouping: false });
}

export const fixed = (x, digits) => (isNumber(x) ? x.toFixed(digits) : "–");
export const times = (x) => (isNumber(x) ? `${x.toFixed(2)}×` : "–");
export const percent = (x) => (isNumber(x) ? `${Math.round(100 * x)} %` : "–");

export function span(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 60) return `${num(seconds, 2)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

const two = (n) => String(n).padStart(2, "0");

export function clock(at_s, seconds = false) {
  const d = new Date(at_s * 1000);
  return `${two(d.getHours())}:${two(d.getMinutes())}${seconds ? `:${two(d.getSeconds())}` : ""}`;
}

export function stamp(at_s) {
  const d = new Date(at_s * 1000);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${clock(at_s, true)}`;
}

// "14:20 to 16:05": the interval that holds in 8 of 10 cases, with the day where it is not today or tonight
export function expectedWords(told) {
  if (!told) return "–";
  const now_s = Date.now() / 1000;
  const words = (at_s) => (at_s - now_s < 64800 ? clock(at_s) : stamp(at_s).slice(5, 16));
  return told.high_s - now_s < 60 ? "now" : `${words(Math.max(now_s, told.low_s))} to ${words(told.high_s)}`;
}

export function planWords(plan) {
  if (!plan) return "–";
  const more = [["cp", plan.cp], ["ep", plan.ep], ["vpp", plan.vpp]].filter(([, n]) => n > 1).map(([k, n]) => ` ${k} ${n}`);
  if (plan.exchange && plan.exchange !== "exact") more.push(` ${plan.exchange}`);
  return `tp ${plan.tp} pp ${plan.pp} dp ${plan.dp}${more.join("")}`;
}

export const jobHref = (id) => `#/jobs/${Number(id)}`;
export const jobName = (job) => job.slurm_name || String(job.job_id);

// a heading with a count and what filters the list below it
export function section(title, tools, ...children) {
  const count = h("span", { class: "count" });
  return { element: h("section", null, h("div", { class: "titled" }, h("h2", null, title, count), tools), ...children), count };
}

export const fact = (name, value, more) => h("div", null, h("dt", null, name), h("dd", null, value, more ? h("small", null, ` ${more}`) : null));

export function plainTable(caption, head, rows) {
  const cell = (value, i, tag) => h(tag, { class: head[i].num ? "num" : head[i].wide ? "wide" : null, scope: tag === "th" ? "row" : null }, value);
  return h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": caption },
    h("table", null,
      h("caption", null, caption),
      h("thead", null, h("tr", null, head.map((c) => h("th", { scope: "col", class: c.num ? "num" : null }, c.label)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((value, i) => cell(value, i, i ? "td" : "th")))))));
}

// the table behind a chart: made when it is opened
export function behind(make) {
  const details = h("details", null, h("summary", null, "As a table"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(make());
  });
  return details;
}
