"""The link arbiter's rules on its own state machine in virtual time: mean finish time of jobs that share links, each rule against
nobody gated.

    python -m tests.benchmarks.arbiter_rules [--trials 10] [--first-seed 0] [--message 0.1,0.3,1] [--jobs 2,4,8] [--penalty 1] [--json]
    python -m tests.benchmarks.arbiter_rules --speed

A trial lays --jobs jobs of the contention paper's models on 2 to 4 of 8 nodes each, 10 GbE, every job on GPUs of its own, 100 to
600 steps each; a step's compute varies by 5 %, a job's phase is random. `look-ahead` sees what the arbiter sees of each job (mean
compute, message, remaining time) and chooses anew whenever a job ends. `none`: everybody sends at once.

`--speed`: processor milliseconds that the state machine takes for a question (median and 99 %), with 2, 10 and 50 jobs that send over
the links of 8 and of 64 nodes, under the look-ahead's choice; and for a whole choice.

How to read it: mean over trials of the rule's mean finish time over that of `none` on the same jobs, +- the standard deviation, and
in how many trials it is less.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

from synergy_sim.contention.workload import NETWORKS

from synergyd.links.arbiter import ArbiterState, ArbiterTerms, Event, JobJoined, SendAsked, step
from synergyd.links.disciplines import make_discipline
from synergyd.links.lookahead import ArbiterPlay, Sender, chosen_disciplines
from synergyd.links.model import TEN_GBE, Link, Topology

NODES = 8
OPEN = "srsf-99"
RULES = ("srsf-1", "srsf-1-time", "srsf-1-time-reserve", "srsf-2", "ada-srsf", "look-ahead")


class Varied(ArbiterPlay):
    """A step's compute varies by 5 %; what questions and choices take is counted."""

    draw = random.Random(0)
    chooser_s = 0.0
    choices = 0

    def __init__(self, *args: Any) -> None:
        self.questions_ms: list[float] = []
        super().__init__(*args)

    def compute_s(self, job_id: int) -> float:
        return super().compute_s(job_id) * self.draw.uniform(0.95, 1.05)

    def choose(self) -> None:
        left = self.state.members
        seen = {j: replace(s, due_s=self.due_s(j)) for j, s in self.senders.items() if j in left}
        begun = time.process_time()
        for group in chosen_disciplines(self.state, seen, self.now_s, self.terms):
            self.terms = replace(self.terms, disciplines={**self.terms.disciplines, **group})
        self.chooser_s += time.process_time() - begun
        self.choices += 1

    def _take(self, event: Event) -> None:
        begun = time.thread_time()
        super()._take(event)
        if isinstance(event, SendAsked):
            self.questions_ms.append(1e3 * (time.thread_time() - begun))


def run(rule: str, seed: int, jobs: int, message: float, penalty: float) -> tuple[float, float]:
    """(mean finish time in s, processor seconds of a choice)."""
    play = made(rule, seed, jobs, message, penalty)
    ended = -1
    while play.advance():
        if rule == "look-ahead" and len(play.finish) != ended:
            ended = len(play.finish)
            play.choose()
    return statistics.fmean(play.finish.values()), play.chooser_s / max(1, play.choices)


def speed() -> None:
    for nodes in (8, 64):
        for jobs in (2, 10, 50):
            play = made("look-ahead", 1, jobs, 0.3, 1.0, nodes)
            while len(play.questions_ms) < 100 * jobs and play.advance():
                if len(play.questions_ms) == 10 * jobs and not play.choices:
                    play.choose()
                    play.questions_ms.clear()
            took = sorted(play.questions_ms)
            print(
                f"{jobs} jobs on {nodes} nodes: a question {took[len(took) // 2]:.3f} ms, 99 % {took[int(0.99 * len(took))]:.3f}, "
                f"{len(took)} of them; a choice {play.chooser_s:.2f} s",
                flush=True,
            )


def made(rule: str, seed: int, jobs: int, message: float, penalty: float, nodes: int = NODES) -> Varied:
    """A trial before its first event."""
    draw = random.Random(seed)
    topology = Topology(nic=Link(TEN_GBE.per_mb, TEN_GBE.penalty * penalty))
    terms = ArbiterTerms(make_discipline("srsf-1" if rule == "look-ahead" else rule), topology)
    state, senders, steps = ArbiterState(), [], {}
    for job_id in range(jobs):
        network, pace = draw.choice(NETWORKS), draw.uniform(0.9, 1.1)
        mine = tuple(f"n{n}" for n in sorted(draw.sample(range(nodes), draw.choice((2, 2, 3, 4)))))
        compute_s, size = (network.forward_ms + network.backward_ms) * pace / 1000.0, network.gradient_mb * message
        steps[job_id] = draw.randint(100, 600)
        left_s = steps[job_id] * (compute_s + size * topology.nic.per_mb / 1000.0)
        state, _ = step(state, JobJoined(job_id, mine, 4 * len(mine), left_s), 0.0, terms)
        senders.append(Sender(job_id, compute_s, size, draw.uniform(0, compute_s)))
    play = Varied(state, senders, 0.0, terms, steps)
    play.draw = random.Random(seed)
    return play


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--message", default="0.1,0.3,1")
    parser.add_argument("--jobs", default="2,4,8")
    parser.add_argument("--penalty", type=float, default=1.0)
    parser.add_argument("--speed", action="store_true", help="processor time of questions and choices only")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if args.speed:
        speed()
        return 0
    rows = []
    for message in map(float, args.message.split(",")):
        for jobs in map(int, args.jobs.split(",")):
            ratios: dict[str, list[float]] = {rule: [] for rule in RULES}
            spent = []
            for seed in range(args.first_seed, args.first_seed + args.trials):
                alone, _ = run(OPEN, seed, jobs, message, args.penalty)
                for rule in RULES:
                    mean, cpu_s = run(rule, seed, jobs, message, args.penalty)
                    ratios[rule].append(mean / alone)
                    spent += [cpu_s] if rule == "look-ahead" else []
            over = {r: (statistics.fmean(x), statistics.pstdev(x), sum(y < 1 for y in x)) for r, x in ratios.items()}
            rows.append({"message": message, "jobs": jobs, "over_none": over, "choice_s": statistics.fmean(spent)})
            if not args.json:
                told = "  ".join(f"{r} {m:.3f} ±{s:.3f} {n}/{args.trials}" for r, (m, s, n) in over.items())
                print(f"message {message:g}  jobs {jobs}  {told}  choice {rows[-1]['choice_s']:.3f} s", flush=True)
    if args.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
