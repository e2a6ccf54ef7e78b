// The pages. Each takes what is known and returns elements; nothing here asks the gateway itself
// except through `ctx.need`, which remembers answers.

import { h, badge, bar, button, chart, clock, count, empty, exact, format, moment, muted, names, none, panel, percent, saves, short, spark, table, tile, time } from "./parts.js";
import { BLOCKED, CHOICE, HELD, POOL, REASON, REPLICA, TURN, WHY_NOT, findings, verdict } from "./words.js";

const sum = (rows, of) => rows.reduce((all, row) => all + of(row), 0);
const word = (row) => `${row.kind.replace("_", " ")}${row.by ? ` ×${row.by}` : ""}`;
const ends = (row) => (row.ends_in_seconds === null ? "no end" : `${time(row.ends_in_seconds)} left`);
const contains = (filter, ...texts) => filter.toLowerCase().split(/\s+/).every((part) => texts.join(" ").toLowerCase().includes(part));

function filterBox(ctx, id, placeholder) {
  return h("input", { id, type: "search", "data-input": id, placeholder, "aria-label": placeholder, value: ctx.text(id), autocomplete: "off", spellcheck: "false" });
}

/** What to show in place of data that is not there. */
function pending(answer, what) {
  if (answer.error) return empty(`${what} cannot be shown`, answer.error);
  return empty("Loading", `Asking the gateway for ${what.toLowerCase()}.`);
}

// Overview

export function overview(ctx) {
  const { view } = ctx, { status } = view;
  const list = findings(view, format), said = verdict(view, list, format);
  const waiting = sum(status.classes, (row) => row.waiting), running = sum(status.pools, (row) => row.running), limit = sum(status.pools, (row) => row.limit);
  const up = sum(status.pools, (row) => row.in_service), all = sum(status.pools, (row) => row.replicas);
  const oldest = Math.max(0, ...status.classes.map((row) => row.oldest_seconds)), lanes = view.shares.filter((row) => row.waiting).length;
  return [
    h("section", { class: `panel verdict ${said.level}`, "data-key": "verdict", "aria-label": "Verdict" }, badge(said.level, { good: "good", warn: "look", bad: "act" }[said.level]), h("h1", {}, said.title), h("p", {}, `${said.text}. Up for ${time(status.uptime_seconds)}, version ${status.version}.`)),
    h("div", { class: "tiles", "data-key": "tiles" },
      tile("Running", count(running), `of ${count(limit)} places`, spark(ctx.past.map((row) => row.running), "Running since the page was opened")),
      tile("Waiting", count(waiting), waiting ? `in ${lanes} ${lanes === 1 ? "queue" : "queues"}` : "nobody", spark(ctx.past.map((row) => row.waiting), "Waiting since the page was opened")),
      tile("Oldest", waiting ? time(oldest) : none, "longest wait now", spark(ctx.past.map((row) => row.oldest), "Longest wait since the page was opened")),
      tile("Replicas", `${up} / ${all}`, "in service", null)),
    list.length ? panel("What to do", { note: `${list.length}` }, h("ul", { class: "findings" }, list.map((row) => h("li", { "data-key": row.title }, badge(row.level, { bad: "act", warn: "look", info: "note" }[row.level]), h("div", {}, h("strong", {}, row.title), h("p", {}, row.text, row.command ? [" ", h("code", {}, row.command)] : null)), row.where ? h("a", { class: "go", href: row.where }, "Show") : null)))) : null,
    h("div", { class: "grid2", "data-key": "classes-pools" },
      panel("Classes", { aside: saves("classes") }, table("classes", [
        { name: "Class", value: (row) => row.class },
        { name: "Waiting", num: true, value: (row) => row.waiting, cell: (row) => count(row.waiting) },
        { name: "Oldest", num: true, value: (row) => row.oldest_seconds, cell: (row) => (row.waiting ? time(row.oldest_seconds) : none) },
        { name: "First token promised in", num: true, value: (row) => row.ttft_objective_seconds, cell: (row) => time(row.ttft_objective_seconds) },
        { name: "", cell: (row) => (!row.waiting ? muted("idle") : row.oldest_seconds > row.ttft_objective_seconds ? badge("warn", "late") : badge("good", "in time")) },
      ], status.classes, { key: (row) => row.class, label: "Classes" })),
      panel("Pools", { aside: saves("overview-pools") }, table("overview-pools", [
        { name: "Pool", value: (row) => row.pool },
        { name: "State", value: poolState, cell: (row) => stateBadge(row) },
        { name: "Replicas", num: true, value: (row) => row.in_service, cell: (row) => `${row.in_service} / ${row.replicas}` },
        { name: "Running", num: true, value: (row) => row.running, cell: (row) => [`${count(row.running)} / ${count(row.limit)}`, bar([["used", row.running]], row.limit, `${row.running} of ${row.limit} places taken`)] },
        { name: "Needed", num: true, value: (row) => row.desired, cell: (row) => [String(row.desired ?? "?"), h("span", { class: "muted two", title: REASON[row.desired_reason] }, row.desired_reason || "")] },
      ], status.pools, { key: (row) => row.pool, label: "Pools" }))),
  ];
}

const poolState = (row) => (row.closed === "none" ? row.state : row.closed);
function stateBadge(row) {
  if (row.closed !== "none") return badge("warn", row.closed, "set by an operator");
  const [level, title] = POOL[row.state] || ["quiet", ""];
  return badge(level, row.state, title);
}

// Queues

export function queues(ctx) {
  const { shares, status } = ctx.view, filter = ctx.text("queue-filter");
  const rows = shares.filter((row) => contains(filter, row.tenant, row.class, row.model, row.blocked_by || ""));
  const models = new Set(shares.map((row) => row.model)).size;
  const tenants = [...new Map(shares.map((row) => [row.tenant, { ...row, waiting: sum(shares.filter((other) => other.tenant === row.tenant), (other) => other.waiting), running: sum(shares.filter((other) => other.tenant === row.tenant), (other) => other.running) }])).values()];
  const most = Math.max(...shares.map((row) => Math.max(row.share, row.used)), 0.01);
  return [
    panel("Who contends", { note: "share by weight against use of the replicas that they want, now", aside: saves("contend") },
      tenants.length ? table("contend", [
        { name: "Tenant", value: (row) => row.tenant },
        { name: "Weight", num: true, value: (row) => (status.tenants.find((tenant) => tenant.tenant === row.tenant) || {}).weight },
        { name: "Waiting", num: true, value: (row) => row.waiting, cell: (row) => count(row.waiting) },
        { name: "Running", num: true, value: (row) => row.running, cell: (row) => count(row.running) },
        { name: "Share", num: true, value: (row) => row.share, cell: (row) => percent(row.share), help: "By weight, among tenants with requests" },
        { name: "Used", num: true, value: (row) => row.used, cell: (row) => percent(row.used) },
        { name: "Use against share", cell: (row) => bar([[row.used > row.share + 0.02 ? "over" : "used", row.used]], most * 1.05, `uses ${percent(row.used)} of a share of ${percent(row.share)}`, row.share) },
        { name: "Borrowed", num: true, value: (row) => row.borrowed, cell: (row) => (row.borrowed === null ? muted("no quota") : row.borrowed ? count(row.borrowed) : "0") },
      ], tenants, { key: (row) => row.tenant, label: "Tenants that contend" }) : empty("Nothing runs and nothing waits", "As soon as a request comes, its tenant stands here with its share and its use."),
      h("div", { class: "legend" }, h("span", { class: "used" }, "used"), h("span", { class: "over" }, "used beyond the share: others leave it free"), h("span", {}, "the mark is the share"))),
    panel("Queues", { note: "tenant × class", aside: [filterBox(ctx, "queue-filter", "Filter by tenant, class, cause"), saves("queues")] },
      rows.length ? table("queues", [
        { name: "Tenant", value: (row) => row.tenant, cell: (row) => [row.tenant, h("span", { class: "narrow" }, ` · ${row.class}`)] },
        { name: "Class", cls: "broad", value: (row) => row.class },
        { name: "Model", value: (row) => row.model, hide: models < 2 },
        { name: "Waiting", num: true, value: (row) => row.waiting, cell: (row) => count(row.waiting) },
        { name: "Oldest", num: true, value: (row) => row.oldest_seconds, cell: (row) => (row.waiting ? time(row.oldest_seconds) : none) },
        { name: "Predicted wait", num: true, value: (row) => row.predicted_wait_seconds, cell: (row) => (row.waiting ? time(row.predicted_wait_seconds) : none), help: "Of a request that comes now, by the rate at which this queue drains" },
        { name: "Running", num: true, value: (row) => row.running, cell: (row) => count(row.running) },
        { name: "Borrowed", num: true, value: (row) => row.borrowed, cell: (row) => count(row.borrowed) },
        { name: "Blocked by", value: (row) => row.blocked_by, cell: (row) => (row.blocked_by ? h("span", { title: (BLOCKED[row.blocked_by] || [])[1] }, badge(row.blocked_by === "not_its_turn" ? "info" : "warn", (BLOCKED[row.blocked_by] || [row.blocked_by])[0])) : none) },
        { name: "Contends with", value: (row) => row.contends_with, cell: (row) => (row.contends_with.length ? row.contends_with.join(", ") : muted("nobody")) },
      ], rows, { key: (row) => `${row.tenant}/${row.class}/${row.model}`, label: "Queues" }) : shares.length ? empty("No queue fits the filter", "Clear the filter to see all.") : empty("No queue has requests", "All that came has been served."),
      causes(rows)),
  ];
}

function causes(rows) {
  const found = [...new Set(rows.map((row) => row.blocked_by).filter(Boolean))];
  return found.length ? h("div", { class: "legend" }, found.map((name) => h("span", { class: name === "not_its_turn" ? "used" : "held" }, h("b", {}, (BLOCKED[name] || [name])[0]), `: ${(BLOCKED[name] || ["", ""])[1]}`))) : null;
}

// Pools and replicas

export function pools(ctx) {
  const { status } = ctx.view, demand = ctx.need("/admin/v1/demand", 30);
  const learned = new Map(((demand.data || {}).pools || []).map((row) => [row.name, row]));
  return [
    ...status.pools.map((pool) => poolPanel(ctx, pool, status, learned.get(pool.pool))),
    status.pools.length ? null : panel("Pools", {}, empty("No pools", "The configuration file names none. Add a pool with a replica's address, and it appears here.")),
    h("div", { class: "legend", "data-key": "legend" }, h("span", { class: "used" }, "running"), h("span", {}, "free"), h("span", { class: "held" }, "withheld: below the limit, not to be taken now"), h("span", { class: "over" }, "above the limit that the promise allows"), h("span", { class: "out" }, "out of service")),
  ];
}

function poolPanel(ctx, pool, status, learned) {
  const rows = status.replicas.filter((row) => row.pool === pool.pool);
  const broken = status.unkept_promises.filter((row) => row.pool === pool.pool);
  const closed = pool.closed !== "none";
  const set = status.overrides.filter((row) => row.of === "pool" && row.name === pool.pool);
  const kept = broken.length ? broken.map((row) => `${row.class}: ${row.objective} in ${time(row.promised_seconds)}, best ${time(row.best_seconds)}`).join("; ") : pool.best.first_tokens ? "every class's objective has been reached" : "no request yet";
  const why = pool.desired_reason ? `${REASON[pool.desired_reason] || pool.desired_reason}` : "no signal yet";
  return panel(pool.pool, {
    key: `pool-${pool.pool}`, note: pool.models.join(", "),
    aside: [set.map((row) => muted(`${word(row)}, ${ends(row)}${row.reason ? `: ${row.reason}` : ""}`)), stateBadge(pool), closed ? button("Uncordon", "ask", { of: "pools", verb: "uncordon", name: pool.pool }) : [button("Cordon", "ask", { of: "pools", verb: "cordon", name: pool.pool }), button("Drain", "ask", { of: "pools", verb: "drain", name: pool.pool })], saves(`replicas-${pool.pool}`)],
  },
    h("dl", { class: "facts wide" },
      fact("Replicas", `${pool.in_service} of ${pool.replicas} in service${pool.asleep ? `, ${pool.asleep} asleep` : ""}`),
      fact("Running", `${count(pool.running)} of ${count(pool.limit)} places, ${count(pool.waiting)} wait`),
      fact("Needed", `${pool.desired ?? "?"}: ${why}`),
      fact("Promise kept", kept, broken.length ? "warn" : null),
      fact("Best seen", `first token ${time(pool.best.ttft_seconds)}, between tokens ${time(pool.best.itl_seconds)}`),
      fact("Learned", learned ? `reads ${count(learned.read_per_second)} tokens/s, ${time(learned.gap)} between tokens, ${count(learned.max_seqs)} sequences${learned.kv_tokens ? `, ${count(learned.kv_tokens)} KV tokens` : ""} a replica` : none),
      pool.cold_start_seconds === null ? null : fact("Cold start", time(pool.cold_start_seconds)),
      pool.source ? fact("Source", `${pool.source.kind}, ${count(pool.source.endpoints)} endpoints, ${time(pool.source.age_seconds)} ago${pool.source.problem ? `: ${pool.source.problem}` : ""}`, pool.source.problem ? "warn" : null) : null),
    rows.length ? table(`replicas-${pool.pool}`, [
      { name: "Replica", value: (row) => row.replica, cell: (row) => h("span", { title: row.replica }, short(row.replica.replace(`${pool.pool}/`, ""))) },
      { name: "State", value: (row) => row.state, cell: (row) => badge((REPLICA[row.state] || ["quiet"])[0], row.state.replace("_", " "), (REPLICA[row.state] || [])[1]) },
      { name: "Places", num: true, value: (row) => row.running, cell: (row) => [`${count(row.running)} / ${count(row.limit)}`, slots(row)] },
      { name: "Why not more", value: (row) => row.held_back_by, cell: (row) => whyNot(row) },
      { name: "First token of 1,000", num: true, value: (row) => row.expected_ttft_seconds, cell: (row) => time(row.expected_ttft_seconds), help: "Predicted for a prompt of 1,000 tokens sent now" },
      { name: "Speed", num: true, value: (row) => row.speed, cell: (row) => (row.speed === null ? none : row.speed.toFixed(2)), help: "Learned, relative to a usual H100; nothing until the replica has answered" },
      { name: "KV cache", num: true, value: (row) => row.engine && row.engine.kv_usage, cell: (row) => (row.engine ? percent(row.engine.kv_usage) : none) },
      { name: "Engine", value: (row) => row.engine && row.engine.problem, cell: (row) => engine(row) },
      { name: "", cell: (row) => replicaButtons(row, closed) },
    ], rows, { key: (row) => row.replica, label: `Replicas of ${pool.pool}` }) : empty("No replicas", pool.source ? "Its source lists none at the moment." : "The file lists none. Add `replicas` or `discover` to the pool."));
}

const fact = (name, value, level) => h("div", {}, h("dt", {}, name), h("dd", {}, level ? badge(level, level === "warn" ? "no" : "") : null, level ? " " : null, value));

function slots(row) {
  const { running, free, withheld, above_limit, out_of_service } = row.slots, all = running + free + withheld + above_limit + out_of_service;
  return bar([["used", running], ["free", free], ["held", withheld], ["over", above_limit], ["out", out_of_service]], all, `${running} running, ${free} free, ${withheld} withheld, ${above_limit} above the limit, ${out_of_service} out of service`);
}

function whyNot(row) {
  if (row.state !== "serving" && row.state !== "slow_start" && row.state !== "busy") return (REPLICA[row.state] || ["", none])[1];
  const own = row.held_back_by, guests = row.guests_held_back_by;
  if (!own && !guests) return "takes more";
  return [own ? HELD[own] || own : "takes urgent work", guests && guests !== own ? h("span", { class: "muted two" }, `less urgent: ${HELD[guests] || guests}`) : null];
}

function engine(row) {
  if (!row.engine) return muted("not scraped");
  if (row.engine.problem) return badge("warn", "no metrics", row.engine.problem);
  const own = row.engine.running === null ? "" : `${count(row.engine.running)} run, ${count(row.engine.waiting)} wait`;
  return h("span", { class: "muted nowrap" }, own || "answers", h("span", { class: "two" }, `${time(row.engine.age_seconds)} ago`));
}

function replicaButtons(row, poolClosed) {
  const data = { of: "replicas", name: row.replica };
  if (row.state === "removed") return null;
  if (row.state === "cordoned" || row.state === "draining") return poolClosed ? muted("by the pool") : button("Uncordon", "ask", { ...data, verb: "uncordon" }, { class: "small" });
  return h("span", { class: "nowrap" }, button("Cordon", "ask", { ...data, verb: "cordon" }, { class: "small", "aria-label": `Cordon ${row.replica}` }), " ", button("Drain", "ask", { ...data, verb: "drain" }, { class: "small", "aria-label": `Drain ${row.replica}` }));
}

// Requests

const STATES = [["", "All"], ["waiting", "Waiting"], ["running", "Running"], ["finished", "Finished"]];

function select(ctx, id, name, values) {
  return h("select", { id, "data-input": id, "aria-label": name }, ["", ...values].map((value) => h("option", { value, selected: ctx.text(id) === value }, value || `all ${name}`)));
}

export function requests(ctx) {
  const { status, shares } = ctx.view, state = ctx.choice("request-state", ""), many = ctx.choice("request-limit", "100") === "1000", filter = ctx.text("request-filter").trim();
  const query = new URLSearchParams({ limit: many ? 1000 : 100, ...(state ? { state } : {}) });
  for (const name of ["tenant", "class", "pool"]) if (ctx.text(`request-${name}`)) query.set(name, ctx.text(`request-${name}`));
  const answer = ctx.need(`/admin/v1/requests?${query}`, many ? 10 : 2);
  const models = new Set(shares.map((row) => row.model)).size > 1;
  const all = answer.data ? answer.data.requests : [], matched = answer.data ? answer.data.matched : {};
  const rows = all.filter((row) => contains(filter, row.request_id, row.tenant, row.class, row.model, row.replica || "", row.end ? `${row.end.outcome} ${row.end.reason || ""}` : row.state, row.waits ? row.waits.obstacle : ""));
  const total = (matched.waiting || 0) + (matched.running || 0) + (matched.finished || 0);
  return [panel("Requests", {
    key: "requests", note: answer.data ? `${count(matched.waiting)} wait, ${count(matched.running)} run, ${count(matched.finished)} of the past are remembered` : "",
    aside: saves("requests"),
  },
    h("div", { class: "filters" }, h("div", { class: "tabs", role: "group", "aria-label": "State" }, STATES.map(([value, text]) => button(text, "choose", { choice: "request-state", value }, { class: "quiet small", "aria-pressed": String(state === value) }))),
      filterBox(ctx, "request-filter", "Filter by id, tenant, replica, outcome"), select(ctx, "request-tenant", "tenants", status.tenants.map((row) => row.tenant)), select(ctx, "request-class", "classes", status.classes.map((row) => row.class)), select(ctx, "request-pool", "pools", status.pools.map((row) => row.pool)),
      button(many ? "Show 100" : "Show 1,000", "choose", { choice: "request-limit", value: many ? "100" : "1000" }, { class: "small", title: many ? "" : "Asked again every 10 s instead of every 2 s" })),
    !answer.data ? pending(answer, "The requests") : rows.length ? table("requests", [
      { name: "Request", value: (row) => row.request_id, cell: (row) => h("span", { class: "code" }, row.request_id) },
      { name: "State", value: (row) => (row.end ? row.end.outcome : row.state), cell: (row) => outcome(row) },
      { name: "Tenant", value: (row) => row.tenant },
      { name: "Class", value: (row) => row.class },
      { name: "Model", value: (row) => row.model, hide: !models },
      { name: "Came", value: (row) => row.came_at_unix, cell: (row) => clock(row.came_at_unix) },
      { name: "For", num: true, value: (row) => (row.end ? row.end.total_seconds : row.state_seconds), cell: (row) => time(row.end ? row.end.total_seconds : row.state_seconds), help: "In its state; of finished ones, in all" },
      { name: "Prompt", num: true, value: (row) => row.prompt_tokens, cell: (row) => count(row.prompt_tokens) },
      { name: "Output", num: true, value: (row) => row.output_tokens, cell: (row) => count(row.output_tokens) },
      { name: "First token", num: true, value: (row) => row.ttft_seconds, cell: (row) => time(row.ttft_seconds) },
      { name: "Where", value: (row) => row.replica || (row.waits ? row.waits.obstacle : null), cell: (row) => where(row) },
    ], rows, { key: (row) => row.request_id, open: (row) => row.request_id, label: "Requests", most: 1000 }) : total || filter ? empty("No request fits", filter ? [`Nothing of the ${count(all.length)} rows here has “${filter}”. `, button("Open it by its id", "open", { id: filter }, { class: "small" })] : "Choose another state or tenant.") : empty("No requests yet", "As soon as one comes, it stands here; finished ones stay for a while."),
    total > all.length && all.length ? h("p", { class: "muted" }, `${count(all.length)} of ${count(total)} are shown.`) : null)];
}

function outcome(row) {
  if (!row.end) return badge(row.state === "waiting" ? "warn" : "info", row.state);
  return badge(row.end.outcome === "success" ? "good" : row.end.status >= 500 ? "bad" : "quiet", row.end.reason || row.end.outcome, `status ${row.end.status}`);
}

function where(row) {
  if (!row.waits) return row.replica ? [short(row.replica), row.attempts > 1 ? muted(` attempt ${row.attempts}`) : null] : none;
  const [name, why] = BLOCKED[row.waits.obstacle] || [row.waits.obstacle, ""];
  return h("span", { title: why }, name, h("span", { class: "muted two" }, row.waits.starts_in_seconds === null ? "start not known" : `starts in about ${time(row.waits.starts_in_seconds)}`));
}

// Scale

const KIND = { idle: "free", sustained: "steady", hold: "keep", hold_restart: "keep", floor: "keep", clamp: "out" };

export function scale(ctx) {
  const past = ctx.need("/admin/v1/scale", 5), demand = ctx.need("/admin/v1/demand", 30);
  if (!past.data) return [panel("Scale", {}, pending(past, "The scale signal"))];
  const seen = new Map(((demand.data || {}).rows || []).filter((row) => row.kind === "pool").map((row) => [row.name, row.seen]));
  const asked = past.data.asked;
  return [
    ...ctx.view.status.pools.map((pool) => scalePanel(pool, past.data.pools[pool.pool] || [], seen.get(pool.pool))),
    panel("What KEDA asked", { note: "last question of each ScaledObject, over gRPC, since the start", aside: saves("asked") },
      asked.length ? table("asked", [
        { name: "ScaledObject", value: (row) => row.scaled_object },
        { name: "Pool", value: (row) => row.pool },
        { name: "Answer", num: true, value: (row) => row.value },
        { name: "Active", value: (row) => (row.active ? "yes" : "no") },
        { name: "Reason", value: (row) => row.reason, cell: (row) => h("span", { title: REASON[row.reason] }, row.reason) },
        { name: "Asked", value: (row) => row.at_unix, cell: (row) => clock(row.at_unix) },
        { name: "Times", num: true, value: (row) => row.times, cell: (row) => count(row.times) },
      ], asked, { key: (row) => `${row.scaled_object} ${row.pool}`, label: "What KEDA asked" })
        : empty("No scaler has asked", "KEDA asks over gRPC at ", h("code", {}, "scale.listen"), ". ", h("code", {}, `penstock keda ${ctx.view.status.pools[0] ? ctx.view.status.pools[0].pool : "POOL"}`), " writes the ScaledObject; the numbers above are what it would be told.")),
  ];
}

/** Samples with the same kind of reason in a row, as parts of a bar. */
function runs(samples) {
  const parts = [];
  for (const { reason } of samples) {
    const kind = KIND[reason] || "up", last = parts[parts.length - 1];
    if (last && last[0] === kind) last[1] += 1;
    else parts.push([kind, 1]);
  }
  return parts;
}

function scalePanel(pool, samples, seen) {
  const changes = [];
  samples.forEach((row, at) => {
    const before = samples[at - 1];
    if (!before || before.desired !== row.desired || before.reason !== row.reason) changes.push({ ...row, before: before ? before.desired : null });
  });
  const minutes = (seen && seen.minutes) || [], now = Date.now() / 1000;
  const reasons = [...new Set(samples.map((row) => row.reason))];
  return panel(pool.pool, { key: `scale-${pool.pool}`, note: `needs ${pool.desired ?? "?"}, has ${pool.in_service}: ${REASON[pool.desired_reason] || pool.desired_reason || "no signal yet"}`, aside: saves(`changes-${pool.pool}`) },
    samples.length < 2 ? empty("No history yet", "The gateway keeps a sample every 10 s for one hour, from its start.") : h("div", { class: "grid2" },
      h("div", {}, chart({ label: `Replicas of ${pool.pool} in the last hour`, times: samples.map((row) => row.at_unix), series: [{ name: "needed", cls: "first", step: true, values: samples.map((row) => row.desired) }, { name: "in service", cls: "second", step: true, area: true, values: samples.map((row) => row.ready) }] }),
        bar(runs(samples), samples.length, `Reasons over time: ${reasons.join(", ")}`),
        h("div", { class: "legend" }, reasons.map((name) => h("span", { class: KIND[name] === "out" ? "out" : KIND[name] || "up", title: REASON[name] }, name.replace("_", " "))))),
      h("div", {}, chart({ label: `Load of ${pool.pool} in the last hour`, times: samples.map((row) => row.at_unix), series: [{ name: "at replicas", cls: "first", area: true, values: samples.map((row) => row.inflight) }, { name: "waiting for it", cls: "second", values: samples.map((row) => row.queued) }] }))),
    h("div", { class: "grid2" },
      h("div", {}, h("h3", {}, "Demand bands"), minutes.length > 1
        ? chart({ label: `Demand on ${pool.pool}, minute by minute`, times: minutes.map((_, at) => now - (minutes.length - 1 - at) * 60), series: [{ name: "peak of the minute", cls: "second", area: true, values: minutes.map((row) => row.peak) }, { name: "mean", cls: "first", area: true, values: minutes.map((row) => row.level) }, { name: "refused", cls: "third", values: minutes.map((row) => row.refused) }] })
        : empty("Not yet", "Demand is summed by the minute; two minutes after the start there is a band.")),
      h("div", {}, h("h3", {}, "Changes"), changes.length ? table(`changes-${pool.pool}`, [
        { name: "At", value: (row) => row.at_unix, cell: (row) => clock(row.at_unix) },
        { name: "Needed", num: true, value: (row) => row.desired, cell: (row) => (row.before === null || row.before === row.desired ? String(row.desired ?? "?") : `${row.before} → ${row.desired ?? "?"}`) },
        { name: "In service", num: true, value: (row) => row.ready },
        { name: "Why", value: (row) => row.reason, cell: (row) => [h("b", {}, row.reason.replace("_", " ")), " ", muted(REASON[row.reason] || "")] },
      ], changes.reverse().slice(0, 5), { key: (row) => `${row.at_unix}`, label: `Changes of ${pool.pool}` }) : empty("None", "The number has not changed since the start."))));
}

// Tenants

const limitName = (row) => `${row.unit} ${row.period.replace("_", " ")}`.replace(/_/g, " ");

const SPANS = [["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"]];

export function tenants(ctx) {
  const { status, shares } = ctx.view, filter = ctx.text("tenant-filter"), since = ctx.choice("since", "24h");
  const running = ctx.need("/admin/v1/config", 3600, status.config.generation), off = running.data && !running.data.startup.usage;
  const bill = running.data && !off ? ctx.need(`/admin/v1/usage?by=tenant&since=${since}`, 30) : running;
  const rows = status.tenants.filter((row) => contains(filter, row.tenant, row.parent || ""));
  const limits = rows.flatMap((row) => row.limits.map((limit) => ({ ...limit, tenant: row.tenant, part: Number(limit.amount) > 0 ? Number(limit.left) / Number(limit.amount) : null })));
  const active = (name) => sum(shares.filter((row) => row.tenant === name), (row) => row.running);
  return [
    panel("Tenants", { note: count(status.tenants.length), aside: [filterBox(ctx, "tenant-filter", "Filter by name"), saves("tenants")] }, table("tenants", [
      { name: "Tenant", value: (row) => row.tenant, cell: (row) => [row.tenant, row.parent ? muted(` of ${row.parent}`) : null] },
      { name: "Weight", num: true, value: (row) => row.weight },
      { name: "Classes", value: (row) => row.classes, cell: (row) => row.classes.map((name, at) => [at ? ", " : "", name === row.default_class ? h("b", { title: "the class without asking" }, name) : name]) },
      { name: "Running", num: true, value: (row) => active(row.tenant), cell: (row) => count(active(row.tenant)) },
      { name: "Waiting", num: true, value: (row) => row.waiting, cell: (row) => count(row.waiting) },
      { name: "Oldest", num: true, value: (row) => row.oldest_seconds, cell: (row) => (row.waiting ? time(row.oldest_seconds) : none) },
      { name: "Set by operators", value: (row) => row.overrides.map(word), cell: (row) => (row.overrides.length ? row.overrides.map((set) => [badge("warn", word(set)), muted(` ${ends(set)} `)]) : none) },
      { name: "", cell: (row) => (row.overrides.length ? button("Resume", "ask", { of: "tenants", verb: "resume", name: row.tenant }, { class: "small" }) : button("Pause", "ask", { of: "tenants", verb: "pause", name: row.tenant }, { class: "small", "aria-label": `Pause ${row.tenant}` })) },
    ], rows, { key: (row) => row.tenant, label: "Tenants" })),
    panel("Limits left", { aside: limits.length ? saves("limits") : null }, limits.length ? table("limits", [
      { name: "Tenant", value: (row) => row.tenant },
      { name: "Limit", value: (row) => limitName(row), cell: (row) => [limitName(row), row.of ? muted(` of ${row.scope} ${row.of}`) : null, row.shadow ? [" ", badge("quiet", "shadow", "counted, not enforced")] : null] },
      { name: "Left", num: true, value: (row) => Number(row.left), cell: (row) => [`${count(row.left)} of ${count(row.amount)}`, bar([[row.part < 0.1 ? "out" : row.part < 0.3 ? "held" : "good", row.part || 0]], 1, `${percent(row.part)} left`)] },
      { name: "Whole in", num: true, value: (row) => row.whole_in_seconds, cell: (row) => time(row.whole_in_seconds) },
    ], limits, { key: (row) => `${row.tenant} ${row.scope} ${row.of} ${row.unit} ${row.period}`, label: "Limits" }) : empty("No limits", "No tenant here has any. ", h("code", {}, "tenants.NAME.limits"), " bounds requests, tokens or money by the minute, day or month.")),
    panel("Bill and waste", { note: "idle time has a line of its own, so the lines add up to what the replicas cost", aside: [h("div", { class: "tabs", role: "group", "aria-label": "Time span" }, SPANS.map(([value, text]) => button(text, "choose", { choice: "since", value }, { class: "quiet small", "aria-pressed": String(since === value) }))), bill.data && bill !== running ? saves("bill") : null] }, off ? empty("Nothing is written down", "Set ", h("code", {}, "usage.folder"), " in the file and restart: each request then leaves a row with its tokens, its GPU time and its price.") : bill.data && bill !== running ? billTable(bill.data) : pending(bill, "The bill")),
  ];
}

function billTable(bill) {
  const number = (value) => Number(value);
  const rows = [...bill.lines, { ...bill.total, total: true }];
  if (!bill.lines.length) return empty("Nothing in this time", "No request ended in it. Choose a longer one.");
  const name = (row) => (row.total ? "all" : row.unallocated ? "idle" : row.tenant || "no tenant");
  return table("bill", [
    { name: "Tenant", value: name, cell: (row) => (row.total || row.unallocated ? h("b", {}, name(row)) : name(row)) },
    { name: "Requests", num: true, value: (row) => row.requests, cell: (row) => count(row.requests) },
    { name: "Input", num: true, value: (row) => row.input_tokens, cell: (row) => [count(row.input_tokens), row.cached_tokens ? h("span", { class: "muted two" }, `${count(row.cached_tokens)} cached`) : null] },
    { name: "Output", num: true, value: (row) => row.output_tokens, cell: (row) => count(row.output_tokens) },
    { name: "Wasted tokens", num: true, value: (row) => row.wasted_tokens, cell: (row) => (row.wasted_tokens ? [count(row.wasted_tokens), h("span", { class: "muted two" }, `${count(row.tries - row.requests)} more tries`)] : "0"), help: "Of attempts that gave no answer, and of answers that nobody got" },
    { name: "Queued", num: true, value: (row) => number(row.queue_seconds), cell: (row) => time(row.queue_seconds) },
    { name: "GPU time", num: true, value: (row) => number(row.gpu_seconds), cell: (row) => [time(row.gpu_seconds), bar([[row.unallocated ? "held" : "used", number(row.gpu_seconds)]], number(bill.total.gpu_seconds), `${time(row.gpu_seconds)} of GPU time`)] },
    { name: "Cost", num: true, value: (row) => number(row.cost), cell: (row) => number(row.cost).toFixed(4) },
  ], rows, { key: name, label: "Bill" });
}

// Config

export function config(ctx) {
  const { config: known } = ctx.view.status, last = known.last_reload, filter = ctx.text("config-filter");
  const running = ctx.need("/admin/v1/config", 3600, known.generation);
  const leaves = running.data ? flatten(running.data).filter((row) => row.path !== "digest" && row.path !== "generation") : [];
  const rows = leaves.filter((row) => row.value !== none && contains(filter, row.path, row.value));
  const sections = [...new Set(rows.map((row) => row.path.split(".")[0]))];
  return [
    panel("Running against file", { aside: button("Read the file again", "reload", {}, { title: "The gateway follows the file by itself; this asks at once" }) },
      h("dl", { class: "facts" },
        fact("In force", last.successful && !last.restart_needed.length ? "what the file says" : last.successful ? "what the file says, but for what needs a restart" : "not the file: it has errors", last.successful ? null : "warn"),
        fact("Generation", String(known.generation)), fact("Loaded", `${moment(known.loaded_at_unix)}, ${time(known.loaded_seconds_ago)} ago`), fact("Last read", moment(last.at_unix)),
        h("div", {}, h("dt", {}, "Digest"), h("dd", { class: "code", title: known.digest }, known.digest.slice(0, 16)))),
      ctx.note ? h("p", { role: "status" }, ctx.note) : null),
    last.problems.length ? panel("Errors of the file", { class: "error", note: "the configuration before it stays in force" }, h("pre", {}, last.problems.join("\n\n")), h("p", { class: "muted" }, "Mend the file; it is read again at once. ", h("code", {}, "penstock check"), " says the same with places.")) : null,
    last.restart_needed.length ? panel("Waits for a restart", {}, h("pre", {}, last.restart_needed.join("\n"))) : null,
    panel("Last change", { note: last.changed.length ? `${last.changed.length} ${last.changed.length === 1 ? "key" : "keys"}` : "" }, last.changed.length ? h("pre", {}, last.changed.join("\n")) : empty("No change since the start", "After an edit of the file, the keys that changed stand here with their values before and after.")),
    panel("Configuration in force", { note: "defaults included, what is not set left out; durations in seconds", aside: filterBox(ctx, "config-filter", "Filter, such as pools h100") },
      running.data ? rows.length ? sections.map((name) => {
        const own = rows.filter((row) => row.path.split(".")[0] === name);
        return h("details", { "data-key": `${name} ${filter}`, open: filter !== "" }, h("summary", {}, h("span", { class: "code" }, name), muted(` ${own.length}`)), own.map((row) => h("div", { class: "leaf", "data-key": row.path }, h("span", { class: "code" }, row.path), h("span", { class: "code" }, row.value))));
      }) : empty("No key fits the filter", "Clear it to see all.") : pending(running, "The configuration")),
  ];
}

function flatten(value, path = "") {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    const keys = Object.keys(value);
    return keys.length ? keys.flatMap((key) => flatten(value[key], path ? `${path}.${key}` : key)) : [{ path, value: "{}" }];
  }
  if (Array.isArray(value) && value.some((item) => item !== null && typeof item === "object")) return value.flatMap((item, at) => flatten(item, `${path}.${item.name || at}`));
  return [{ path, value: value === null ? none : Array.isArray(value) ? value.join(", ") || "none" : String(value) }];
}

// One request

export function drawer(ctx, id, answer) {
  const top = h("div", { class: "top" }, h("h2", { id: "drawer-title", class: "code" }, id), button("Close", "close", {}, { class: "quiet" }));
  if (!answer.data) return [top, pending(answer, "The request")];
  const it = answer.data, end = it.end;
  const state = end ? badge(end.outcome === "success" ? "good" : "bad", end.outcome) : badge("info", it.state);
  return [top,
    h("p", { class: "filters" }, state, end ? ` after ${time(end.total)}, status ${end.status}${end.reason ? `, ${end.reason}` : ""}` : ` for ${time(it.age)}`),
    h("dl", { class: "facts" }, fact("Tenant", `${it.tenant}${it.tenant_parent ? ` of ${it.tenant_parent}` : ""}`), fact("Class", it.asked_class), fact("Model", it.fallback ? `${it.fallback.model}, since ${it.model}: ${it.fallback.why}` : it.model), fact("Came", `${clock(it.came_at_unix)}, ${time(it.age)} ago`), fact("Prompt", `${count(it.prompt_tokens)} tokens${{ bound: " at most", estimate: ", estimated" }[it.prompt_source] || ", counted"}`), fact("Answer", it.stream ? "stream" : "plain"), it.gateway ? fact("Gateway", it.gateway) : null),
    h("h3", {}, "Timeline"), timeline(it),
    it.waiting ? waiting(it.waiting) : null,
    ...it.tries.map((one) => decision(one)),
    h("p", { class: "muted" }, "In a shell: ", h("code", {}, `penstock explain ${id}`))];
}

function timeline(it) {
  const step = (at, title, text, level) => ({ at, title, text, level });
  const steps = [step(0, "Came", `class ${it.asked_class}, ${count(it.prompt_tokens)} prompt tokens`)];
  for (const one of it.tries) {
    steps.push(step(one.sent_after, `Sent to ${short(one.replica)}`, `waited ${time(one.why.queued)}; ${count(one.why.running)} of ${count(one.why.limit)} places were taken there`));
    if (one.first_token_after !== null) steps.push(step(one.first_token_after, "First token", `${time(one.first_token_after - one.sent_after)} after it was sent; ${time(one.why.expected_ttft)} was predicted`));
    if (one.back) steps.push(step(one.back.after, "Came back", one.back.why, "bad"));
  }
  if (it.waiting) steps.push(step(it.age, "Waits", (BLOCKED[it.waiting.obstacle] || ["", it.waiting.obstacle])[1]));
  else if (!it.end) steps.push(step(it.age, "Runs", "the answer is under way"));
  if (it.end) steps.push(step(it.end.total, it.end.outcome === "success" ? "Done" : "Ended", `${it.end.outcome}${it.end.reason ? `: ${it.end.reason}` : ""}, status ${it.end.status}`, it.end.outcome === "success" ? "good" : "bad"));
  return h("ol", { class: "timeline" }, steps.map((row) => h("li", { class: row.level || "" }, h("span", { class: "at" }, exact(row.at)), h("div", {}, h("strong", {}, row.title), h("p", {}, row.text)))));
}

function waiting(it) {
  const better = it.replicas[0];
  return h("div", {}, h("div", { class: "head" }, h("h3", {}, "Replicas that it might go to"), h("div", { class: "aside" }, saves("choices"))), h("p", { class: "muted" }, `${it.ahead_of_it === null ? "Many" : count(it.ahead_of_it)} go before it in its queue, ${count(it.waiting_in_group)} wait for the same pools; it may wait ${time(it.may_wait_on)} more.`),
    table("choices", [
      { name: "Replica", value: (row) => row.replica, cell: (row) => short(row.replica) },
      { name: "Places", num: true, value: (row) => row.running, cell: (row) => `${row.running} / ${row.limit}` },
      { name: "Room", value: (row) => (row.failed_it_before ? "failed it before" : row.fits ? "yes" : HELD[row.held_back_by] || row.held_back_by || "no") },
      { name: "First token in", num: true, value: (row) => row.expected_ttft, cell: (row) => time(row.expected_ttft) },
      { name: "Against the best", num: true, value: (row) => row.expected_ttft - better.expected_ttft, cell: (row) => (row === better ? "best" : `+${time(row.expected_ttft - better.expected_ttft)}`) },
    ], it.replicas, { key: (row) => row.replica, label: "Replicas" }),
    it.replicas_in_all > it.replicas.length ? muted(`and ${it.replicas_in_all - it.replicas.length} more`) : null);
}

function decision(one) {
  const why = one.why;
  return h("div", {}, h("h3", {}, `Why ${short(one.replica)}`, one.why.attempt > 1 ? muted(` attempt ${one.why.attempt}`) : null),
    h("dl", { class: "facts" }, fact("Turn", `${why.turn.replace("_", " ")}: ${TURN[why.turn] || ""}`), fact("Pool", `${one.pool}: ${CHOICE[why.choice] || why.choice}`),
      why.passed_over ? fact("Passed over", `${why.passed_over.pool}: ${why.passed_over.why === "busy" ? "wanted more, but busy" : "wanted more, but too late"}`) : null,
      fact("Replica", `soonest first token of ${count(why.candidates)} with room: ${time(why.expected_ttft)}`), fact("Cached", `${count(why.cached_tokens)} of the prompt's tokens`), fact("Ledger there", `${count(why.running)} of ${count(why.limit)} places, ${count(why.outstanding_tokens)} tokens outstanding`), fact("Left waiting", count(why.left_waiting)),
      why.demoted_from ? fact("Class", `${why.class}, too late for ${why.demoted_from}`) : null, why.adapter ? fact("Adapter", why.adapter) : null),
    scores(one));
}

function scores(one) {
  if (!one.why.others.length) return null;
  const own = { replica: one.replica, score: one.why.score, expected_ttft: one.why.expected_ttft, cached_tokens: one.why.cached_tokens, why_not: null };
  const id = `scores-${one.why.attempt}`;
  return h("div", {}, h("div", { class: "head" }, h("h3", {}, "Against other replicas"), h("div", { class: "aside" }, saves(id))), h("p", { class: "muted" }, "The least score goes first: the first token, the reading time that it takes from later prompts, and what it adds to the streams there."),
    table(id, [
      { name: "Replica", value: (row) => row.replica, cell: (row) => short(row.replica) },
      { name: "Score", num: true, value: (row) => row.score, cell: (row) => time(row.score) },
      { name: "First token in", num: true, value: (row) => row.expected_ttft, cell: (row) => time(row.expected_ttft) },
      { name: "Cached", num: true, value: (row) => row.cached_tokens, cell: (row) => count(row.cached_tokens) },
      { name: "Why not", value: (row) => (row.why_not ? WHY_NOT[row.why_not] || row.why_not : "chosen") },
    ], [own, ...one.why.others], { key: (row) => row.replica, label: "Scores" }));
}
