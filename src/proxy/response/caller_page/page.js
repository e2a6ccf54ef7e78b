// The caller's page: asks for a key, keeps it in memory, and shows what GET /v1/me answers.

import { badge, bar, button, clock, count, empty, h, morphChildren, muted, none, panel, percent, save, saves, sortBy, table, tile, time } from "./parts.js";
import { WHY, limitName, limitOwner } from "./words.js";

/** Seconds from an answer to the next question, and the longest pause after failures. */
const PAUSE = 5, LONGEST_PAUSE = 60;
const TIMEOUT = 15_000;
const SPANS = [["today", "Today"], ["month", "This month"]];
const $ = (id) => document.getElementById(id);
/** `key`: null = signed out; empty = no key is sent. */
const state = { key: null, form: { why: "", busy: false }, view: null, at: 0, error: null, failures: 0, span: "today", theme: "system" };

// Questions. The number of the last one: an answer to an older one changes nothing.

let timer = 0, asked = 0;

async function ask() {
  clearTimeout(timer);
  const own = ++asked;
  let answer = null, body = null;
  try {
    answer = await fetch("v1/me", { headers: state.key ? { authorization: `Bearer ${state.key}` } : {}, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT) });
    body = await answer.json().catch(() => null);
  } catch {
    // No answer: told below.
  }
  if (own !== asked) return;
  if (answer && answer.ok && body && Array.isArray(body.limits)) return show(body);
  const why = (body && body.error && body.error.message) || "";
  if (answer && (answer.status === 401 || answer.status === 403)) return signOut(`Refused (${answer.status}): ${why || "the gateway does not take this key."}`);
  fail(answer ? `The gateway answers ${answer.status}${why ? `: ${why}` : "."}` : "No answer from the gateway. Look whether you are online, and whether this address leads to it.", answer && Number(answer.headers.get("retry-after")));
}

function show(body) {
  const first = !state.view;
  Object.assign(state, { view: body, at: Date.now() / 1000, error: null, failures: 0 });
  state.form = { why: "", busy: false };
  link("live", "live");
  render();
  if (first) $("page").focus();
  later(PAUSE);
}

/** A failure that may pass. Without a view it goes to the form, which asks again when it is sent. */
function fail(why, retryAfter) {
  state.failures += 1;
  if (!state.view) return signOut(why);
  state.error = why;
  link("lost", "no answer");
  render();
  later(Math.min(LONGEST_PAUSE, Math.max(retryAfter || 0, PAUSE * 2 ** Math.min(state.failures, 4))));
}

/** Asks again after a pause, while somebody looks. */
function later(seconds) {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(ask, seconds * 1000);
}

// Sign-in. The key is in this variable of this page alone: a reload forgets it.

function signIn(text) {
  const key = text.trim();
  if (!/^[\x21-\x7e]*$/.test(key)) return signOut("A key has no spaces, and only letters, digits and signs of ASCII. Copy it again.");
  Object.assign(state, { key, failures: 0, form: { why: "", busy: true } });
  link("", "asking");
  render();
  ask();
}

function signOut(why) {
  clearTimeout(timer);
  asked += 1;
  Object.assign(state, { key: null, view: null, error: null, form: { why, busy: false } });
  link("", "signed out");
  render();
  $("key").value = "";
  $("key").focus();
}

function link(kind, text) {
  $("link").className = `link ${kind}`;
  if ($("link").textContent !== text) $("link").textContent = text;
}

// What is shown.

function render() {
  $("sign-out").hidden = !state.view;
  const fresh = state.view ? view(state.view) : [form(state.form)];
  morphChildren($("page"), fresh.flat(Infinity).filter(Boolean));
}

function form({ why, busy }) {
  return h("section", { class: "panel sign", "data-key": "sign-in", "aria-label": "Sign in" }, h("h1", {}, "Your use"),
    h("p", { class: "muted" }, "What your tenant used, what is left of its limits, what it cost, and why its requests wait. The page shows this to the key that you send requests with."),
    h("form", { "data-form": "sign-in" },
      h("label", {}, "API key or token", h("input", { id: "key", type: "password", autocomplete: "off", autocapitalize: "off", spellcheck: "false", "aria-describedby": "key-note" })),
      why ? h("p", { role: "alert" }, why) : null,
      h("p", { id: "key-note", class: "muted" }, "The key stays in the memory of this page: leaving or reloading it forgets the key. Leave the field empty if a client certificate is your credential."),
      window.isSecureContext ? null : h("p", { "data-key": "plain" }, badge("warn", "not encrypted"), " Whoever stands between you and this address can read the key, here as in every request to it."),
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "main", disabled: busy }, busy ? "Asking…" : "Show"))));
}

function view(me) {
  return [
    state.error ? h("section", { class: "panel error", "data-key": "lost", role: "alert" }, h("strong", {}, "What you see is old. "), `${state.error} The page tries again by itself.`) : null,
    h("section", { class: "panel", "data-key": "who" },
      h("div", { class: "head" }, h("h1", {}, `Tenant ${me.tenant}`), me.key ? muted("key ", h("code", {}, me.key)) : null, h("div", { class: "aside" }, muted(`as of ${clock(state.at)}`))),
      h("p", { class: "muted" }, me.classes.length > 1 ? "Latency classes: " : "Latency class: ", me.classes.map((name) => [badge("info", name), " "]))),
    h("div", { class: "tiles", "data-key": "tiles" }, tiles(me)),
    limits(me.limits),
    waiting(me.waiting),
    models(me),
  ];
}

const tokens = (row) => row.input_tokens + row.output_tokens;
const total = (rows, of) => rows.reduce((all, row) => all + of(row), 0);

function money(value) {
  return Number(value).toLocaleString("en-GB", { minimumFractionDigits: 2, maximumFractionDigits: value < 10 ? 4 : 2 });
}

function tiles({ today, month, waiting: { queues } }) {
  const used = (label, of) => tile(label, today ? of(today) : none, month ? `${of(month)} this month` : "not recorded");
  const many = total(queues, (row) => row.requests), oldest = Math.max(0, ...queues.map((row) => row.oldest_seconds));
  return [
    used("Requests today", (span) => count(span.requests)),
    used("Tokens today", (span) => count(tokens(span))),
    used("Cost today", (span) => money(span.cost)),
    tile("Waiting now", count(many), many ? `the oldest for ${time(oldest)}` : "nothing waits"),
  ];
}

/** An amount of a limit, in its unit. */
const amount = ({ unit }, value) => (unit === "gpu_seconds" ? time(value) : unit === "money" ? money(value) : count(value));

function limits(rows) {
  const part = (row) => (row.amount > 0 ? row.left / row.amount : 0);
  const level = (row) => (part(row) < 0.1 ? "out" : part(row) < 0.3 ? "held" : "good");
  return panel("Limits", { key: "limits-panel", note: "days and months by UTC", aside: rows.length ? saves("limits") : null }, rows.length ? table("limits", [
    { name: "Limit", value: (row) => limitName(row), cell: (row) => [limitName(row), muted(` ${limitOwner(row)}`), row.shadow ? [" ", badge("quiet", "shadow", "counted, not enforced")] : null] },
    { name: "Used", num: true, value: (row) => row.used, cell: (row) => amount(row, row.used) },
    { name: "Left", num: true, value: (row) => row.left, cell: (row) => [`${amount(row, row.left)} of ${amount(row, row.amount)}`, bar([[level(row), part(row)]], 1, `${percent(part(row))} left`)] },
    { name: "Whole in", num: true, value: (row) => row.whole_in_seconds, cell: (row) => time(row.whole_in_seconds), help: "Time until the whole amount is left, if nothing more is used" },
  ], rows, { key: (row) => `${row.scope} ${row.model} ${row.unit} ${row.period} ${row.shadow}`, label: "Limits" }) : empty("No limits", "Neither your tenant nor this key has any."));
}

function waiting({ queues, requests }) {
  const why = (row) => WHY[row.why] || [String(row.why).replace(/_/g, " "), ""];
  if (!queues.length) return panel("Waiting", { key: "waiting-panel" }, empty("Nothing waits", "Every request of your tenant has started or ended."));
  return [
    panel("Waiting", { key: "waiting-panel", note: "requests of the whole tenant", aside: saves("queues") }, table("queues", [
      { name: "Model", value: (row) => row.model },
      { name: "Class", value: (row) => row.class },
      { name: "Requests", num: true, value: (row) => row.requests, cell: (row) => count(row.requests) },
      { name: "Tokens", num: true, value: (row) => row.tokens, cell: (row) => count(row.tokens), help: "Prompt tokens, and output tokens that were asked for" },
      { name: "Oldest", num: true, value: (row) => row.oldest_seconds, cell: (row) => time(row.oldest_seconds) },
    ], queues, { key: (row) => `${row.class} ${row.model}`, label: "Waiting by model and class" })),
    panel("Why they wait", { key: "why-panel", note: "the oldest", aside: requests.length ? saves("requests") : null }, requests.length ? table("requests", [
      { name: "Request", value: (row) => row.request_id, cell: (row) => h("span", { class: "code" }, row.request_id) },
      { name: "Model", value: (row) => row.model },
      { name: "Class", value: (row) => row.class },
      { name: "Waits", num: true, value: (row) => row.waits_seconds, cell: (row) => time(row.waits_seconds) },
      { name: "Starts in", num: true, value: (row) => row.starts_in_seconds, cell: (row) => (row.starts_in_seconds === null ? "not known yet" : `about ${time(row.starts_in_seconds)}`), help: "Predicted from how fast requests of your tenant and class have started" },
      { name: "May wait", num: true, value: (row) => row.may_wait_seconds, cell: (row) => time(row.may_wait_seconds), help: "It is refused if it has not started by then" },
      { name: "Before it", num: true, value: (row) => row.ahead_of_it, cell: (row) => count(row.ahead_of_it), help: "Requests of yours with the same class and model" },
      { name: "Why", cls: "wide", value: (row) => why(row).join(": "), cell: (row) => [badge("warn", why(row)[0]), ` ${why(row)[1]}`] },
    ], requests, { key: (row) => row.request_id, label: "Why requests wait" }) : empty("They have just started", "What waited a moment ago runs now.")),
  ];
}

function models(me) {
  const span = me[state.span];
  const choice = h("div", { class: "tabs", role: "group", "aria-label": "Time span" }, SPANS.map(([value, text]) => button(text, "span", { value }, { class: "quiet small", "aria-pressed": String(state.span === value) })));
  if (!span) return panel("Use and cost by model", { key: "models-panel" }, empty("Not recorded", "This gateway keeps no record of use, or cannot read it at the moment. Limits above count without it."));
  const rows = span.models.length ? [...span.models, { ...span, total: true }] : span.requests ? [{ ...span, total: true }] : [];
  const name = (row) => (row.total ? "all" : row.model || "no model");
  return panel("Use and cost by model", { key: "models-panel", note: `since ${span.since.slice(0, 10)}, 00:00 UTC; about a minute old`, aside: [choice, rows.length ? saves("models") : null] }, rows.length ? table("models", [
    { name: "Model", value: name, cell: (row) => (row.total ? h("b", {}, name(row)) : name(row)) },
    { name: "Requests", num: true, value: (row) => row.requests, cell: (row) => count(row.requests) },
    { name: "Input", num: true, value: (row) => row.input_tokens, cell: (row) => [count(row.input_tokens), row.cached_tokens ? h("span", { class: "muted two" }, `${count(row.cached_tokens)} cached`) : null] },
    { name: "Output", num: true, value: (row) => row.output_tokens, cell: (row) => count(row.output_tokens) },
    { name: "Wasted tokens", num: true, value: (row) => row.wasted_tokens, cell: (row) => count(row.wasted_tokens), help: "Of attempts that gave no answer, and of answers that nobody got" },
    { name: "GPU time", num: true, value: (row) => row.gpu_seconds, cell: (row) => [time(row.gpu_seconds), bar([["used", row.gpu_seconds]], span.gpu_seconds, `${time(row.gpu_seconds)} of GPU time`)] },
    { name: "Cost", num: true, value: (row) => row.cost, cell: (row) => money(row.cost) },
  ], rows, { key: (row) => (row.total ? "total" : `model ${row.model}`), label: "Use and cost by model" }) : empty("Nothing yet", "No request of your tenant has ended in this time."));
}

// Theme: as the system, unless the reader chose. The choice lasts as long as the page.

const THEMES = ["system", "light", "dark"], night = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  document.documentElement.dataset.theme = state.theme === "dark" || (state.theme === "system" && night.matches) ? "dark" : "light";
  $("theme").textContent = state.theme === "system" ? "Auto" : state.theme === "dark" ? "Dark" : "Light";
  $("theme").setAttribute("aria-label", `Theme: ${state.theme}`);
}

function nextTheme() {
  state.theme = THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length];
  theme();
}

// Events

const ACTS = {
  theme: nextTheme,
  "sign-out": () => signOut(""),
  sort: ({ table: id, column }) => sortBy(id, column),
  save: ({ table: id, form: as }) => save(id, as),
  span: ({ value }) => (state.span = value),
};

document.addEventListener("click", (event) => {
  const found = event.target.closest("[data-act]");
  if (!found) return;
  ACTS[found.dataset.act](found.dataset);
  render();
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!state.form.busy) signIn($("key").value);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.nodeName === "INPUT") return;
  if (event.key === "t") nextTheme();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("page").focus();
});
document.addEventListener("visibilitychange", () => {
  if (!state.view) return;
  if (document.hidden) clearTimeout(timer);
  else ask();
});
// A page that comes back from the browser's memory has forgotten its key.
window.addEventListener("pagehide", () => signOut(""));
night.addEventListener("change", theme);

theme();
render();
$("key").focus();
