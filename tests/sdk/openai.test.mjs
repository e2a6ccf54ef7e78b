// The gateway as the OpenAI SDK for Node sees it.
import assert from "node:assert/strict";
import {
  MESSAGES,
  OpenAI,
  Recorder,
  keys,
  logged,
  marker,
  metric,
  openai,
  test,
  until,
  url,
  whileBusy,
  withFault,
} from "./gateway.mjs";

const client = (tenant = "team", options = {}) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: keys[tenant], ...options });
const recorded = (recorder, tenant, options) => client(tenant, { fetch: recorder.fetch, ...options });
const CHAT = { model: "fast", messages: MESSAGES, max_tokens: 8 };
const EXACT = { ...CHAT, ignore_eos: true };

test("chat", async () => {
  const answer = await client().chat.completions.create({ ...EXACT, model: "gpt-4o" });
  assert.equal(answer.model, "gpt-4o");
  assert.equal(answer.usage.completion_tokens, 8);
});

for (const usage of [false, true]) {
  test(`chat stream ${usage ? "with" : "without"} usage`, async () => {
    const id = marker();
    const options = usage ? { stream_options: { include_usage: true } } : {};
    const stream = await client().chat.completions.create(
      { ...EXACT, stream: true, ...options },
      { headers: { "x-request-id": id } },
    );
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    assert.equal(text.trim().split(" ").length, 8);
    assert.equal(chunks.filter((chunk) => chunk.usage).length, usage ? 1 : 0);
    const [line] = await logged(id, 1);
    assert.deepEqual([line.outcome, line.usage, line.output_tokens], ["success", "exact", 8]);
  });
}

test("ten streams in a row all end well", async () => {
  const api = client();
  const ids = Array.from({ length: 10 }, marker);
  for (const id of ids) {
    const stream = await api.chat.completions.create(
      { ...EXACT, stream: true },
      { headers: { "x-request-id": id } },
    );
    for await (const chunk of stream) assert.ok(chunk.id);
  }
  for (const id of ids) {
    const [line] = await logged(id, 1);
    assert.deepEqual([line.outcome, line.usage, line.output_tokens], ["success", "exact", 8]);
  }
});

test("stream helper, tools", async () => {
  const parameters = { type: "object", properties: { word: { type: "string" } } };
  const tools = [{ type: "function", function: { name: "lookup", parameters } }];
  const ask = { ...CHAT, max_tokens: 300, tools, tool_choice: "required" };
  const final = await client().chat.completions.stream(ask).finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(call.function.name, "lookup");
  assert.ok("word" in JSON.parse(call.function.arguments));
});

test("responses", async () => {
  const ask = { model: "fast", input: "kalo mine", max_output_tokens: 500 };
  const answer = await client().responses.create(ask);
  const stream = await client().responses.create({ ...ask, stream: true });
  const types = [];
  let text = "";
  for await (const event of stream) {
    types.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, answer.output_text);
  assert.deepEqual([types[0], types.at(-1)], ["response.created", "response.completed"]);
});

test("embeddings, completions, models", async () => {
  const api = client();
  const { data } = await api.embeddings.create({ model: "fast", input: ["kalo", "mine"] });
  assert.equal(data.length, 2);
  const completion = await api.completions.create({ model: "fast", prompt: "kalo", max_tokens: 4, ignore_eos: true });
  assert.equal(completion.usage.completion_tokens, 4);
  const names = [];
  for await (const model of api.models.list()) names.push(model.id);
  assert.ok(names.includes("fast") && names.includes("gpt-4o"));
  assert.equal((await api.models.retrieve("gpt-4o")).root, "fast");
});

test("raw headers", async () => {
  const id = marker();
  const call = client().chat.completions.create(CHAT, { headers: { "x-request-id": id } });
  const { response, request_id } = await call.withResponse();
  assert.equal(request_id, id);
  assert.match(response.headers.get("server-timing"), /^queue;dur=[\d.]+, connect;dur=[\d.]+, engine;dur=[\d.]+$/);
});

const REFUSED = {
  "prompt too long": [
    { messages: [{ role: "user", content: "mine ".repeat(8000) }] },
    "BadRequestError",
    400,
    "context_length_exceeded",
  ],
  "unknown model": [{ model: "no-such-model" }, "NotFoundError", 404, "model_not_found"],
  "class not allowed": [
    {},
    "PermissionDeniedError",
    403,
    "class_not_allowed",
    { "x-penstock-class": "batch" },
    "limited",
  ],
  "bad field": [{ max_tokens: "many" }, "BadRequestError", 400, "invalid_value"],
  "body too large": [
    { messages: [{ role: "user", content: "x".repeat(8_000_000) }] },
    "APIError",
    413,
    "body_too_large",
  ],
  "unknown key": [
    {},
    "AuthenticationError",
    401,
    "invalid_api_key",
    { authorization: "Bearer pst_nosuchkey" },
  ],
  "missing key": [{}, "AuthenticationError", 401, "missing_api_key", { authorization: null }],
};
for (const name of Object.keys(REFUSED)) {
  test(`refused once: ${name}`, async () => {
    const [body, kind, status, code, headers, tenant] = REFUSED[name];
    const [recorder, id] = [new Recorder(), marker()];
    const api = recorded(recorder, tenant);
    const call = api.chat.completions.create({ ...CHAT, ...body }, { headers: { "x-request-id": id, ...headers } });
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof openai[kind], String(error));
      assert.deepEqual([error.status, error.code, error.requestID], [status, code, id]);
      return true;
    });
    recorder.assertFinal(status);
    const [line] = await logged(id, 1);
    assert.deepEqual([line.outcome, line.reason], ["client_error", code]);
  });
}

test("a full queue is tried again when told", async () => {
  const ask = { ...CHAT, model: "busy-node", max_tokens: 1 };
  const [recorder, id] = [new Recorder(), marker()];
  let waiting;
  await whileBusy(async () => {
    waiting = client("tight").chat.completions.create(ask);
    await until(async () => (await metric("penstock_queue_depth", { tenant: "tight" })) === 1, "one request waits");
    const call = recorded(recorder, "tight").chat.completions.create(ask, { headers: { "x-request-id": id } });
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof openai.InternalServerError);
      assert.deepEqual([error.status, error.code], [503, "slow_down"]);
      return true;
    });
  });
  recorder.assertRetried(503);
  await logged(id, 3);
  assert.equal((await waiting).usage.completion_tokens, 1);
});

test("the longest wait of a class ends in the queue", async () => {
  const ask = { ...CHAT, model: "busy-node", stream: true };
  const recorder = new Recorder();
  await whileBusy(() =>
    assert.rejects(recorded(recorder, "hasty").chat.completions.create(ask), (error) => {
      assert.deepEqual([error.status, error.code], [503, "slow_down"]);
      return true;
    }),
  );
  recorder.assertRetried(503);
});

test("the answer comes before the SDK's own timeout", async () => {
  const recorder = new Recorder();
  const api = recorded(recorder, "team", { maxRetries: 0 });
  const ask = { ...CHAT, model: "busy-node" };
  await whileBusy(() =>
    assert.rejects(api.chat.completions.create(ask, { timeout: 2000 }), (error) => {
      assert.deepEqual([error.status, error.code], [504, "deadline_unmeetable"]);
      return true;
    }),
  );
  assert.equal(recorder.attempts.length, 1);
});

test("engines that all fail", async () => {
  const [recorder, id] = [new Recorder(), marker()];
  await withFault({ kind: "status", status: 500 }, async () => {
    const ask = { ...CHAT, model: "brittle" };
    const call = recorded(recorder).chat.completions.create(ask, { headers: { "x-request-id": id } });
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof openai.InternalServerError);
      assert.deepEqual([error.status, error.code], [502, "upstream_failed"]);
      return true;
    });
  });
  recorder.assertFinal(502);
  const [line] = await logged(id, 1);
  assert.equal(line.attempts, 2);
});

test("a quota that is spent is not asked again", async () => {
  const [recorder, id] = [new Recorder(), marker()];
  await client("spent-node").chat.completions.create(CHAT);
  const call = recorded(recorder, "spent-node").chat.completions.create(CHAT, { headers: { "x-request-id": id } });
  await assert.rejects(call, (error) => {
    assert.ok(error instanceof openai.RateLimitError);
    assert.deepEqual([error.status, error.code, error.type], [429, "insufficient_quota", "insufficient_quota"]);
    assert.match(error.message, /The limit of your tenant is 1 request a day: 0 requests left/);
    assert.equal(error.requestID, id);
    return true;
  });
  recorder.assertFinal(429);
  const [line] = await logged(id, 1);
  assert.deepEqual([line.reason, line.attempts], ["quota_spent", 0]);
});

test("a minute's limit says when to come back", async () => {
  const api = client("minute-node", { maxRetries: 0 });
  for (const left of ["1", "0"]) {
    const { response } = await api.chat.completions.create(CHAT).withResponse();
    assert.equal(response.headers.get("x-ratelimit-remaining-requests"), left);
    assert.equal(response.headers.get("x-ratelimit-limit-tokens"), "10000");
  }
  await until(async () => (await metric("penstock_replica_running", { pool: "fast" })) === 0, "both are settled");
  await assert.rejects(api.chat.completions.create(CHAT), (error) => {
    assert.ok(error instanceof openai.RateLimitError);
    assert.equal(error.code, "rate_limit_exceeded");
    const told = Number(error.headers.get("retry-after-ms"));
    assert.ok(told > 45_000 && told <= 60_000, String(told));
    assert.match(error.message, /is 2 requests a minute: 0 requests left/);
    return true;
  });
});

test("a place that is taken is asked for again when told", async () => {
  const ask = { ...CHAT, model: "busy-held-node", ignore_eos: true };
  const recorder = new Recorder();
  const stream = await client("held-node").chat.completions.create({ ...ask, max_tokens: 3000, stream: true });
  await stream[Symbol.asyncIterator]().next();
  await assert.rejects(recorded(recorder, "held-node").chat.completions.create(ask), (error) => {
    assert.ok(error instanceof openai.RateLimitError);
    assert.equal(error.code, "rate_limit_exceeded");
    assert.match(error.message, /1 request at a time/);
    return true;
  });
  recorder.assertRetried(429);
  stream.controller.abort();
});

for (const name of ["expired", "token_expired", "token_audience", "token_signature", "token_none", "token_confused", "token_too_long"]) {
  test(`a credential that does not hold: ${name}`, async () => {
    const recorder = new Recorder();
    await assert.rejects(recorded(recorder, name).chat.completions.create(CHAT), (error) => {
      assert.ok(error instanceof openai.AuthenticationError);
      assert.equal(error.code, "invalid_api_key");
      assert.equal(error.message.includes("expired"), name.endsWith("expired"));
      return true;
    });
    recorder.assertFinal(401);
  });
}

test("a token that holds", async () => {
  const id = marker();
  await client("right").chat.completions.create(CHAT, { headers: { "x-request-id": id } });
  const [line] = await logged(id, 1);
  assert.equal(line.tenant, "team");
});

for (const kind of ["cut", "error_event", "engine_dead", "abort", "no_finish", "malformed_chunk", "silent"]) {
  for (const call of ["chat", "responses"]) {
    test(`a ${call} stream that breaks raises: ${kind}`, async () => {
      const [recorder, seen] = [new Recorder(), []];
      await withFault({ kind, after_tokens: 20 }, async () => {
        const api = recorded(recorder);
        const common = { model: "brittle", stream: true, ignore_eos: true };
        const stream =
          call === "chat"
            ? await api.chat.completions.create({ ...common, messages: MESSAGES, max_tokens: 50 })
            : await api.responses.create({ ...common, input: "kalo", max_output_tokens: 50 });
        const read = async () => {
          for await (const chunk of stream) seen.push(chunk);
        };
        await assert.rejects(read(), (error) => {
          assert.ok(error instanceof openai.APIError, String(error));
          assert.equal(error.code, "upstream_broken");
          return true;
        });
      });
      assert.ok(seen.length > 0);
      assert.equal(recorder.attempts.length, 1);
    });
  }
}
