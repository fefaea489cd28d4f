"""The page in headless Chromium: its weight, and its first paint with many jobs.

    python -m tests.benchmarks.page [--jobs 500] [--nodes 64] [--times 5] [--serve] [--shots DIR]

A made-up day in a database of its own, a service on it in a process of its own, a token as Slurm's auth/jwt makes them. `first paint` is
Chromium's first-contentful-paint, `table` the time until all jobs stand in the tables, both since the navigation began, each time
in a new browser without a cache. --serve: keep serving, and print the address and a token.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jwt
import uvicorn

from synergyd.rest.app import application
from synergyd.rest.caller import SlurmRights
from synergyd.rest.identity import Identity
from synergyd.rest.server import tcp_socket, uvicorn_config
from synergyd.rest.slurm_rights import RightsReader
from synergyd.store.store import open_store
from tests.throwaway.browser import Browser, browser
from tests.throwaway.page_world import fill


class NoRights(RightsReader):
    """Everybody sees all jobs; no Slurm is asked."""

    def __init__(self) -> None:
        pass

    def rights(self) -> SlurmRights:
        return SlurmRights()


def serve(url: str, key: bytes, listener: socket.socket) -> None:
    with open_store(url) as store:
        app = application(store, Identity(jwt_key=key), NoRights())
        uvicorn.Server(uvicorn_config(app)).run(sockets=[listener])


def shoot(tab: Browser, folder: Path, job_id: int) -> None:
    """Every view in both themes."""
    for scheme in ("light", "dark"):
        tab.scheme(scheme)
        for name, address, height in (
            ("now", "#/", 1500),
            ("day", "#/day", 900),
            ("month", "#/month", 560),
            ("job", f"#/jobs/{job_id}", 1250),
        ):
            tab.run("location.hash = arguments[0]", address)
            time.sleep(2)
            tab.run("const group = document.querySelector('details.group'); if (group) group.open = true")
            tab.shoot(folder / f"page-{name}-{scheme}.png", height)
        print(*tab.problems(), sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("jobs", 500), ("nodes", 64), ("times", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--shots", type=Path)
    options = parser.parse_args()
    key = secrets.token_bytes(32)
    token = jwt.encode({"sun": "root", "exp": int(time.time()) + 36_000}, key, algorithm="HS256")
    with tempfile.TemporaryDirectory() as folder, tcp_socket(0) as listener:
        url = f"sqlite:///{folder}/page.db"
        with open_store(url, create=True) as store:
            world = fill(store, nodes=options.nodes, jobs=options.jobs, now_s=time.time())
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        service = multiprocessing.get_context("fork").Process(target=serve, args=(url, key, listener))
        service.start()
        try:
            if options.serve:
                print(address, token, flush=True)
                service.join()
            if options.shots:
                with browser() as tab:
                    tab.open(address, token)
                    time.sleep(3)
                    chosen = max(world.jobs.values(), key=lambda job: (job.restarts, job.gpus))
                    shoot(tab, options.shots, chosen.job_id)
                return 0
            paints, tables, weight = [], [], 0
            for _ in range(options.times):
                with browser() as tab:
                    tab.open(address, token)
                    script = "return document.querySelectorAll('tbody tr').length >= arguments[0] && performance.now()"
                    tables.append(tab.until(script, min(options.jobs, 1000)))  # of more, the tables show the first
                    paints.append(tab.first_paint_ms())
                    weight = sum(tab.transferred().values())
            print(f"{options.jobs} jobs on {options.nodes} nodes, {options.times} times:")
            print(f"first paint p50 {statistics.median(paints):.0f} ms, table p50 {statistics.median(tables):.0f} ms")
            print(f"page weight {weight / 1024:.1f} KiB over the wire")
        finally:
            service.terminate()
            service.join(10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
