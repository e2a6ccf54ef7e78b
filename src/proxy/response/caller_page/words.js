// Words for the names of the API, as a tenant reads them.

/** Why a request waits: a short name, and what it means to its sender. */
export const WHY = {
  tenant_paused: ["paused", "An operator has paused your tenant."],
  quota_reached: ["quota", "Your tenant holds all that its quota allows. The request starts when one of yours ends."],
  pool_is_starting: ["starting", "The servers of its model have to start first."],
  no_replica_in_service: ["no server", "No server of its model is in service."],
  due_at_other_gateways: ["others", "The free servers are due to other tenants, who wait elsewhere."],
  no_room: ["no room", "Every server of its model is full."],
  waits_for_wanted_pools: ["its servers", "It waits for the servers that its rules prefer; others have room."],
  waits_for_sooner_replica: ["sooner", "A busy server is predicted to be sooner than a free one."],
  not_its_turn: ["turn", "There is room, and other requests go first."],
};

const UNITS = { requests: "requests", input_tokens: "input tokens", output_tokens: "output tokens", tokens: "tokens", gpu_seconds: "GPU time", money: "cost" };
const PERIODS = { concurrent: "at once", per_minute: "a minute", per_day: "a day", per_month: "a month" };
const named = (names, name) => names[name] || String(name).replace(/_/g, " ");

/** A limit in words: "tokens a day". */
export const limitName = ({ unit, period }) => `${named(UNITS, unit)} ${named(PERIODS, period)}`;

/** Whose limit it is. */
export const limitOwner = ({ scope, model }) => (scope === "model" ? `for ${model}` : scope === "key" ? "of this key" : "of the tenant");
