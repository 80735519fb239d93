// `node benchmarks/node/driver.mjs NAME` calls the functions of a peer's module that is written for Node.
//
// It speaks the protocol of `benchmarks/driver.py`: a call in each line of standard input, a response in each line of
// standard output.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { now } from "./probe.mjs";

// Standard output is for responses only.
const respond = (response) => process.stdout.write(`${JSON.stringify(response)}\n`);
console.log = console.info = console.error;

const sleeping = new Int32Array(new SharedArrayBuffer(4));

/** Enqueue one by one, with pauses of `pause` seconds, and return the start time of each call. */
async function send_each(module, { first, count, pause }) {
  const calledAt = [];
  for (let number = first; number < first + count; number += 1) {
    // Vary the pause, so that it never aligns with a peer's polling interval.
    if (pause) await sleep(1_000 * pause * (0.5 + ((number * 0.6180339887) % 1)));
    calledAt.push(now());
    await module.send({ number });
  }
  return calledAt;
}

/** Enqueue every task of this sender when it is due; the arguments are those of `send_on_time()` in `driver.py`. */
async function send_on_time(module, { first, count, start, rate, burst, sender, senders }) {
  const calledAt = [];
  const returnedAt = [];
  for (let index = sender; index < count; index += senders) {
    const wait = start + (Math.floor(index / burst) * burst) / rate - now();
    // A timer has a resolution of 1 ms, which is too coarse.
    if (wait > 0) Atomics.wait(sleeping, 0, 0, 1_000 * wait);
    calledAt.push(now());
    await module.send({ number: first + index });
    returnedAt.push(now());
  }
  return [calledAt, returnedAt];
}

/** Return the function that a call names. */
function find(module, name) {
  if (name === "send_each") return (given) => send_each(module, given);
  if (name === "send_on_time") return (given) => send_on_time(module, given);
  if (name === "add_sent") return () => null;
  if (!(name in module)) throw new Error(`no function ${name}`);
  return module[name];
}

async function handleCall(module, { do: name, with: given }) {
  const began = now();
  try {
    const value = (await find(module, name)(given)) ?? null;
    return { value, seconds: now() - began };
  } catch (error) {
    return { error: String(error?.stack ?? error) };
  }
}

let module;
try {
  module = await import(`./${process.argv[2]}.mjs`);
} catch (error) {
  respond({ error: String(error?.stack ?? error) });
  process.exit(1);
}
respond({ value: "ready", seconds: 0 });
for await (const line of createInterface({ input: process.stdin })) {
  respond(await handleCall(module, JSON.parse(line)));
}
process.exit(0);
