"""The simulator as a library, as in docs/design/simulate-in-a-notebook.md."""

from __future__ import annotations

import subprocess
import sys

import pytest
import synergy_sim
from synergy_core.errors import UsageError


def test_a_trace_is_run_and_each_job_has_a_result() -> None:
    scenario = synergy_sim.load_trace("generate:6,1", cluster={"a100": (2, 4)}, seed=3)
    assert len(scenario.jobs) == 6 and scenario.gpus == 8 and scenario.epoch_s == 60.0
    run = synergy_sim.simulate(scenario, "fifo")
    assert {result.job for result in run.jobs} == set(scenario.jobs)
    assert all(result.jct_s > 0 and result.finish_s > result.start_s >= result.job.submit_s for result in run.jobs)
    with pytest.raises(UsageError, match="KIND"):
        synergy_sim.load_trace("nonsense")
    with pytest.raises(AttributeError, match="no attribute 'run_all'"):
        synergy_sim.run_all  # noqa: B018


@pytest.mark.slow
def test_importing_it_loads_no_command_line_and_no_plots() -> None:
    program = (
        "import sys\nfrom synergy_sim import load_trace, simulate\n"
        "print([m for m in ('click', 'rich', 'matplotlib', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
