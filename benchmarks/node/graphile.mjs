// graphile-worker. The variant "tuned" has the options of its page about performance.
//
// `peers/__init__.py` documents the functions. `node benchmarks/node/graphile.mjs JOBS` runs a worker process.

import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

import { mark, sleep } from "./probe.mjs";

// An import finds packages only beside this file, but npm has installed them in a folder of the benchmark.
const resolve = createRequire(`${process.env.BENCHMARK_PACKAGES}/`).resolve;
const imported = await import(pathToFileURL(resolve("graphile-worker")));
const { Logger, makeWorkerUtils, run } = imported.default ?? imported;

const TUNED = process.env.BENCHMARK_VARIANT === "tuned";

// Its default is 1. Its page about performance begins with 10, and has 24 in the fastest set-up.
const JOBS = TUNED ? 24 : 10;

const FASTEST = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

// Jobs of a bulk enqueue.
const CHUNK = 1_000;

const connectionString = process.env.BENCHMARK_DATABASE;
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});

let opened;

function utils() {
  opened ??= makeWorkerUtils({ connectionString, logger });
  return opened;
}

export async function setup() {
  await (await utils()).migrate();
}

export async function send({ number }) {
  await (await utils()).addJob("noop", { number });
}

export async function send_many({ first, count, body }) {
  await addMany(count, (index) => ({ identifier: body, payload: { number: first + index } }));
}

export async function clear_tasks() {
  await query("TRUNCATE graphile_worker._private_jobs");
}

export async function preload({ kind, count, number }) {
  // It deletes finished jobs.
  if (kind === "finished") return;
  const job = { identifier: kind === "unserved" ? "other" : "noop", payload: { number } };
  // A lower number is a higher priority.
  if (kind === "scheduled") job.priority = -100;
  if (kind === "scheduled" || kind === "retrying") job.runAt = new Date(Date.now() + 86_400_000);
  await addMany(count, () => job);
}

export async function count_unfinished() {
  const { rows } = await query("SELECT count(*)::int AS unfinished FROM graphile_worker._private_jobs");
  return rows[0].unfinished;
}

export function worker_commands({ processes, slots }) {
  const jobs = slots ?? JOBS;
  const command = [process.execPath, fileURLToPath(import.meta.url), String(jobs)];
  return [Array.from({ length: processes }, () => command), jobs * processes];
}

async function addMany(count, job) {
  const { addJobs } = await utils();
  for (let start = 0; start < count; start += CHUNK) {
    await addJobs(Array.from({ length: Math.min(CHUNK, count - start) }, (_, index) => job(start + index)));
  }
}

async function query(sql) {
  return (await utils()).withPgClient((client) => client.query(sql));
}

async function work(concurrentJobs) {
  const worker = { connectionString, logger, concurrentJobs, ...(TUNED && { maxPoolSize: 25, ...FASTEST }) };
  const taskList = { noop: ({ number }) => mark(number), sleep: ({ number }) => sleep(number) };
  const runner = await run({ preset: { worker }, taskList, parsedCronItems: [] });
  await runner.promise;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await work(Number(process.argv[2]));
