"""A job keeps the size that it asked for until an agent of its program has reported that it can change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synergy_core.accepts import Accepts
from synergy_core.records import Action
from synergy_core.wire import plan_file
from synergy_core.wire.codec import encode

from synergyd.views import explain as explain_view
from synergyd.views import status as status_view
from tests.unit.daemon.daemon_world import Site

PLAIN = "#!/bin/bash\n#SYNERGY global_batch=64 max_gpus=4\nsrun synergy-launch train.py\n"
BARE = "#!/bin/bash\n#SYNERGY\nsrun synergy-launch train.py\n"
WHY = "no run of this program has reported that it can change size"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two nodes of four GPUs, and a daemon that knows no program. Each job asks for two GPUs."""
    made = Site(tmp_path)
    made.knows_programs = False
    made.start()
    return made


def started(site: Site, job_id: int, script: str, **fields: Any) -> int:
    """Submits the job, lets it start, and returns the GPUs that it starts on."""
    site.slurm.submit(job_id, script, **fields)
    site.epoch(60)
    for _ in range(5):
        site.tick(2)
    assert site.slurm.jobs[job_id].state == "RUNNING"
    return gpus(site, job_id)


def gpus(site: Site, job_id: int) -> int:
    row = site.slurm.jobs[job_id]
    return row.num_nodes * int(row.tres_per_node.rpartition(":")[2])


def shown(site: Site, job_id: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `status --json` and `explain --json` show of the job."""
    with site.store() as store:
        return encode(status_view.collect(store, job_id).jobs[0]), encode(explain_view.collect(store, job_id))


@pytest.mark.parametrize("script", [PLAIN, BARE, PLAIN.replace("max_gpus=4", "min_gpus=4")])
def test_without_an_agent_a_job_keeps_its_size_and_its_own_plan(site: Site, script: str) -> None:
    assert started(site, 1, script) == 2
    given = plan_file.read(plan_file.plan_path(site.folder, 1), 1)
    assert given.plan is None and given.report
    for _ in range(3):
        site.report(1, plan=None, step=0, step_s=None, silent=True)
        assert site.epoch(300)[1].action is Action.KEEP
    status, explain = shown(site, 1)
    assert status["plan"] is None and status["global_batch"] is None and "no agent has reported" in status["hint"]
    assert WHY in explain["decision"]["why"] and "plan      its script's own" in explain["lines"]
    assert explain["decision"]["cell"] is None and not explain["alternatives"]
    # a node fails, and the same program comes again
    site.slurm.set(1, state="PENDING", node_names=(), restarts=1, start_s=None)
    for _ in range(2):
        site.epoch(60)
        site.tick(5)
    assert gpus(site, 1) == 2
    site.slurm.cancel(1)
    site.tick(1)
    assert started(site, 2, script) == 2


def test_once_its_agent_has_reported_a_job_and_its_program_change_size(site: Site) -> None:
    assert started(site, 1, PLAIN) == 2
    site.report(1, step=100)
    assert site.epoch(300)[1].action is Action.RESIZE
    site.slurm.cancel(1)
    site.start()  # what is known survives the daemon
    site.knows_programs = False
    assert started(site, 2, PLAIN) == 4


def test_a_program_that_reports_that_it_cannot_change_keeps_its_size(site: Site) -> None:
    assert started(site, 1, PLAIN) == 2
    site.report(1, step=100, accepts=Accepts(own_size=True))
    assert site.epoch(300)[1].action is Action.KEEP
    site.slurm.cancel(1)
    assert started(site, 2, PLAIN) == 2
    assert "they can't change size" in site.daemon.decisions[-1].why


def test_a_script_of_the_same_name_without_an_agent_is_found_out(site: Site) -> None:
    assert started(site, 1, PLAIN) == 2
    site.report(1, step=100)
    site.epoch(60)
    site.slurm.cancel(1)
    site.epoch(60)
    assert started(site, 2, PLAIN) == 4
    for _ in range(3):
        site.epoch(60)
    site.slurm.cancel(2)
    site.tick(30)
    site.epoch(60)
    assert started(site, 3, PLAIN) == 2


def test_an_unknown_job_that_waits_is_synergy_s_to_start(site: Site) -> None:
    """Its launcher is told at its start where to report, and it keeps off bad nodes as others do."""
    site.slurm.submit(1, PLAIN)
    site.slurm.gpus = {"n1": 1}
    decision = site.epoch(60)[1]
    assert decision.action is Action.WAIT
    assert site.slurm.jobs[1].eligible_s == site.slurm.now_s + 900 and 1 not in site.daemon.observer.left_to_slurm
