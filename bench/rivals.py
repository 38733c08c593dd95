"""The rivals, each in a process of its own: bare httpx, Procrastinate, raw Django-Q2.

`python -m bench.rivals ROLE '{...}'` does the role's work and prints one line of JSON, in which
`end` is the moment the last result was stored, on the clock all processes share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

from bench.client import Client, Plain, key, thing

IN_FLIGHT = 50


async def bare_httpx(url: str, n: int, pools: int, size: int) -> dict[str, Any]:
    """httpx as it comes: `pools` clients of `size` connections each, as many calls at once."""
    import httpx

    limits = httpx.Limits(max_connections=size, max_keepalive_connections=size)
    clients = [httpx.AsyncClient(limits=limits, trust_env=False) for _ in range(pools)]
    numbers = iter(range(n))

    async def work(client: httpx.AsyncClient) -> None:
        for number in numbers:
            answer = await client.post(
                f"{url}/things", json=thing(number), headers={"idempotency-key": key(number)}
            )
            answer.raise_for_status()
            answer.json()

    await asyncio.gather(*(work(client) for client in clients for _ in range(size)))
    end = time.monotonic()
    for client in clients:
        await client.aclose()
    return {"end": end}


async def procrastinate(url: str, n: int, database: str, concurrency: int) -> dict[str, Any]:
    """One Procrastinate worker; its jobs are deferred before it starts."""
    import procrastinate as rival
    import psycopg

    app = rival.App(connector=rival.PsycopgConnector(conninfo=database, min_size=1, max_size=10))
    client = Client(url)

    @app.task(name="thing")
    async def create(number: int) -> Any:
        return await client.post(number)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for begin in range(0, n, 500):
            batch: list[Any] = [{"number": one} for one in range(begin, min(begin + 500, n))]
            await create.batch_defer_async(*batch)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("ANALYZE procrastinate_jobs")
        await app.run_worker_async(
            concurrency=concurrency,
            wait=False,
            listen_notify=False,
            install_signal_handlers=False,
        )
        end = time.monotonic()
        with psycopg.connect(database) as connection:
            done = connection.execute(
                "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
            ).fetchone()
    if done is None or done[0] != n:
        raise RuntimeError(f"Procrastinate finished {done} of {n}")
    return {"end": end}


_plain: dict[str, Plain] = {}


def q2_call(url: str, number: int) -> Any:
    """The task of raw Django-Q2: one call over this worker's kept connection."""
    if url not in _plain:
        _plain[url] = Plain(url)
    return _plain[url].post(number)


def q2_enqueue(url: str, n: int) -> dict[str, Any]:
    """Queue the tasks, in transactions of fifty; the cluster is started by the bench."""
    import django

    django.setup()
    from django.db import connection, transaction
    from django_q.tasks import async_task

    for begin in range(0, n, 50):
        with transaction.atomic():
            for number in range(begin, min(begin + 50, n)):
                async_task("bench.rivals.q2_call", url, number)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_q_ormq")
    return {}


def main() -> None:
    """Do one role."""
    logging.disable(logging.INFO)
    role, given = sys.argv[1], json.loads(sys.argv[2])
    match role:
        case "httpx":
            told = asyncio.run(bare_httpx(**given))
        case "procrastinate":
            told = asyncio.run(procrastinate(database=os.environ["BENCH_DATABASE"], **given))
        case "q2":
            told = q2_enqueue(**given)
        case _:
            raise SystemExit(f"no such role: {role}")
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
