// The gateway under test, its engines and its log, as test_node.py started them.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test as nodeTest } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import assert from "node:assert/strict";

const given = JSON.parse(process.env.PENSTOCK_TEST);
const require = createRequire(`${given.packages}/`);
export const { OpenAI } = require("openai");
export const openai = require("openai");
export const anthropic = require("@anthropic-ai/sdk");
export const { url, keys } = given;

/** Like node's; when only the names are asked for, prints its name. */
export const test = given.list ? (name) => console.log(name) : nodeTest;

export const MESSAGES = [{ role: "user", content: "kalo mine pura sito vezu." }];

export const marker = () => `sdk-${randomUUID()}`;

/** Waits for `check()` to be true and returns its value. */
export async function until(check, what, seconds = 20) {
  const deadline = Date.now() + seconds * 1000;
  while (Date.now() < deadline) {
    const value = await check();
    if (value) return value;
    await sleep(10);
  }
  throw new Error(`after ${seconds} s still not: ${what}`);
}

/** The log lines of a request that must have been sent `count` times. */
export async function logged(id, count) {
  const read = () =>
    readFileSync(given.log, "utf8")
      .split("\n")
      // The last line may be half written.
      .slice(0, -1)
      .filter((line) => line.includes(`"${id}"`))
      .map((line) => JSON.parse(line))
      .filter((line) => line.target === "penstock::request");
  const lines = await until(() => {
    const found = read();
    return found.length >= count && found;
  }, `${count} log lines of ${id}`);
  assert.equal(lines.length, count);
  return lines;
}

/** Gauges and counters of the gateway whose labels contain all of `labels`. */
export async function metric(name, labels = {}) {
  const text = await (await fetch(`${given.admin}/metrics`)).text();
  const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
  return text
    .split("\n")
    .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
    .filter((line) => wanted.every((label) => line.includes(label)))
    .reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

async function control(method, body) {
  for (const engine of given.brittle) {
    const answer = await fetch(`${engine}/sim/faults`, { method, body: body && JSON.stringify(body) });
    assert.equal(answer.status, 200);
  }
}

/** Gives the fault to both engines of `brittle` while `run` runs. */
export async function withFault(fault, run) {
  await until(async () => {
    const states = ["serving", "slow_start"].map((state) =>
      metric("penstock_replica_state", { pool: "brittle", state }),
    );
    const [serving, starting] = await Promise.all(states);
    return serving + starting === given.brittle.length;
  }, "both replicas of `brittle` are in service");
  await control("POST", fault);
  try {
    return await run();
  } finally {
    await control("DELETE");
  }
}

/** What an SDK really sends, by the `fetch` that it is given. */
export class Recorder {
  attempts = [];

  fetch = async (input, init) => {
    const attempt = { sent: performance.now() };
    this.attempts.push(attempt);
    const answer = await fetch(input, init);
    Object.assign(attempt, { answered: performance.now(), status: answer.status, headers: answer.headers });
    return answer;
  };

  /** One attempt, and the answer forbade another. */
  assertFinal(status) {
    assert.deepEqual(this.attempts.map((attempt) => attempt.status), [status]);
    const { headers } = this.attempts[0];
    assert.equal(headers.get("x-should-retry"), "false");
    assert.equal(headers.get("retry-after") ?? headers.get("retry-after-ms"), null);
  }

  /** Three attempts, each after the pause that the answer asked for. */
  assertRetried(status) {
    assert.deepEqual(this.attempts.map((attempt) => attempt.status), [status, status, status]);
    for (const [index, { headers, answered }] of this.attempts.entries()) {
      const told = Number(headers.get("retry-after-ms"));
      assert.equal(headers.get("x-should-retry"), "true");
      assert.ok(told >= 1000 && told <= 60_000);
      assert.equal(Number(headers.get("retry-after")), Math.ceil(told / 1000));
      if (index === 2) continue;
      const slept = this.attempts[index + 1].sent - answered;
      // A busy machine wakes it late.
      assert.ok(told <= slept + 20 && slept <= told + 20_000, `told ${told}, slept ${slept}`);
    }
  }
}

/** Takes the only sequence of `busy-node`, with its pace known, while `run` runs. */
export async function whileBusy(run) {
  const api = new OpenAI({ baseURL: `${url}/v1`, apiKey: keys.team, maxRetries: 0 });
  const ask = { model: "busy-node", messages: MESSAGES, ignore_eos: true };
  for (let count = 0; count < 4; count += 1) {
    await api.chat.completions.create({ ...ask, max_tokens: 1 });
  }
  const stream = await api.chat.completions.create({ ...ask, max_tokens: 3000, stream: true });
  const events = stream[Symbol.asyncIterator]();
  await events.next();
  try {
    return await run();
  } finally {
    stream.controller.abort();
  }
}
