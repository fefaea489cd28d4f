"""What-if runs: a policy or settings on the recorded queue, each in a process of its own, few at once and not for long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from synergy_core.errors import SynergyError, UsageError, one_line
from synergy_core.wire.codec import decode

from synergyd.settings import SETTINGS, Settings
from synergyd.views.what_if import KEYS, WhatIfFigures, WhatIfJson, WhatIfSetting

log = logging.getLogger("synergyrestd")
AT_ONCE = 2  # of all users; the machine is the daemon's
WAITING = 32  # for their turn, one of a user
LIVE = ("waiting", "running")
MOST_S = 600.0
KEPT = 64  # users whose last run is remembered
MAX_VALUE = 40  # characters of a setting's value
MAX_LINE_BYTES = 65_536
CHILD = "synergy_sim.cli.what_if"
_REFERENCE = re.compile(r" \(docs/[^)]*\)")  # of a setting's text to a page, which a reader of this one does not have


class BusyError(SynergyError):
    """The refusal of a request for now: answered with 429."""


def read_request(body: object) -> WhatIfJson:
    """Return the run that a request's body asks for. Raises UsageError."""
    if not isinstance(body, Mapping) or not set(body) <= {"policy", "settings"}:
        raise UsageError("body", "is no JSON object of policy and settings", 'send {"settings": {"Fairness": "-2"}}')
    policy, settings = body.get("policy", ""), body.get("settings", {})
    if not isinstance(policy, str) or not (policy == "" or policy.replace("-", "").isalnum()) or len(policy) > 40:
        raise UsageError("policy", "is no policy's name", "leave it out for the one that runs")
    if not isinstance(settings, Mapping):
        raise UsageError("settings", "is no JSON object", 'send {"Fairness": "-2"}')
    pairs = []
    for key, value in settings.items():
        if key not in KEYS or not isinstance(value, str) or len(value) > MAX_VALUE or not value.isprintable():
            right = f"some of {', '.join(KEYS)}, each a text as in slurm.conf"
            raise UsageError("settings", f"{one_line(str(key), 40)!r} can't be tried", right)
        if " " in value or not value:
            raise UsageError("settings", f"{key} has no value or a blank in it", "give one value, as in slurm.conf")
        pairs.append(f"{key}={value}")
    if not policy and not pairs:
        raise UsageError("body", "says nothing to try", "name a policy or a setting")
    return WhatIfJson(state="waiting", policy=policy, settings=tuple(pairs), started_s=time.time())


class WhatIfs:
    """The what-if runs of all users, AT_ONCE at a time, one for each user.

    They run in the order in which they were asked for: a user who asks again comes behind all others that wait. In the event
    loop's thread.
    """

    def __init__(self, settings: Settings, conf: Path | None = None) -> None:
        self._settings, self._conf = settings, conf
        self._runs: dict[str, WhatIfJson] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)  # first come, first served

    def last_run(self, user: str) -> WhatIfJson:
        """Return the user's last run."""
        return self._runs.get(user, WhatIfJson(state="none"))

    def present(self) -> tuple[WhatIfSetting, ...]:
        """Return what can be tried as it is set now, the policy first."""
        by_key = {setting.key: setting for setting in SETTINGS}
        return tuple(
            WhatIfSetting(
                key=key,
                value=by_key[key].type.write(getattr(self._settings, by_key[key].field)),
                takes=by_key[key].type.takes,
                text=_REFERENCE.sub("", by_key[key].text),
            )
            for key in ("Policy", *KEYS)
        )

    async def start(self, user: str, run: WhatIfJson) -> WhatIfJson:
        """Begin the run, or have it wait for its turn. Raises BusyError if the user's last one has not ended, or too many wait."""
        if (last := self._tasks.get(user)) is not None and self.last_run(user).state not in LIVE:
            await asyncio.wait([last])  # its process is being ended
        if user in self._tasks:
            raise BusyError("what-if", "your last one still runs", "wait for its end, or stop it")
        if len(self._tasks) >= AT_ONCE + WAITING:
            raise BusyError("what-if", f"{WAITING} of others wait already", "try again in some minutes")
        self._runs.pop(user, None)
        self._runs[user] = run
        for other in list(self._runs)[: max(0, len(self._runs) - KEPT)]:
            if other not in self._tasks:
                del self._runs[other]
        self._tasks[user] = task = asyncio.create_task(self._follow(user))
        task.add_done_callback(lambda _: self._tasks.pop(user))  # also one that was stopped before it began
        return run

    async def stop(self, user: str) -> WhatIfJson:
        """End the user's run if it has not ended. Return the run."""
        if (task := self._tasks.get(user)) is not None:
            if self.last_run(user).state in LIVE:
                self._ends(user, "stopped", "")
                task.cancel()  # once: a second time would break off the end of its process
            await asyncio.wait([task])
        return self.last_run(user)

    async def close(self) -> None:
        for user in list(self._tasks):
            await self.stop(user)

    async def _follow(self, user: str) -> None:
        async with self._turns:
            self._runs[user] = replace(self._runs[user], state="running", started_s=time.time())
            await self._carry_out(user)

    async def _carry_out(self, user: str) -> None:
        creating = asyncio.ensure_future(_child())
        try:
            async with asyncio.timeout(MOST_S):
                await self._converse(user, await asyncio.shield(creating))
        except TimeoutError:
            self._ends(user, "failed", f"it took longer than {MOST_S:.0f} s and was ended")
        except asyncio.CancelledError:
            if self._runs[user].state == "running":
                self._ends(user, "stopped", "")
            raise
        except Exception as error:  # its own fault or the machine's; the service goes on
            log.warning("what-if of %s: %s", user, error)
            self._ends(user, "failed", one_line(str(error) or type(error).__name__, 200))
        finally:
            with contextlib.suppress(OSError):  # where it could not be started
                await _end(await creating)

    async def _converse(self, user: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        run = self._runs[user]
        question = {
            "conf": str(self._conf) if self._conf else "",
            "database": self._settings.database_url(),  # may hold a password: never on a command line
            "policy": run.policy,
            "settings": run.settings,
        }
        process.stdin.write(json.dumps(question).encode() + b"\n")
        await process.stdin.drain()  # and stays open: the child ends when this process does
        while line := await process.stdout.readline():
            self._take(user, json.loads(line))
        code = await process.wait()
        if self._runs[user].state == "running":
            self._ends(user, "failed", f"its process ended with {code} before it was done")

    def _take(self, user: str, message: Mapping[str, Any]) -> None:
        run = self._runs[user]
        if "problem" in message:
            self._ends(user, "failed", one_line(str(message["problem"]), 500))
        elif "figures" in message:
            figures = tuple(decode(WhatIfFigures, each, "what-if") for each in message["figures"])
            self._runs[user] = replace(run, state="done", share=1.0, figures=figures, left_out=message["left_out"])
        else:
            self._runs[user] = replace(run, share=float(message["share"]))

    def _ends(self, user: str, state: str, problem: str) -> None:
        self._runs[user] = replace(self._runs[user], state=state, problem=problem)


async def _child() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", CHILD),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        limit=MAX_LINE_BYTES,
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process with all that it started, and wait for its end."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.stdin.close()
    with contextlib.suppress(ValueError):  # a line beyond the bound
        while await process.stdout.read(MAX_LINE_BYTES):
            pass
    await process.wait()
