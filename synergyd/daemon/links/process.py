"""The link arbiter in a process of its own, fed by the daemon: `python -m synergyd.daemon.links.process FD COUNTS RULE BOUND_S LINK`.

A thread would wait for Python's lock whenever the daemon computes: milliseconds for every all-reduce, where a tenth of one is wanted.
The process takes the running jobs as lines of JSON on its standard input, and ends when that ends, as it does with the daemon's death.
Its counts stand in a file without a name, COUNTS, which the daemon reads whenever it likes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping

from synergy_core.job_report import Report
from synergy_core.records import Job, JobState

from synergyd.daemon.links.arbiter import LinkArbiter, Member, listen
from synergyd.daemon.links.sessions import ArbiterCounts
from synergyd.links.arbiter import make_terms
from synergyd.links.model import Topology, make_link

log = logging.getLogger("synergyd.links")
_RESTART_S = 5.0  # between two starts of a process that ended
_COUNTS_S = 1.0  # between two looks at what was counted
_SWITCH_S = 1e-4  # for which a question waits at most while the look-ahead computes in its thread
_COUNTS = struct.Struct("<5Q")  # the fields of Counts, and the open connections


def members_line(members: Mapping[int, Member]) -> bytes:
    """Return the jobs as one line."""
    return json.dumps([[job_id, *dataclasses.astuple(member)] for job_id, member in members.items()]).encode() + b"\n"


def parse_members_line(line: bytes) -> dict[int, Member]:
    """Return the jobs of a line that `members_line` made."""
    return {
        job_id: Member(uid, restarts, tuple(nodes), gpus, float(left_s))
        for job_id, uid, restarts, nodes, gpus, left_s in json.loads(line)
    }


class LinkProcess:
    """The daemon's end of the process, which is started anew if it ends. While it is away nobody is gated."""

    def __init__(self, host: str, port: int, rule: str, bound_s: float, node_link: str = "10gbe") -> None:
        """Start the process. Raises UsageError when the port can't be had or the rule or the link does not exist."""
        make_terms(rule)
        make_link(node_link)
        self._said = rule, str(bound_s), node_link
        self._listener = listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._counts = os.memfd_create("synergy-links")
        self._before = ArbiterCounts()  # counts of the processes that have ended
        self._newest: Mapping[int, Member] | None = None
        self._closing = False
        self._changed = threading.Condition()
        self.child = self._start()
        self._thread = threading.Thread(target=self._feed, name="link-arbiter", daemon=True)
        self._thread.start()

    def follow(self, members: Mapping[int, Member]) -> None:
        """Replace the jobs by `members`. Never waits: a thread passes the newest on."""
        with self._changed:
            self._newest = dict(members)
            self._changed.notify()

    def close(self) -> None:
        """End the process; every job goes on ungated."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self.child.terminate()  # a write that waits for it ends so, too
        self._thread.join(5.0)
        self._end()
        self._listener.close()
        os.close(self._counts)

    def counts(self) -> tuple[ArbiterCounts, int]:
        """Return the counts since the daemon's start, at most a second old, and the number of open connections. Never waits."""
        raw = os.pread(self._counts, _COUNTS.size, 0)
        *numbers, connections = _COUNTS.unpack(raw) if len(raw) == _COUNTS.size else (0,) * 5
        return ArbiterCounts(*map(int.__add__, dataclasses.astuple(self._before), numbers)), connections

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the child process. Raises OSError."""
        numbers = [self._listener.fileno(), self._counts]
        command = [sys.executable, "-m", "synergyd.daemon.links.process", *map(str, numbers), *self._said]
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=numbers)

    def _end(self) -> None:
        self.child.kill()
        self.child.wait()
        if self.child.stdin is not None:
            with contextlib.suppress(OSError):  # what it did not read is lost with it
                self.child.stdin.close()

    def _feed(self) -> None:
        last: Mapping[int, Member] = {}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._newest is not None, _RESTART_S)
                if self._closing:
                    return
                fresh, self._newest = self._newest, None
            ended = self.child.poll()
            if fresh is None and ended is None:
                continue
            last = last if fresh is None else fresh
            if ended is not None:
                log.warning("the link arbiter ended (%d); it is started again", ended)
                with self._changed:
                    if self._changed.wait_for(lambda: self._closing, _RESTART_S):
                        return
                    self._end()
                    self._before, _ = self.counts()
                    os.ftruncate(self._counts, 0)
                    try:
                        self.child = self._start()
                    except OSError as error:  # no process to be had: the next turn tries again
                        log.warning("the link arbiter can't be started: %s", error.strerror)
                        continue
            try:
                assert self.child.stdin is not None
                self.child.stdin.write(members_line(last))
                self.child.stdin.flush()
            except OSError:
                continue  # it has just ended: seen at the next turn


def main(arguments: list[str]) -> int:
    """Run the arbiter in this process."""
    number, counts, rule, bound_s = int(arguments[0]), int(arguments[1]), arguments[2], float(arguments[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon ends it
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    _raise_file_limit()
    sys.setswitchinterval(_SWITCH_S)
    terms = make_terms(rule, Topology(make_link(arguments[4])), bound_s)
    # a process that no longer answers ends, and is started anew
    arbiter = LinkArbiter(socket.socket(fileno=number), terms, on_failure=lambda: os._exit(1))
    threading.Thread(target=_tell, args=(arbiter, counts), name="link-arbiter-counts", daemon=True).start()
    for line in sys.stdin.buffer:
        arbiter.follow(parse_members_line(line))
    arbiter.close()
    return 0


def _raise_file_limit() -> None:
    """Raise the limit of open files as far as possible: each job's reduction group is one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tell(arbiter: LinkArbiter, file: int) -> None:
    while True:
        os.pwrite(file, _COUNTS.pack(*dataclasses.astuple(arbiter.counts), arbiter.connections), 0)
        time.sleep(_COUNTS_S)


def find_members(jobs: Iterable[Job], reports: Mapping[int, Report]) -> dict[int, Member]:
    """Return the running jobs on several nodes, by id."""
    return {
        job.job_id: Member(job.uid, job.restarts, job.node_names, job.shape.gpus, left_s(job, reports.get(job.job_id)))
        for job in jobs
        if job.state is JobState.RUNNING and len(job.node_names) > 1
    }


def left_s(job: Job, report: Report | None) -> float:
    """Return the seconds of training left at the pace that the job reports: (total - done) examples, a global batch a step.

    Return inf if it does not tell, which puts it behind those that do.
    """
    if report is None or report.restarts != job.restarts or report.plan is None:
        return math.inf
    if report.step_s is None or report.done is None or report.total is None:
        return math.inf
    return max(0.0, report.total - report.done) / report.plan.global_batch * report.step_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
