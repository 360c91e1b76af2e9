"""procrastinate behind the sub-commands that every peer of this benchmark has.

Settings: asynchronous tasks, many at a time in one worker; finished jobs are deleted, as most
peers do. It fetches and finishes jobs one by one.
"""

import asyncio
import json
import logging
import os
import platform
import sys
import time
from importlib import metadata

import psycopg
from procrastinate import App, PsycopgConnector

URL = os.environ["DATABASE_URL"]
CONCURRENCY = 30

# It warns that the application lives in the main module, which is what a benchmark has.
logging.getLogger("procrastinate").setLevel(logging.ERROR)


def payload(n: int) -> dict[str, object]:
    return {"n": n, "email": "someone@example.com", "template": "welcome"}


def tell(**figures: float) -> None:
    print(json.dumps(figures))


def make_app(connections: int = 4) -> App:
    return App(connector=PsycopgConnector(conninfo=URL, min_size=connections, max_size=connections))


async def version() -> None:
    name = f"procrastinate {metadata.version('procrastinate')}"
    print(json.dumps({"version": f"{name}, Python {platform.python_version()}"}))


async def setup() -> None:
    app = make_app()
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def fill(rows: int) -> None:
    """Bulk: `batch_defer_async`, a thousand jobs per statement."""
    app = make_app()

    @app.task(name="noop")
    async def noop(**_: object) -> None: ...

    async with app.open_async():
        for start in range(0, rows, 1000):
            stop = min(start + 1000, rows)
            await noop.batch_defer_async(*(payload(n) for n in range(start, stop)))


async def drain() -> None:
    """From the start of the worker until the last job has left the table."""
    done = 0
    ran = asyncio.Event()
    app = make_app(CONCURRENCY + 2)
    left = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    @app.task(name="noop")
    async def noop(**_: object) -> None:
        nonlocal done
        done += 1
        if done == wanted:
            ran.set()

    async with app.open_async(), await psycopg.AsyncConnection.connect(URL, autocommit=True) as db:

        async def count() -> int:
            row = await (await db.execute(left)).fetchone()
            return row[0] if row else 0

        wanted = await count()
        started = time.perf_counter()
        worker = asyncio.create_task(
            app.run_worker_async(
                concurrency=CONCURRENCY,
                delete_jobs="always",
                listen_notify=False,
                install_signal_handlers=False,
            )
        )
        await ran.wait()
        while await count() > 0:
            await asyncio.sleep(0.002)
        tell(rows=done, seconds=time.perf_counter() - started)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def enqueue(clients: int, seconds: float) -> None:
    """The documented way to enqueue in one's own transaction: `configure(connection=...)`."""
    app = make_app()

    @app.task(name="noop")
    async def noop(**_: object) -> None: ...

    committed = 0

    async def client(end: float) -> None:
        nonlocal committed
        async with await psycopg.AsyncConnection.connect(URL) as connection:
            while time.perf_counter() < end:
                async with connection.transaction():
                    await noop.configure(connection=connection).defer_async(**payload(committed))
                committed += 1

    async with app.open_async():
        started = time.perf_counter()
        await asyncio.gather(*(client(started + seconds) for _ in range(clients)))
        tell(per_second=committed / (time.perf_counter() - started))


async def latency(rate: float, seconds: float) -> None:
    """From the call that enqueues to the first line of the handler, on one clock."""
    total = round(rate * seconds)
    called = [0.0] * total
    waited: list[float] = []
    ran = asyncio.Event()
    app = make_app(CONCURRENCY + 2)

    @app.task(name="noop")
    async def noop(n: int, **_: object) -> None:
        waited.append((time.perf_counter() - called[n]) * 1000)
        if len(waited) == total:
            ran.set()

    async with app.open_async():
        worker = asyncio.create_task(
            app.run_worker_async(
                concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False
            )
        )
        async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:
            await asyncio.sleep(1)  # Listening, and connected.
            deferrer = noop.configure(connection=connection)
            started = time.perf_counter()
            for n in range(total):
                pause = started + n / rate - time.perf_counter()
                if pause > 0:
                    await asyncio.sleep(pause)
                called[n] = time.perf_counter()
                await deferrer.defer_async(**payload(n))
            elapsed = time.perf_counter() - started
        await ran.wait()
        waited.sort()
        quantile = lambda q: waited[min(total - 1, int(q * total))]
        tell(p50_ms=quantile(0.5), p99_ms=quantile(0.99), jobs=total, per_second=total / elapsed)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


COMMANDS = {f.__name__: f for f in (version, setup, fill, drain, enqueue, latency)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"usage: {' | '.join(COMMANDS)}")
    asyncio.run(COMMANDS[sys.argv[1]](*map(int, sys.argv[2:])))
