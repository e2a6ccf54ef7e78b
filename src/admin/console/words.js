// Words for the stable names of the API, and advice for those that ask for action.

export const BLOCKED = {
  tenant_paused: ["paused", "An operator has paused the tenant. Resume it on the page Tenants."],
  quota_reached: ["quota", "The tenant holds all that its quota allows. Raise quota.borrow, or wait for its own requests to end."],
  pool_is_starting: ["starting", "Its pools have to start first. The page Scale shows what was asked for."],
  no_replica_in_service: ["no replica", "No replica that serves the model is in service. See Pools for the cause."],
  due_at_other_gateways: ["other gateways", "Tenants that wait at other gateways are due the free places."],
  no_room: ["no room", "Every replica is as full as it may be. Pools says for each of them why it takes no more."],
  waits_for_wanted_pools: ["its pools", "Its placement rules let it wait for the pools it wants; others have room."],
  waits_for_sooner_replica: ["sooner", "A busy replica is predicted to be sooner than a free one."],
  not_its_turn: ["turn", "There is room, and others go first by class, share and age."],
};

export const HELD = {
  held: "kept free for a large request that waits",
  trial: "on trial after an ejection, with its one request",
  slow_start: "in slow start after it came back",
  pace: "one more stream would miss the inter-token objective",
  slots: "all slots are taken",
  kv: "the KV cache is as full as it may be",
  reading: "reads as many prompts as it should at once",
  guest_share: "less urgent classes use their whole part of the slots",
  reserve: "the free slots are headroom for an urgent class",
  released: "serves slower classes; others keep the urgent objective",
  guest_readers: "enough other replicas read long prompts of less urgent classes",
};

export const WHY_NOT = {
  no_room: "no room",
  failed_it_before: "had failed the request",
  other_suspect_there: "another request ran there whose engine had failed",
  reserved: "its room was kept for another request",
  higher_score: "higher score",
  other_pool_first: "another pool went first",
  as_good: "as good, and busier or chosen more recently",
  other_was_held: "the other's room was kept for the request",
};

export const REASON = {
  idle: "nothing is asked of the pool",
  start: "requests wait, and nothing is in service",
  later: "requests wait that a later start serves in time",
  sustained: "the steady demand",
  burst: "replicas that start now serve in time what waits",
  deadline: "patient work has to be done by its deadline",
  forecast: "the last two days needed it at the time at which it will have started",
  unmet: "requests were refused or late for longer than a start takes",
  floor: "min_replicas, or what repeated bursts have shown to be needed",
  hold: "was needed a while ago and is kept for now",
  hold_restart: "demand has not been watched for long enough since the start to ask for less",
  clamp: "max_replicas",
};

export const POOL = {
  cold: ["quiet", "no replica, and no request waits for one"],
  starting: ["warn", "requests are held until the first replica answers"],
  ready: ["good", "a replica is in service"],
  draining: ["warn", "only replicas that finish what they run"],
  asleep: ["quiet", "all replicas sleep"],
  down: ["bad", "it has replicas, and none is in service"],
};

export const REPLICA = {
  serving: ["good", "takes work"],
  slow_start: ["good", "takes work below its full limit: new, or back a moment ago"],
  busy: ["warn", "takes no work for a moment: the engine said that it was busy"],
  cordoned: ["warn", "takes no new work until the override ends"],
  draining: ["warn", "takes no work; requests that had not begun went elsewhere"],
  asleep: ["quiet", "sleeps until it is woken"],
  waking: ["quiet", "was told to wake"],
  ejected: ["bad", "takes no work until a probe succeeds"],
  gone: ["bad", "ejected, and nothing has answered there for a minute"],
  removed: ["quiet", "no longer listed; finishes what it runs"],
};

export const TURN = {
  alone: "nobody else waited for these replicas",
  fair: "its class was first, and its tenant had had least for its weight",
  guaranteed_share: "its class was owed its minimum share",
  own_quota: "its tenant had less than its quota guarantees",
  requeued: "it was back from a replica, at its old age",
};

export const CHOICE = {
  only: "the only pool that could take it",
  session: "its session was there before",
  prefix: "the start of its prompt is in the replica's cache",
  wanted: "of those that keep the objective, the one wanted most",
  spilled: "those wanted more could not take it in time",
  kept: "another one is wanted more, but not by enough to change",
  fastest: "none keeps the objective, and this one is soonest",
  waited: "none keeps the objective, and it waited for this one",
  held: "a replica was kept free for it, which others had passed",
};

/** What to do about replicas that take no more, by the most common cause. */
function full(replicas, urgent) {
  const causes = new Map(), up = replicas.filter((row) => ["serving", "slow_start", "busy"].includes(row.state));
  for (const row of up) {
    const cause = urgent ? row.held_back_by : row.guests_held_back_by || row.held_back_by;
    if (cause) causes.set(cause, (causes.get(cause) || 0) + 1);
  }
  const [cause, times] = [...causes].sort((a, b) => b[1] - a[1])[0] || [];
  if (!cause) return "Replicas free places just now; look again in a moment.";
  const advice = { pace: "Add a replica, or loosen itl of the classes that share it.", slots: "Add a replica, or raise max_seqs if its memory allows.", kv: "Add a replica, or one with more memory.", reserve: "Add a replica; the headroom is what keeps the urgent class in time.", slow_start: "It passes by itself." }[cause] || "Add a replica if it lasts.";
  return `At ${times} of ${up.length} replicas: ${HELD[cause] || cause}. ${advice}`;
}

const action = (level, title, text, where, command) => ({ level, title, text, where, command });
const plural = (count, one, many = one + "s") => `${count} ${count === 1 ? one : many}`;

/** Everything that asks for a look, the worst first: what is wrong and what to do about it. */
export function findings(view, f) {
  const { status, shares } = view, list = [];
  const say = (...rest) => list.push(action(...rest));
  if (!status.ready) {
    say("bad", `Not ready: ${status.not_ready_reason}`, "New requests are refused. A drain ends with the process; start another gateway, or wait for the restart.", "#/requests");
  }
  if (!status.config.last_reload.successful) {
    const first = status.config.last_reload.problems[0] || "";
    say("bad", "The configuration file has errors", `The last good one stays in force. ${first}`, "#/config", "penstock check penstock.yaml");
  }
  if (status.broken_invariants > 0) {
    say("bad", plural(status.broken_invariants, "broken invariant"), "An account of the scheduler does not add up. Please report it with the log of the last minutes.");
  }
  for (const pool of status.pools) {
    if (pool.state === "down" && pool.closed === "none") {
      say("bad", `Pool ${pool.pool} is down`, `It has ${plural(pool.replicas, "replica")}, and none is in service${pool.waiting ? `; ${f.count(pool.waiting)} requests wait` : ""}. Look at the engines' logs and the network between.`, "#/pools");
    }
    if (pool.source && pool.source.problem) {
      say("warn", `Pool ${pool.pool}: ${pool.source.kind} does not answer`, `The replicas known so far stay in use. ${pool.source.problem}`, "#/pools");
    }
    if (pool.desired !== null && pool.desired > pool.in_service + pool.asleep) {
      const missing = pool.desired - pool.in_service - pool.asleep;
      say("warn", `Pool ${pool.pool} needs ${pool.desired}, has ${pool.in_service}`, `${plural(missing, "replica")} short: ${REASON[pool.desired_reason] || pool.desired_reason}. Without a scaler, start ${missing === 1 ? "it" : "them"} by hand; with one, look at the page Scale and at the cluster's free GPUs.`, "#/scale");
    }
  }
  const lost = status.replicas.filter((row) => row.state === "ejected" || row.state === "gone");
  if (lost.length) {
    say("warn", `${plural(lost.length, "replica")} out of service`, `${f.names(lost.map((row) => row.replica), 3)}. Probes bring ${lost.length === 1 ? "it" : "them"} back once the engine answers.`, "#/pools");
  }
  const mute = status.replicas.filter((row) => row.engine && row.engine.problem && !lost.includes(row));
  if (mute.length) {
    say("warn", `${plural(mute.length, "engine")} report${mute.length === 1 ? "s" : ""} no metrics`, `${f.names(mute.map((row) => row.replica), 3)}: ${mute[0].engine.problem}`, "#/pools");
  }
  for (const row of status.classes) {
    if (row.waiting && row.oldest_seconds > row.ttft_objective_seconds) {
      const held = shares.filter((share) => share.class === row.class && share.waiting && share.blocked_by);
      held.sort((a, b) => b.waiting - a.waiting);
      const cause = held[0] ? held[0].blocked_by : "", urgent = row.rank === Math.min(...status.classes.map((other) => other.rank));
      const why = cause === "no_room" ? full(status.replicas, urgent) : (BLOCKED[cause] || ["", ""])[1];
      say("warn", `Class ${row.class} is late`, `The oldest of ${f.count(row.waiting)} has waited ${f.time(row.oldest_seconds)}, and the first token is promised in ${f.time(row.ttft_objective_seconds)}. ${why}`, "#/queues");
    }
  }
  for (const row of status.unkept_promises) {
    say("warn", `Class ${row.class} promises ${row.model} more than any pool keeps`, `${row.objective} in ${f.time(row.promised_seconds)}; the best of ${f.count(row.samples)} is ${f.time(row.best_seconds)} at ${row.pool}. Loosen the objective, or add a faster pool.`, "#/pools");
  }
  for (const row of status.tenants) {
    for (const limit of row.limits) {
      const share = Number(limit.amount) > 0 ? Number(limit.left) / Number(limit.amount) : 1;
      if (share < 0.1 && !limit.shadow) {
        say("info", `${row.tenant} has ${Math.round(share * 100)} % of a limit left`, `${limit.unit.replace("_", " ")} ${limit.period.replace("_", " ")}${limit.of ? ` of ${limit.of}` : ""}; whole again in ${f.time(limit.whole_in_seconds)}.`, "#/tenants");
      }
    }
  }
  const { cluster } = status;
  if (cluster && !cluster.up) {
    say("warn", "The store of the cluster is away", `${cluster.problem || "It has not answered yet"}; limits go on with their last leases for ${f.time(cluster.leases_end_in_seconds)}, and overrides hold at their own gateway.`, "#/config");
  }
  for (const row of status.overrides) {
    const end = row.ends_in_seconds === null ? "until an operator ends it" : `for ${f.time(row.ends_in_seconds)} more`;
    say("info", `${row.kind}${row.by ? ` ×${row.by}` : ""} of ${row.of} ${f.short(row.name)}`, `In force ${end}${row.reason ? `: ${row.reason}` : ", without a reason"}${row.set_at ? ` (set at ${row.set_at.gateway_name})` : ""}.`, row.of === "tenant" ? "#/tenants" : "#/pools");
  }
  if (status.config.last_reload.restart_needed.length) {
    say("info", "A restart is needed", `${f.names(status.config.last_reload.restart_needed, 3)} take effect at the next start.`, "#/config");
  }
  const order = { bad: 0, warn: 1, info: 2 };
  return list.sort((a, b) => order[a.level] - order[b.level]);
}

/** The state of the gateway in one sentence. */
export function verdict(view, list, f) {
  const { status } = view;
  const waiting = status.classes.reduce((sum, row) => sum + row.waiting, 0);
  const running = status.pools.reduce((sum, row) => sum + row.running, 0);
  const limit = status.pools.reduce((sum, row) => sum + row.limit, 0);
  const oldest = status.classes.reduce((most, row) => Math.max(most, row.oldest_seconds), 0);
  const facts = `${f.count(running)} of ${f.count(limit)} places taken, ${waiting ? `${f.count(waiting)} wait, the oldest ${f.time(oldest)}` : "nobody waits"}`;
  const bad = list.filter((row) => row.level === "bad").length, warn = list.filter((row) => row.level === "warn").length;
  if (bad) return { level: "bad", title: list[0].title, text: facts };
  if (warn) return { level: "warn", title: warn === 1 ? list[0].title : `${list[0].title}, and ${warn - 1} more`, text: facts };
  return { level: "good", title: waiting ? "Busy, and every class within its objective" : "All is well", text: facts };
}
