"""Limits of Slurm's associations and QOS, as the allocation is told of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from synergy_core.records import Action, Cluster, JobState, Node, Shape

from synergyd.daemon.account_limits import Accounting, AccountReader, JobUse, describe_use
from synergyd.scheduler.problem.gpu_limits import SlurmLimits, find_exceeded_limit
from synergyd.scheduler.problem.records import Rate, UsageLimit
from synergyd.settings import Settings
from synergyd.slurm.parsed.associations import AccountingRules, HolderLimits, QosRules, Usage, parse
from synergyd.slurm.parsed.rows import PartitionRow
from synergyd.slurm.parsed.snapshot import SubmittedJob
from tests.paths import ROOT
from tests.unit.scheduler.builders import cell, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide
from tests.unit.slurm.fake_slurm import FakeSlurm, row

SHOWN = (ROOT / "tests" / "cases" / "golden" / "assoc_mgr.txt").read_text()
ENFORCED = AccountingRules(enforcement=frozenset(("associations", "limits", "qos")))
SAFE = AccountingRules(enforcement=ENFORCED.enforcement | {"safe"})
SITE = Cluster((Node("n1", "a100", 4), Node("n2", "a100", 4)))
# of account chem, which has GrpTRES=cpu=100,gres/gpu=8 below science with gres/gpu=16, as SHOWN has it
WAITS = JobUse(
    job_id=1, account="chem", user="nobody", uid=65534, partition="main", qos="normal", holds=None,
    requested_shape=Shape("a100", 1, 1), cpus_per_node=4, limit_min=60.0,
)  # fmt: skip


def limits(*uses: JobUse, text: str = SHOWN, rules: AccountingRules = ENFORCED) -> SlurmLimits:
    return Accounting(rules, parse(text)).limits(uses, SITE)


def shared(found: SlurmLimits, slurm: str, unit: str = "GPUs") -> dict[str, float]:
    """What is left, by whose it is."""
    return {f"{x.kind} {x.name}": x.most for x in found.shared_limits if (x.slurm, x.unit) == (slurm, unit)}


@pytest.mark.parametrize("text", [SHOWN, re.sub(r"Lft=\d+ ", "Lineage=/science/chem/ ", SHOWN)], ids=["22.05", "23.11"])
def test_what_is_left_of_an_account_and_of_those_above_it(text: str) -> None:
    found = limits(WAITS, text=text)
    assert shared(found, "GrpTRES") == {"account chem": 6, "account science": 14}
    assert shared(found, "GrpTRES", "CPUs") == {"account chem": 97}
    assert shared(found, "GrpTRES", "nodes") == {"account science": 7}
    assert shared(found, "GrpJobs", "jobs") == {"account chem": 2}
    assert shared(found, "MaxJobs", "jobs") == {"user nobody in account chem and partition main": 2}
    assert find_exceeded_limit(found, 1, Shape("a100", 1, 6)) == ""
    assert find_exceeded_limit(found, 1, Shape("a100", 2, 4)) == "account chem may hold 6 more GPUs (GrpTRES)"


@pytest.mark.parametrize(
    ("changes", "per_node", "per_gpu"),
    [({"memory_mib": 64000}, 64000, 0), ({"memory_mib": 500, "memory_per_gpu_mib": 500}, 0, 500)],
)
def test_memory_is_held_to_limits_where_slurm_counts_it_alone(
    changes: dict[str, Any], per_node: int, per_gpu: int
) -> None:
    waits = row(partition="main", num_nodes=1, **changes)
    known = SubmittedJob(directive=None, error="", requested_shape=Shape("a100", 1, 1), cpus_per_node=1)
    for counts in (True, False):
        use = describe_use(waits, known, {}, 0.0, {"main": PartitionRow(name="main", counts_memory=counts)})
        assert (use.memory_per_node, use.memory_per_gpu) == ((per_node, per_gpu) if counts else (0, 0))


def test_what_synergys_own_jobs_hold_is_theirs_to_divide() -> None:
    runs = replace(WAITS, job_id=2, holds=Shape("a100", 1, 1), cpus_per_node=2)
    found = limits(WAITS, runs)
    assert shared(found, "GrpTRES") == {"account chem": 7, "account science": 15}
    assert shared(found, "GrpTRES", "CPUs") == {"account chem": 99}
    assert shared(found, "GrpJobs", "jobs") == {"account chem": 3}


def test_a_qos_that_says_it_comes_before_associations() -> None:
    high = replace(WAITS, qos="high", user="root", uid=0, partition="main")
    found = limits(high)
    assert shared(found, "GrpTRES") == {"QOS high": 11}  # neither chem's 8 nor science's 16
    assert shared(found, "GrpTRES", "CPUs") == {"account chem": 97}  # of which the QOS says nothing
    assert shared(found, "MaxTRESPerUser") == {"user root in QOS high": 5}
    assert shared(found, "MaxTRESPerAccount") == {"account chem in QOS high": 6}
    assert shared(found, "MaxJobs", "jobs") == {}
    own = {(x.slurm, x.unit): x.most for x in found.job_limits[1]}
    assert own[("MaxTRESPerJob", "GPUs")] == 5 and own[("MaxTRESPerJob", "nodes")] == 2
    assert own[("MaxTRESPerNode", "GPUs")] == 4 and own[("MaxTRESPerNode", "CPUs")] == 32
    assert own[("MaxWall", "minutes")] == 120
    least = next(x for x in found.job_limits[1] if x.slurm == "MinTRESPerJob")
    assert least.at_least and least.most == 1


def test_the_partitions_qos_comes_before_the_jobs_unless_that_says_otherwise() -> None:
    rules = replace(ENFORCED, partition_qos={"main": "high"})
    assert shared(limits(WAITS, rules=rules), "GrpTRES") == {"QOS high": 11}
    text = SHOWN.replace(
        "gres/gpu=N(1)\n    GrpTRESMins", "gres/gpu=5(1)\n    GrpTRESMins"
    )  # of QOS normal among others
    assert shared(limits(WAITS, text=text, rules=rules), "GrpTRES") == {"QOS high": 11}
    over = replace(rules, qos={"normal": QosRules(flags=frozenset({"OverPartQOS"}))})
    assert shared(limits(WAITS, text=text, rules=over), "GrpTRES") == {"QOS normal": 4}


def test_a_user_without_jobs_in_a_qos_has_its_limits_too() -> None:
    rules = replace(ENFORCED, qos={"high": QosRules(user=HolderLimits(jobs=Usage(2), tres={"gres/gpu": Usage(6)}))})
    found = limits(replace(WAITS, qos="high"), rules=rules)
    assert shared(found, "MaxTRESPerUser") == {"user nobody in QOS high": 6}
    assert shared(found, "MaxJobsPerUser", "jobs") == {"user nobody in QOS high": 2}


def test_minutes_that_a_job_would_use_up() -> None:
    text = SHOWN.replace("gres/gpu=5000(0)", "gres/gpu=5000(4700)")
    own = [x for x in limits(WAITS, text=text).job_limits[1] if x.slurm == "GrpTRESMins"]
    assert [x.most for x in own] == [300]  # 5 GPUs for an hour
    assert own[0].job_rate == Rate(0.0, 0.0, 60.0)
    text = SHOWN.replace("gres/gpu=5000(0)", "gres/gpu=5000(4990)")
    own = [x for x in limits(WAITS, text=text).job_limits[1] if x.slurm == "GrpTRESMins"]
    assert [x.most for x in own] == [60]  # Slurm starts it as it asks for while any are left
    # with `safe` Slurm counts what running jobs may yet use, 60, and so do all of them together
    assert shared(limits(WAITS, text=text, rules=SAFE), "GrpTRESMins", "minutes of GPUs") == {"account chem": 0}
    assert shared(limits(WAITS), "GrpTRESRunMins", "minutes of CPUs") == {"account chem": 9910}
    assert shared(limits(replace(WAITS, limit_min=None)), "GrpTRESRunMins", "minutes of CPUs") == {}


def test_nothing_is_bound_where_slurm_enforces_nothing_or_shows_nothing() -> None:
    off = limits(WAITS, rules=AccountingRules(enforcement=frozenset(("associations",))))
    assert (off.shared_limits, dict(off.job_limits), dict(off.restart_obstacles)) == (
        (),
        {},
        {},
    ) and off.fair_shares == {1: 0.0}
    assert limits(replace(WAITS, holds=WAITS.requested_shape), text="") == SlurmLimits()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SHOWN.replace("gres/gpu=8(2)", "gres/gpu=1(2)"), "account chem has 2 GPUs and may have 1 (GrpTRES)"),
        (SHOWN.replace("UserName=nobody", "UserName=other"), "Slurm has no association of nobody with account chem"),
    ],
)
def test_a_job_that_could_not_start_again_is_left_as_it_is(text: str, why: str) -> None:
    found = limits(replace(WAITS, holds=WAITS.requested_shape), text=text)
    assert why in found.restart_obstacles[1]
    assert not limits(WAITS, text=text).restart_obstacles


# -- what the epoch makes of it ----------------------------------------------------------------------------------------


def test_jobs_of_one_account_share_its_nodes_and_are_told() -> None:
    two = (*cells(1.0, 1.9, 3.6), cell(6.5, nodes=2, gpus=4))
    rates = {1: Rate(0, 1, 0, whole_node_gpus=4), 2: Rate(0, 1, 0, whole_node_gpus=4)}
    one_node = UsageLimit("account", "chem", 1, 1, unit="nodes", slurm="GrpTRES", rates=rates)
    site = snapshot([node("n0"), node("n1")], [job(1, 1), job(2, 1)])
    found = decide(site, Settings(), {1: two, 2: two}, {}, slurm_limits=SlurmLimits(shared_limits=(one_node,)))
    assert sum(d.cell.shape.gpus for d in found if d.cell) == 4
    told = " ".join([d.why for d in found] + [a.why_not for d in found for a in d.alternatives])
    assert "account chem may hold 0 more nodes (GrpTRES)" in told
    free = decide(site, Settings(), {1: two, 2: two}, {})
    assert sum(d.cell.shape.gpus for d in free if d.cell) == 8


def test_a_job_beyond_its_own_limit_waits_or_stays_and_never_grows() -> None:
    offers = cells(1.0, 1.9, 3.6)
    most = UsageLimit("user", "ann", 1, 1, slurm="MaxTRESPerJob", job_rate=Rate())
    bound = SlurmLimits(job_limits={1: (most,)})
    (runs,) = decide(
        snapshot([node("n0", used=2)], [job(1, 2, ("n0",), 2)]), Settings(), {1: offers}, {}, slurm_limits=bound
    )
    assert runs.cell is not None and runs.cell.shape.gpus <= 2
    big = {1: offers[2:]}
    (waits,) = decide(snapshot([node("n0")], [job(1, 4)]), Settings(), big, {}, slurm_limits=bound)
    assert waits.action is Action.WAIT
    assert "a job of user ann may have at most 1 GPUs (MaxTRESPerJob)" in waits.why


def test_a_job_on_its_way_counts_with_the_size_that_it_will_have() -> None:
    """Slurm counts a parked job not at all; its GPUs are spoken for."""
    moving = replace(job(2, 2, ("n1",), 2), fixed="being carried out")
    limit = UsageLimit("account", "chem", 3, 3, slurm="GrpTRES", rates={1: Rate(), 2: Rate()})
    site = snapshot([node("n0"), node("n1", used=2)], [job(1, 1), moving])
    found = decide(
        site, Settings(), {1: cells(1.0, 1.9), 2: cells(1.0, 1.9)}, {}, slurm_limits=SlurmLimits(shared_limits=(limit,))
    )
    assert moving.state is JobState.RUNNING
    assert found[0].cell is not None and found[0].cell.shape.gpus == 1


# -- reading -----------------------------------------------------------------------------------------------------------


def test_one_call_an_epoch_and_none_without_accounting() -> None:
    slurm = FakeSlurm(rules=ENFORCED, assoc_mgr=SHOWN)
    reader = AccountReader(slurm, fair_share=False, clock=lambda: slurm.now_s)
    assert len(reader.read().associations) == 7 and reader.has_limits
    reader.read()
    assert slurm.assoc_reads == 2
    slurm.away = True
    assert len(reader.read().associations) == 7  # the last that was read
    slurm.away, slurm.rules = False, AccountingRules()
    slurm.now_s += 601
    assert len(reader.read().associations) == 0 and not reader.has_limits
    assert slurm.assoc_reads == 2
