// pg-boss behind the sub-commands that every peer of this benchmark has.
//
// Settings: batches, fetched without a pause while they come back full (`burstWhenBatchFull`);
// for latency a queue with `notify`, and `useListenNotify`. Maintenance, schedules and monitoring
// are off: they are no part of what is measured.
import { readFileSync } from "node:fs";
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { PgBoss } from "pg-boss";

const connectionString = process.env.DATABASE_URL;
const QUEUE = "noop";

const payload = (n) => ({ n, email: "someone@example.com", template: "welcome" });
const tell = (figures) => console.log(JSON.stringify(figures));

async function start(options = {}) {
  const boss = new PgBoss({ connectionString, supervise: false, schedule: false, ...options });
  boss.on("error", (error) => {
    console.error(error);
    process.exit(1);
  });
  await boss.start();
  return boss;
}

/** What is installed, not what was asked for. */
function version() {
  const file = new URL("node_modules/pg-boss/package.json", import.meta.url);
  const { version } = JSON.parse(readFileSync(file, "utf8"));
  tell({ version: `pg-boss ${version}, Node ${process.versions.node}` });
}

async function setup() {
  const boss = await start();
  await boss.createQueue(QUEUE);
  await boss.stop({ graceful: false });
}

/** Bulk: `insert`, a thousand jobs per statement. */
async function fill(rows) {
  const boss = await start();
  for (let from = 0; from < rows; from += 1000) {
    const length = Math.min(1000, rows - from);
    await boss.insert(QUEUE, Array.from({ length }, (_, i) => ({ data: payload(from + i) })));
  }
  await boss.stop({ graceful: false });
}

/** From the call that starts the workers until the last row is completed. */
async function drain() {
  const watch = new pg.Client({ connectionString });
  await watch.connect();
  const live = "FROM pgboss.job WHERE state < 'completed'";
  const wanted = (await watch.query(`SELECT count(*)::int AS n ${live}`)).rows[0].n;
  const boss = await start({ max: 10 });
  let done = 0;
  let allRan;
  const ran = new Promise((resolve) => (allRan = resolve));
  const started = performance.now();
  await boss.work(
    QUEUE,
    { batchSize: 1000, localConcurrency: 4, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true },
    async (jobs) => {
      done += jobs.length;
      if (done >= wanted) allRan();
    },
  );
  await ran;
  while ((await watch.query(`SELECT EXISTS (SELECT ${live}) AS any`)).rows[0].any) await sleep(2);
  tell({ rows: done, seconds: (performance.now() - started) / 1000 });
  await boss.stop({ graceful: false });
  await watch.end();
}

/** The documented way to enqueue in one's own transaction: `send` with `db`. */
async function enqueue(clients, seconds) {
  const boss = await start();
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
      const db = { executeSql: (text, values) => client.query(text, values) };
      while (performance.now() < end) {
        await client.query("BEGIN");
        await boss.send(QUEUE, payload(committed), { db });
        await client.query("COMMIT");
        committed++;
      }
    }),
  );
  tell({ per_second: (committed * 1000) / (performance.now() - started) });
  await boss.stop({ graceful: false });
  await Promise.all(connections.map((client) => client.end()));
}

/** From the call that enqueues to the first line of the handler, on one clock. */
async function latency(rate, seconds) {
  const total = Math.round(rate * seconds);
  const called = new Float64Array(total);
  const waited = [];
  let allRan;
  const ran = new Promise((resolve) => (allRan = resolve));
  const boss = await start({ useListenNotify: true, max: 10 });
  const queue = "noop-notified";
  await boss.createQueue(queue, { notify: true });
  await boss.work(
    queue,
    { batchSize: 10, localConcurrency: 4, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 },
    async (jobs) => {
      const now = performance.now();
      for (const { data } of jobs) waited.push(now - called[data.n]);
      if (waited.length === total) allRan();
    },
  );
  const client = new pg.Client({ connectionString });
  await client.connect();
  const db = { executeSql: (text, values) => client.query(text, values) };
  await sleep(1000); // Listening, and connected.
  const started = performance.now();
  for (let n = 0; n < total; n++) {
    const pause = started + (n * 1000) / rate - performance.now();
    if (pause > 0) await sleep(pause);
    called[n] = performance.now();
    await boss.send(queue, payload(n), { db });
  }
  const elapsed = (performance.now() - started) / 1000;
  await ran;
  waited.sort((a, b) => a - b);
  const quantile = (q) => waited[Math.min(total - 1, Math.floor(q * total))];
  tell({ p50_ms: quantile(0.5), p99_ms: quantile(0.99), jobs: total, per_second: total / elapsed });
  await client.end();
  await boss.stop({ graceful: false });
}

const commands = { version, setup, fill, drain, enqueue, latency };
const [name, ...rest] = process.argv.slice(2);
if (!Object.hasOwn(commands, name ?? "")) {
  console.error(`usage: ${Object.keys(commands).join(" | ")}`);
  process.exit(2);
}
await commands[name](...rest.map(Number));
process.exit(0);
