// graphile-worker (Node) behind the sub-commands that every peer of this benchmark has.
//
// Settings, after the documentation of its options; the numbers are ours: jobs are fetched in batches (`localQueue.size`) and
// completed in batches (`completeJobBatchDelay`), without the refetch delay, which is for many
// instances. For latency neither is on: a notification starts the job at once.
import { readFileSync } from "node:fs";
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

const connectionString = process.env.DATABASE_URL;
const TASK = "noop";
const silent = new Logger(() => () => {});
const base = { connectionString, logger: silent, noHandleSignals: true, crontab: "" };

const payload = (n) => ({ n, email: "someone@example.com", template: "welcome" });
const tell = (figures) => console.log(JSON.stringify(figures));

/** What is installed, not what was asked for. */
function version() {
  const file = new URL("node_modules/graphile-worker/package.json", import.meta.url);
  const { version } = JSON.parse(readFileSync(file, "utf8"));
  tell({ version: `graphile-worker ${version}, Node ${process.versions.node}` });
}

async function setup() {
  const utils = await makeWorkerUtils({ connectionString, logger: silent });
  await utils.migrate();
  await utils.release();
}

/** Bulk: `addJobs`, a thousand jobs per statement. */
async function fill(rows) {
  const utils = await makeWorkerUtils({ connectionString, logger: silent });
  for (let from = 0; from < rows; from += 1000) {
    const length = Math.min(1000, rows - from);
    await utils.addJobs(
      Array.from({ length }, (_, i) => ({ identifier: TASK, payload: payload(from + i) })),
    );
  }
  await utils.release();
}

/** From the start of the runner until the last row has left the table. */
async function drain() {
  const watch = new pg.Client({ connectionString });
  await watch.connect();
  const { rows } = await watch.query("SELECT count(*)::int AS n FROM graphile_worker._private_jobs");
  const wanted = rows[0].n;
  let done = 0;
  let allRan;
  const ran = new Promise((resolve) => (allRan = resolve));
  const started = performance.now();
  const runner = await run({
    ...base,
    taskList: {
      [TASK]: () => {
        if (++done === wanted) allRan();
      },
    },
    preset: {
      worker: {
        concurrentJobs: 100,
        maxPoolSize: 26,
        localQueue: { size: 2000 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
  await ran;
  while (true) {
    const left = await watch.query("SELECT EXISTS (SELECT FROM graphile_worker._private_jobs) AS any");
    if (!left.rows[0].any) break;
    await sleep(2);
  }
  tell({ rows: done, seconds: (performance.now() - started) / 1000 });
  await runner.stop();
  await watch.end();
}

/** The documented way to enqueue in one's own transaction: its SQL function, here prepared. */
async function enqueue(clients, seconds) {
  const connections = await Promise.all(
    Array.from({ length: clients }, async () => {
      const client = new pg.Client({ connectionString });
      await client.connect();
      return client;
    }),
  );
  let committed = 0;
  const started = performance.now();
  const end = started + seconds * 1000;
  await Promise.all(
    connections.map(async (client) => {
      while (performance.now() < end) {
        await client.query("BEGIN");
        await client.query({
          name: "add",
          text: "SELECT graphile_worker.add_job($1, $2::json)",
          values: [TASK, JSON.stringify(payload(committed))],
        });
        await client.query("COMMIT");
        committed++;
      }
    }),
  );
  tell({ per_second: (committed * 1000) / (performance.now() - started) });
  await Promise.all(connections.map((client) => client.end()));
}

/** From the call that enqueues to the first line of the handler, on one clock. */
async function latency(rate, seconds) {
  const total = Math.round(rate * seconds);
  const called = new Float64Array(total);
  const waited = [];
  let allRan;
  const ran = new Promise((resolve) => (allRan = resolve));
  const runner = await run({
    ...base,
    taskList: {
      [TASK]: ({ n }) => {
        waited.push(performance.now() - called[n]);
        if (waited.length === total) allRan();
      },
    },
    preset: { worker: { concurrentJobs: 8, maxPoolSize: 10 } },
  });
  const client = new pg.Client({ connectionString });
  await client.connect();
  await sleep(1000); // Listening, and connected.
  const started = performance.now();
  for (let n = 0; n < total; n++) {
    const pause = started + (n * 1000) / rate - performance.now();
    if (pause > 0) await sleep(pause);
    called[n] = performance.now();
    await client.query({
      name: "add",
      text: "SELECT graphile_worker.add_job($1, $2::json)",
      values: [TASK, JSON.stringify(payload(n))],
    });
  }
  const elapsed = (performance.now() - started) / 1000;
  await ran;
  waited.sort((a, b) => a - b);
  const quantile = (q) => waited[Math.min(total - 1, Math.floor(q * total))];
  tell({ p50_ms: quantile(0.5), p99_ms: quantile(0.99), jobs: total, per_second: total / elapsed });
  await client.end();
  await runner.stop();
}

const commands = { version, setup, fill, drain, enqueue, latency };
const [name, ...rest] = process.argv.slice(2);
if (!Object.hasOwn(commands, name ?? "")) {
  console.error(`usage: ${Object.keys(commands).join(" | ")}`);
  process.exit(2);
}
await commands[name](...rest.map(Number));
process.exit(0);
