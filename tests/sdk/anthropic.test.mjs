// The gateway as the Anthropic SDK for Node sees it.
import assert from "node:assert/strict";
import {
  MESSAGES,
  Recorder,
  anthropic,
  keys,
  logged,
  marker,
  metric,
  test,
  until,
  url,
  whileBusy,
  withFault,
} from "./gateway.mjs";

const Anthropic = anthropic.default ?? anthropic.Anthropic;
const client = (tenant = "team", options = {}) => new Anthropic({ baseURL: url, apiKey: keys[tenant], ...options });
const recorded = (recorder, tenant, options) => client(tenant, { fetch: recorder.fetch, ...options });
const ASK = { model: "fast", messages: MESSAGES, max_tokens: 8 };
const EXACT = { ...ASK, ignore_eos: true };
const detail = (error) => error.error?.error;

test("message", async () => {
  const id = marker();
  const answer = await client().messages.create(EXACT, { headers: { "x-request-id": id } });
  assert.deepEqual([answer.model, answer.stop_reason, answer.usage.output_tokens], ["fast", "max_tokens", 8]);
  assert.equal(answer._request_id, id);
});

test("stream", async () => {
  const id = marker();
  const stream = await client().messages.create({ ...EXACT, stream: true }, { headers: { "x-request-id": id } });
  const types = [];
  for await (const event of stream) types.push(event.type);
  assert.deepEqual([types[0], types.at(-1)], ["message_start", "message_stop"]);
  const [line] = await logged(id, 1);
  assert.deepEqual([line.outcome, line.usage, line.output_tokens], ["success", "exact", 8]);
});

test("stream helper", async () => {
  const final = await client().messages.stream({ ...EXACT, model: "gpt-4o" }).finalMessage();
  assert.deepEqual([final.model, final.usage.output_tokens], ["gpt-4o", 8]);
});

test("count_tokens, models", async () => {
  const api = client();
  const { input_tokens } = await api.messages.countTokens({ model: "fast", messages: MESSAGES });
  assert.ok(input_tokens > 0);
  const names = [];
  for await (const model of api.models.list()) names.push(model.id);
  assert.ok(names.includes("fast"));
});

const REFUSED = {
  "prompt too long": [
    { messages: [{ role: "user", content: "mine ".repeat(8000) }] },
    "BadRequestError",
    400,
    "invalid_request_error",
    "context_length_exceeded",
  ],
  "unknown model": [
    { model: "no-such-model" },
    "NotFoundError",
    404,
    "not_found_error",
    "model_not_found",
  ],
  "class not allowed": [
    {},
    "PermissionDeniedError",
    403,
    "permission_error",
    "class_not_allowed",
    { "x-penstock-class": "batch" },
    "limited",
  ],
  "body too large": [
    { messages: [{ role: "user", content: "x".repeat(8_000_000) }] },
    "APIError",
    413,
    "request_too_large",
    "body_too_large",
  ],
  "unknown key": [
    {},
    "AuthenticationError",
    401,
    "authentication_error",
    "invalid_api_key",
    { authorization: "Bearer pst_nosuchkey" },
  ],
};
for (const name of Object.keys(REFUSED)) {
  test(`refused once: ${name}`, async () => {
    const [body, kind, status, type, code, headers, tenant] = REFUSED[name];
    const [recorder, id] = [new Recorder(), marker()];
    const api = recorded(recorder, tenant);
    const call = api.messages.create({ ...ASK, ...body }, { headers: { "x-request-id": id, ...headers } });
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof Anthropic[kind], String(error));
      assert.deepEqual([error.status, error.requestID], [status, id]);
      assert.deepEqual([detail(error).type, detail(error).details.error_code], [type, code]);
      return true;
    });
    recorder.assertFinal(status);
    await logged(id, 1);
  });
}

test("a full queue is tried again when told", async () => {
  const ask = { ...ASK, model: "busy-node", max_tokens: 1 };
  const [recorder, id] = [new Recorder(), marker()];
  let waiting;
  await whileBusy(async () => {
    waiting = client("tight").messages.create(ask);
    await until(async () => (await metric("penstock_queue_depth", { tenant: "tight" })) === 1, "one request waits");
    const call = recorded(recorder, "tight").messages.create(ask, { headers: { "x-request-id": id } });
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof Anthropic.InternalServerError);
      assert.deepEqual([error.status, detail(error).type], [529, "overloaded_error"]);
      return true;
    });
  });
  recorder.assertRetried(529);
  await logged(id, 3);
  assert.equal((await waiting).usage.output_tokens, 1);
});

test("engines that all fail", async () => {
  const recorder = new Recorder();
  await withFault({ kind: "status", status: 500 }, async () => {
    await assert.rejects(recorded(recorder).messages.create({ ...ASK, model: "brittle" }), (error) => {
      assert.ok(error instanceof Anthropic.InternalServerError);
      assert.deepEqual([error.status, detail(error).details.error_code], [502, "upstream_failed"]);
      return true;
    });
  });
  recorder.assertFinal(502);
});

for (const kind of ["cut", "error_event", "abort", "no_finish", "silent"]) {
  test(`a stream that breaks raises: ${kind}`, async () => {
    const [recorder, seen] = [new Recorder(), []];
    await withFault({ kind, after_tokens: 20 }, async () => {
      const ask = { ...EXACT, model: "brittle", max_tokens: 50, stream: true };
      const stream = await recorded(recorder).messages.create(ask);
      const read = async () => {
        for await (const event of stream) seen.push(event);
      };
      await assert.rejects(read(), (error) => {
        assert.ok(error instanceof Anthropic.APIError, String(error));
        assert.equal(detail(error).details.error_code, "upstream_broken");
        return true;
      });
    });
    assert.ok(seen.length > 0);
    assert.equal(recorder.attempts.length, 1);
  });
}
