// The console: sign-in, the live view, routing, dialogs and keys. No page holds data of its own.

import { button, h, morphChildren, save, sortBy, time } from "./parts.js";
import * as pages from "./pages.js";
import * as provider from "./sign_in.js";

const PAGES = [["overview", "Overview"], ["queues", "Queues"], ["pools", "Pools"], ["requests", "Requests"], ["scale", "Scale"], ["tenants", "Tenants"], ["config", "Config"]];
const POINTS = 600;
const $ = (id) => document.getElementById(id);
const state = { view: null, past: [], page: "overview", signIn: null, error: null, note: "", texts: new Map(), choices: new Map(), answers: new Map(), open: null, ask: null };

// Sign-in. The token stays in this tab and is sent by hand: no other page or port can use it.

const token = () => sessionStorage.getItem("penstock-token") || "";

async function call(path, options = {}) {
  const sent = token();
  const headers = { ...(sent ? { authorization: `Bearer ${sent}` } : {}), ...(options.body ? { "content-type": "application/json" } : {}) };
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) {
    const why = await message(answer);
    // The answer to an old token says nothing of a newer one.
    if (sent === token() && !state.signIn) signIn(sent ? `Refused: ${why}` : "");
    throw new Error("sign in first");
  }
  return answer;
}

async function message(answer) {
  try {
    const body = await answer.json();
    return body.error ? body.error.message : "";
  } catch {
    return "";
  }
}

function signIn(why) {
  state.signIn = { why, provider: null, busy: false };
  sessionStorage.removeItem("penstock-token");
  if (stream) stream.abort();
  state.view = null;
  state.answers.clear();
  closeDialogs();
  link("", "signed out");
  render();
  findProvider(state.signIn);
}

/** The provider's button comes when the gateway has told of the provider. */
async function findProvider(form) {
  form.provider = await provider.provider().catch(() => null);
  render();
}

async function signInAtProvider() {
  const form = state.signIn, returnTo = { hash: location.hash, texts: [...state.texts], choices: [...state.choices] };
  try {
    // Where the provider was away a moment ago it may be back.
    form.provider = await provider.provider();
    if (form.provider) await provider.goToProvider(form.provider, returnTo);
  } catch (problem) {
    form.why = `Not signed in: ${problem.message}`;
  }
  render();
}

async function signed(value) {
  sessionStorage.setItem("penstock-token", value.trim());
  state.signIn = null;
  render();
  restart();
}

/** Takes what the provider gave, if it has just led back here, and shows the page that was open before. */
async function arriveFromProvider() {
  const answer = provider.readAnswer();
  if (!answer) return;
  state.texts = new Map(answer.returnTo.texts || []);
  state.choices = new Map(answer.returnTo.choices || []);
  state.signIn = { why: "", provider: null, busy: true };
  render();
  try {
    sessionStorage.setItem("penstock-token", await provider.tokenFor(answer));
    state.signIn = null;
  } catch (problem) {
    // A link that looks like a provider's answer signs nobody out.
    if (token()) state.signIn = null;
    else signIn(`Not signed in: ${problem.message}`);
  }
}

// The live view: one stream, read by hand since EventSource sends no credential.

let stream = null;

async function live() {
  const own = new AbortController();
  stream = own;
  for (let pause = 1; !own.signal.aborted && !state.signIn; pause = Math.min(10, pause * 2)) {
    try {
      const answer = await call("/admin/v1/live", { signal: own.signal });
      // A token without any right: another one may have some.
      if (answer.status === 403 && token()) {
        const why = await message(answer);
        return own.signal.aborted ? undefined : signIn(`Refused: ${why}`);
      }
      if (!answer.ok) throw new Error((await message(answer)) || `status ${answer.status}`);
      link("live", "live");
      pause = 0.5;
      const begun = performance.now();
      await read(answer.body.getReader());
      // The gateway ends a stream after some minutes: the next one follows at once.
      if (performance.now() - begun > 5000 && !own.signal.aborted) continue;
    } catch (problem) {
      if (own.signal.aborted || state.signIn) return;
      state.error = String(problem.message || problem);
    }
    link("lost", "reconnecting");
    render();
    await new Promise((done) => setTimeout(done, pause * 1000));
  }
}

async function read(reader) {
  const decoder = new TextDecoder();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    const last = events.reverse().find((event) => event.startsWith("event: view\n"));
    if (last) show(JSON.parse(last.slice(last.indexOf("data: ") + 6)));
  }
}

function restart() {
  if (stream) stream.abort();
  link("", "connecting");
  live();
}

function link(kind, text) {
  $("link").className = `link ${kind}`;
  if ($("link").textContent !== text) $("link").textContent = text;
}

function show(view) {
  state.view = view;
  state.error = null;
  const { pools, classes } = view.status, add = (rows, of) => rows.reduce((all, row) => all + of(row), 0);
  state.past.push({ running: add(pools, (row) => row.running), waiting: add(classes, (row) => row.waiting), oldest: Math.max(0, ...classes.map((row) => row.oldest_seconds)) });
  if (state.past.length > POINTS) state.past.shift();
  render();
}

// Answers of the other routes, asked again while a page shows them.

function need(path, seconds, version = 0) {
  let entry = state.answers.get(path);
  if (!entry) state.answers.set(path, (entry = { data: null, error: null, at: -Infinity, busy: false, version }));
  const now = performance.now();
  if (!entry.busy && (now - entry.at > seconds * 1000 || entry.version !== version)) {
    entry.busy = true;
    entry.version = version;
    ask(path, entry);
  }
  return entry;
}

async function ask(path, entry) {
  try {
    const answer = await call(path);
    if (answer.ok) [entry.data, entry.error] = [await answer.json(), null];
    else [entry.data, entry.error] = [null, (await message(answer)) || `the gateway answers ${answer.status}`];
  } catch (problem) {
    entry.error = entry.data ? null : String(problem.message || problem);
  }
  entry.busy = false;
  entry.at = performance.now();
  if (state.answers.size > 64) state.answers.delete(state.answers.keys().next().value);
  render();
}

// Pages

const context = () => ({ view: state.view, past: state.past, note: state.note, need, text: (id) => state.texts.get(id) || "", choice: (id, usual) => state.choices.get(id) || usual });

function render() {
  const main = $("page");
  $("sign-out").hidden = !token();
  $("nav").hidden = Boolean(state.signIn);
  if (state.signIn) return morphChildren(main, [signInForm()]);
  if (!state.view) return morphChildren(main, [h("section", { class: `panel ${state.error ? "error" : ""}` }, h("h1", {}, state.error ? "No live view" : "Connecting"), h("p", { class: "muted" }, state.error ? `${state.error}. The page tries again by itself. If this stays, look whether the process runs and whether this address leads to it.` : "Asking the gateway for its state."))]);
  const shown = pages[state.page](context()).flat(Infinity).filter(Boolean);
  if (state.error) shown.unshift(h("section", { class: "panel error", "data-key": "lost", role: "alert" }, h("strong", {}, "Connection lost. "), `What you see is old. ${state.error}; the page tries again by itself.`));
  morphChildren(main, shown);
  renderDrawer();
}

function signInForm() {
  const { why, provider: at, busy } = state.signIn;
  if (busy) return h("section", { class: "panel sign", "data-key": "signing-in" }, h("h1", {}, "Signing in…"), h("p", { class: "muted" }, "Asking the provider for the token."));
  return h("section", { class: "panel sign", "data-key": "sign-in", "aria-label": "Sign in" }, h("h1", {}, "Sign in"),
    at ? h("div", { class: "buttons" }, button(`Sign in with ${new URL(at.issuer).host}`, "provider", {}, { class: "main" })) : null,
    h("p", { class: "muted" }, at ? "Or take an admin token: one of " : "This gateway asks for an admin token: one of ", h("code", {}, "admin.auth.tokens"), ". The token stays in this tab and is forgotten with it."),
    h("form", { "data-form": "sign-in" }, h("label", {}, "Admin token", h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" })), why ? h("p", { role: "alert" }, why) : null, h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Sign in"))));
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const [page, id] = location.hash.replace(/^#\//, "").split("/");
  state.page = PAGES.some(([name]) => name === page) ? page : "overview";
  state.open = id ? decoded(id) : null;
  state.note = "";
  document.title = `${PAGES.find(([name]) => name === state.page)[1]} · Penstock`;
  // The links stay: a link that has the focus keeps it.
  if (!$("nav").children.length) $("nav").replaceChildren(...PAGES.map(([name, title], at) => h("a", { href: `#/${name}`, "aria-keyshortcuts": String(at + 1) }, title)));
  for (const link of $("nav").children) {
    if (link.getAttribute("href") === `#/${state.page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const current = $("nav").querySelector("[aria-current]");
  if (current.scrollIntoView) current.scrollIntoView({ block: "nearest", inline: "nearest" });
  render();
}

function renderDrawer() {
  const box = $("drawer");
  if (!state.open) {
    if (box.open) box.close();
    return;
  }
  const path = `/admin/v1/requests/${encodeURIComponent(state.open)}`, known = state.answers.get(path);
  const answer = need(path, known && known.data && known.data.end ? 3600 : 2);
  morphChildren(box, pages.drawer(context(), state.open, answer).flat(Infinity).filter(Boolean));
  if (!box.open) box.showModal();
}

// Dialogs: every change of the fleet is asked for, and says what it does.

const MEANS = {
  cordon: "It gets no new work; what runs there goes on.",
  drain: "It gets no new work, and requests that have not begun go elsewhere. What runs there goes on to its end.",
  uncordon: "It takes work again.",
  pause: "The tenant's requests wait until it is resumed; those with a deadline before that are refused.",
  resume: "Ends pause and boost of the tenant.",
};
const undo = (verb) => verb === "uncordon" || verb === "resume";

function openAsk({ of, verb, name }) {
  state.ask = { of, verb, name };
  const title = `${verb[0].toUpperCase()}${verb.slice(1)} ${of.replace(/s$/, "")} ${name}?`;
  const spans = [["10m", "10 minutes"], ["1h", "1 hour"], ["4h", "4 hours"], ["24h", "24 hours"], ["forever", "until it is undone"]];
  $("ask").replaceChildren(h("form", { "data-form": "ask" }, h("h2", { id: "ask-title" }, title), h("p", {}, MEANS[verb]),
    undo(verb) ? null : h("label", {}, "For", h("select", { id: "ask-for" }, spans.map(([value, text]) => h("option", { value, selected: value === "1h" }, text)))),
    h("label", {}, "Reason, for the log and other operators", h("input", { id: "ask-reason", maxlength: 180, autocomplete: "off", placeholder: "why" })),
    h("p", { id: "ask-said", role: "status" }),
    h("div", { class: "buttons" }, button("Cancel", "close"), h("button", { type: "submit", class: undo(verb) ? "main" : "grave" }, title.split(" ")[0]))));
  $("ask").showModal();
}

async function send(form) {
  const { of, verb, name } = state.ask, said = $("ask-said"), go = form.querySelector("[type=submit]");
  go.disabled = true;
  const reason = $("ask-reason").value.trim(), body = { name, ...(undo(verb) ? {} : { for: $("ask-for").value }), ...(reason ? { reason } : {}) };
  try {
    const answer = await call(`/admin/v1/${of}/${verb}`, { method: "POST", body: JSON.stringify(body) });
    if (!answer.ok) throw new Error((await message(answer)) || `the gateway answers ${answer.status}`);
    const done = await answer.json();
    const facts = [`${done.before} → ${done.after}`, done.ends_in_seconds ? `ends in ${time(done.ends_in_seconds)}` : "", done.requeued ? `${done.requeued} requests went elsewhere` : "", done.still_running ? `${done.still_running} still run` : "", ...(done.notes || [])];
    $("ask").replaceChildren(h("div", { class: "stack" }, h("h2", { id: "ask-title" }, "Done"), h("p", { role: "status" }, `${facts.filter(Boolean).join(". ")}.`), h("div", { class: "buttons" }, button("Close", "close", {}, { class: "main" }))));
    $("ask").querySelector("button").focus();
  } catch (problem) {
    said.textContent = `Refused: ${problem.message}`;
    go.disabled = false;
  }
}

function help() {
  const keys = [["1 – 7", "the pages, in their order"], ["/", "to the filter of the page"], ["t", "light, dark, as the system"], ["Enter", "open the focused row"], ["Esc", "close"], ["?", "this"]];
  $("ask").replaceChildren(h("div", { class: "stack" }, h("h2", { id: "ask-title" }, "Keys"), h("dl", { class: "facts" }, keys.map(([key, text]) => h("div", {}, h("dt", {}, h("code", {}, key)), h("dd", {}, text)))), h("div", { class: "buttons" }, button("Close", "close", {}, { class: "main" }))));
  $("ask").showModal();
}

function closeDialogs() {
  if ($("ask").open) $("ask").close();
  if ($("drawer").open) $("drawer").close();
}

async function reload() {
  state.note = "Reading the file…";
  render();
  try {
    const answer = await call("/admin/v1/reload", { method: "POST", body: "{}" });
    const done = await answer.json();
    state.note = done.error ? `Refused: ${done.error.message}` : { applied: `${done.changed.length} ${done.changed.length === 1 ? "key" : "keys"} changed.`, unchanged: "The file is what it was.", failed: "The file has errors; nothing changed." }[done.outcome];
  } catch (problem) {
    state.note = `Not read: ${problem.message}`;
  }
  render();
}

// Theme: as the system, unless the reader chose.

const THEMES = ["system", "light", "dark"], night = matchMedia("(prefers-color-scheme: dark)");

function theme(next) {
  const chosen = next || localStorage.getItem("penstock-theme") || "system";
  if (next) localStorage.setItem("penstock-theme", next);
  document.documentElement.dataset.theme = chosen === "dark" || (chosen === "system" && night.matches) ? "dark" : "light";
  $("theme").textContent = chosen === "system" ? "Auto" : chosen === "dark" ? "Dark" : "Light";
  $("theme").setAttribute("aria-label", `Theme: ${chosen}`);
}
const nextTheme = () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("penstock-theme") || "system") + 1) % 3]);

// Events

const ACTS = {
  theme: nextTheme, help, reload,
  "sign-out": () => signIn(""),
  provider: signInAtProvider,
  sort: ({ table, column }) => sortBy(table, column),
  save: ({ table, form }) => save(table, form),
  open: ({ id }) => (location.hash = `#/${state.page}/${encodeURIComponent(id)}`),
  ask: openAsk,
  choose: ({ choice, value }) => state.choices.set(choice, value),
  close: closeDialogs,
};

function act(target) {
  const found = target.closest("[data-act]");
  if (!found) return false;
  ACTS[found.dataset.act](found.dataset);
  render();
  return true;
}

document.addEventListener("click", (event) => act(event.target));
document.addEventListener("input", (event) => {
  const id = event.target.dataset.input;
  if (!id) return;
  state.texts.set(id, event.target.value);
  render();
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target.dataset.form === "sign-in") signed($("token").value);
  else send(event.target);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target;
  if (event.key === "Enter" && target.nodeName === "TR") act(target);
  if (["INPUT", "SELECT", "TEXTAREA"].includes(target.nodeName) || document.querySelector("dialog[open]")) return;
  if (event.key >= "1" && event.key <= "7") location.hash = `#/${PAGES[Number(event.key) - 1][0]}`;
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") help();
  else if (event.key === "/") {
    const filter = document.querySelector("main input[type=search]");
    if (filter) {
      filter.focus();
      event.preventDefault();
    }
  }
});
$("drawer").addEventListener("close", () => {
  if (state.open) location.hash = `#/${state.page}`;
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("page").focus();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !state.signIn) restart();
  else if (stream) stream.abort();
});
window.addEventListener("hashchange", route);
night.addEventListener("change", () => theme());

theme();
await arriveFromProvider();
route();
if (!document.hidden && !state.signIn) restart();
