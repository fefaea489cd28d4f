"""synergy.lua and the forms in which jobs ask for GPUs: by job, by task, components, arrays, what scripts start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugin.submit_world import RESIZABLE, SCRIPT, Controller, Outcome

TASKS = "write --nodes=N --ntasks-per-node=1 and start all with srun synergy-launch to have it resized"
GPUS = "write --nodes=N --gres=gpu:M (GPUs per node) and start all with srun synergy-launch to have it resized"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"ntasks_per_node": 8.0}, f"--ntasks-per-node=8 keeps the job at its size; {TASKS}"),
        ({"num_tasks": 8.0}, f"--ntasks=8 keeps the job at its size; {TASKS}"),
        ({"ntasks_per_tres": 2.0, "min_nodes": 1.0, "max_nodes": 1.0}, f"--ntasks-per-gpu=2 keeps the job at its size; {TASKS}"),
        ({"tres_per_job": "gres:gpu:8", "tres_per_node": None}, f"--gpus keeps the job at its size; {GPUS}"),
        (
            {"tres_per_job": "gres:gpu:7", "tres_per_node": None, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_job": "gres:gpu:8", "tres_per_node": None, "min_nodes": 1.0, "max_nodes": 2.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_job": "gres:gpu:a100:4,gres:gpu:h100:4", "tres_per_node": None, "min_nodes": 1.0, "max_nodes": 1.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_task": "gres:gpu:1", "tres_per_node": None, "num_tasks": 8.0},
            f"--gpus-per-task keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_task": "gres:gpu:1", "tres_per_node": None, "num_tasks": 7.0, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--gpus-per-task keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_socket": "gres/gpu:2", "tres_per_node": None, "min_nodes": 1.0, "max_nodes": 1.0},
            f"--gpus-per-socket keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_node": "gres:nic:1", "tres_per_job": "gres:gpu:4", "min_nodes": 2.0, "max_nodes": 2.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_node": None, "tres_per_job": "gres:gpu:4,license:x:1", "min_nodes": 2.0, "max_nodes": 2.0},
            f"--gpus keeps the job at its size; {GPUS}",
        ),
        (
            {"tres_per_job": "gres:nic:1", "ntasks_per_node": 4.0, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--ntasks-per-node=4 keeps the job at its size; {TASKS}",
        ),
        (
            {"tres_per_task": "gres:nic:1", "ntasks_per_node": 4.0, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--ntasks-per-node=4 keeps the job at its size; {TASKS}",
        ),
        (
            {"tres_per_socket": "gres:nic:1", "ntasks_per_node": 4.0, "min_nodes": 2.0, "max_nodes": 2.0},
            f"--ntasks-per-node=4 keeps the job at its size; {TASKS}",
        ),
    ],
)  # fmt: skip
def test_what_has_no_exact_form_by_node_is_left_alone_and_said(
    slurm: Controller, fields: dict[str, Any], line: str
) -> None:
    before = slurm.submit("#!/bin/sh\n", **fields).job
    outcome = slurm.submit(SCRIPT, **fields)
    assert (outcome.rc, outcome.said) == (0, ["#SYNERGY in script line 2: " + line])
    stamp = {"admin_comment": "synergy:1 model=llama2-7b max_gpus=16"}
    assert outcome.job == before | {"script": SCRIPT} | stamp  # not put off either: it keeps its size


def het(slurm: Controller, *gpus: str | None, **fields: Any) -> list[Outcome]:
    """One heterogeneous job, a component for each of `gpus`: as with sbatch the script comes with the first."""
    stub = "#!/bin/sh\nexit 0\n"
    return [
        slurm.submit(stub if n else SCRIPT, het_job_offset=float(n), tres_per_node=g, **fields)
        for n, g in enumerate(gpus)
    ]


def test_a_heterogeneous_job_with_gpus_in_a_later_component_is_put_off(slurm: Controller, tmp_path: Path) -> None:
    first, second, third = het(slurm, None, RESIZABLE, None)
    assert (first.rc, first.said, first.job["requeue"]) == (0, [], 1)
    assert first.job["begin_time"] > time.time()
    assert first.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16", "the job as a whole is put off"
    assert first.environment.keys() == {"SYNERGY_STATE_DIR", "SYNERGY_JOB_SECRET"}
    for later in (second, third):
        assert (later.rc, later.said, later.job["begin_time"], later.job["requeue"]) == (0, [], 0.0, 65534)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ((RESIZABLE, None), [["the first component of a heterogeneous job keeps its size"], []]),
        ((None, RESIZABLE, RESIZABLE), [[], [], ["several components of the heterogeneous job ask for GPUs"]]),
    ],
)
def test_heterogeneous_jobs_that_keep_their_size_are_said(
    slurm: Controller, gpus: tuple[str | None, ...], said: list[list[str]]
) -> None:
    outcomes = het(slurm, *gpus)
    assert [o.rc for o in outcomes] == [0] * len(gpus)
    assert [len(o.said) for o in outcomes] == [len(lines) for lines in said]
    for outcome, lines in zip(outcomes, said, strict=True):
        assert all(line in outcome.said[0] for line in lines)
    if gpus[0]:
        assert (outcomes[0].job["begin_time"], outcomes[0].job["requeue"]) == (0.0, 65534)


def test_a_component_that_asks_by_job_is_said(slurm: Controller) -> None:
    het(slurm, None)
    outcome = slurm.submit("#!/bin/sh\nexit 0\n", het_job_offset=1.0, tres_per_node=None, tres_per_job="gres:gpu:4")
    assert (outcome.rc, len(outcome.said)) == (0, 1) and "--gpus keeps the job at its size" in outcome.said[0]


def test_components_of_somebody_else_say_nothing(slurm: Controller) -> None:
    """A component whose leader has no directive, or was another job's."""
    slurm.submit("#!/bin/sh\n", het_job_offset=0.0, tres_per_node=RESIZABLE)
    outcome = slurm.submit("#!/bin/sh\nexit 0\n", het_job_offset=1.0, tres_per_node=RESIZABLE)
    assert (outcome.rc, outcome.said) == (0, [])


def test_arrays_are_jobs_like_others(slurm: Controller) -> None:
    outcome = slurm.submit(SCRIPT, array_inx="1-9%1")
    assert (outcome.rc, outcome.said, outcome.job["array_inx"]) == (0, [], "1-9%1")
    assert outcome.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16"
    assert outcome.job["begin_time"] > time.time()


TWO = {"min_nodes": 2.0, "max_nodes": 2.0}
ONE = {"min_nodes": 1.0, "max_nodes": 1.0}


@pytest.mark.parametrize(
    ("fields", "nodes", "gpus", "cpus_per_task"),
    [
        ({"tres_per_job": "gres:gpu:4", **ONE}, 1, "gres:gpu:4", None),
        ({"tres_per_job": "gres:gpu:1"}, 1, "gres:gpu:1", None),
        ({"tres_per_job": "gres:gpu:a100:8", **TWO}, 2, "gres:gpu:a100:4", None),
        ({"tres_per_job": "gres/gpu:a100:8", **TWO}, 2, "gres/gpu:a100:4", None),  # 23.11 and later
        ({"tres_per_task": "gres/gpu=1", "num_tasks": 2.0, **ONE}, 1, "gres/gpu:2", 2),
        ({"tres_per_task": "cpu=2,gres/gpu:a100=1", "num_tasks": 4.0, "cpus_per_task": 2.0, **ONE}, 1, "gres/gpu:a100:4", 8),
        ({"tres_per_task": "cpu=3", "tres_per_node": "gres/gpu:2", "num_tasks": 2.0, "cpus_per_task": 3.0, **ONE}, 1, "gres/gpu:2", 6),
        ({"tres_per_job": "gres:gpu:8", "tres_per_node": "gres:gpu:a100:4"}, 2, "gres:gpu:a100:4", None),
        ({"tres_per_task": "gres:gpu:1", "num_tasks": 8.0, "cpus_per_task": 2.0, **TWO}, 2, "gres:gpu:4", 8),
        ({"tres_per_task": "gres:gpu:2", "ntasks_per_node": 2.0, "num_tasks": 4.0, **TWO}, 2, "gres:gpu:4", 2),
        ({"tres_per_task": "gres:gpu:v100:4", "num_tasks": 1.0}, 1, "gres:gpu:v100:4", None),
        ({"tres_per_node": "gres:gpu:4", "ntasks_per_node": 4.0, "num_tasks": 8.0, "cpus_per_task": 3.0, **TWO}, 2, "gres:gpu:4", 12),
        ({"tres_per_node": "gres:gpu:4", "num_tasks": 4.0, **ONE}, 1, "gres:gpu:4", 4),
        ({"tres_per_node": "gres:gpu:4", "ntasks_per_tres": 1.0, **TWO}, 2, "gres:gpu:4", 4),
        ({"tres_per_node": "gres:gpu", "ntasks_per_node": 2.0, "cpus_per_tres": "gres:gpu:8", **ONE}, 1, "gres:gpu:1", None),
    ],
)  # fmt: skip
def test_other_forms_are_rewritten_by_node_where_that_is_exact(
    slurm: Controller, fields: dict[str, Any], nodes: int, gpus: str, cpus_per_task: int | None
) -> None:
    environment = {
        "SLURM_NTASKS": "8",
        "SLURM_GPUS": "8",
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_TRES_PER_TASK": "cpu=2,gres/gpu=1",
    }
    environment |= {"SLURM_TRES_BIND": "gres/gpu:per_task:1"}
    outcome = slurm.submit(SCRIPT, environment, **{"tres_per_node": None, **fields})
    assert (outcome.rc, outcome.said) == (0, [])
    job = outcome.job
    assert (job["min_nodes"], job["max_nodes"], job["num_tasks"], job["ntasks_per_node"]) == (nodes, nodes, nodes, 1)
    assert (job["tres_per_node"], job.get("cpus_per_task")) == (gpus, cpus_per_task)
    assert not job.get("tres_per_job") and not job.get("tres_per_task") and job["ntasks_per_tres"] == 65534
    told = {k: v for k, v in outcome.environment.items() if k.startswith("SLURM")}
    emptied = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND")
    assert told == {"SLURM_NTASKS": "1", **dict.fromkeys(emptied, "")}


def test_what_a_script_says_of_its_steps_cpus_and_of_the_nearest_gpus_is_kept(slurm: Controller) -> None:
    environment = {"SLURM_TRES_PER_TASK": "cpu=4", "SLURM_TRES_BIND": "gres/gpu:closest"}
    outcome = slurm.submit(SCRIPT, dict(environment), tres_per_task="cpu=4", cpus_per_task=4.0)
    assert environment.items() <= outcome.environment.items() and outcome.job["tres_per_task"] == "cpu=4"


@pytest.mark.parametrize(
    "body",
    [
        "srun -n8 python train.py\n",
        "srun python prepare.py\nsrun synergy-launch train.py\n",
        "srun synergy-launch train.py\nmpirun ./x\n",
        "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun synergy-launch train.py\n",
        "srun --ntasks=8 synergy-launch train.py\n",
        "srun -n8 synergy-launch train.py\n",
        "srun --gpus-per-task=1 \\\n  synergy-launch train.py\n",
        "echo $SLURM_GPUS\nsrun synergy-launch train.py\n",
        "python train.py\n# srun synergy-launch train.py\n",
        "true\n" * 40_000 + "srun synergy-launch train.py\n",
        "srun synergy-launch\n" * 40,
        "srun python prepare.py; synergy-launch train.py\n",
        "srun synergy-launch a.py; srun python b.py\n",
        "srun synergy-launch a.py && mpiexec ./b\n",
        "srun synergy-launch a.py & python b.py\n",
        "srun synergy-launch a.py | tee log\n",
        "srun synergy-launch `./arguments`\n",
        "srun synergy-launch $(./arguments)\n",
        "srun synergy-launch <(srun hostname)\n",
        "srun synergy-launch a.py srun\n",
        "srun python synergy-launch\n",
        "srun $OPTIONS synergy-launch a.py\n",
        "srun -ln8 synergy-launch a.py\n",
        "mpirun synergy-launch a.py\n",
        "srun echo-synergy-launch a.py\n",
        "srun --chdir=/opt/synergy-launch python a.py\n",
        "srun --comment=' -x synergy-launch ' python a.py\n",
        "srun -c2 synergy-launch a.py\n",
        "time srun synergy-launch a.py\n",
        "synergy-launcher a.py\n",
        "sr\\\nun python a.py\nsrun synergy-launch a.py\n",
        "# a remark \\\nsrun python a.py\nsrun synergy-launch a.py\n",
        "srun synergy-launch " + "x" * 5000 + "\n",
    ],
)
def test_a_script_that_starts_tasks_itself_keeps_them(slurm: Controller, body: str) -> None:
    fields: dict[str, Any] = {"ntasks_per_node": 8.0, "num_tasks": 8.0, **ONE}
    outcome = slurm.submit("#!/bin/sh\n#SYNERGY tp=2\n" + body, **fields)
    assert outcome.rc == 0 and len(outcome.said) == 1
    assert "--ntasks-per-node=8 keeps the job at its size" in outcome.said[0]
    assert (outcome.job["num_tasks"], outcome.job["ntasks_per_node"]) == (8.0, 8.0)


def test_launch_lines_are_found_over_several_lines_and_behind_paths(slurm: Controller) -> None:
    body = "# srun starts it; once a node\nsrun --mpi=none \\\n  /opt/bin/synergy-launch train.py --gpus 8 -n 3 >out 2>&1\n"
    fields: dict[str, Any] = {"ntasks_per_node": 8.0, "num_tasks": 8.0, **ONE}
    outcome = slurm.submit("#!/bin/sh\n#SYNERGY tp=2\n" + body, **fields)
    assert (outcome.rc, outcome.said, outcome.job["num_tasks"]) == (0, [], 1)


def test_sbatchs_words_for_srun_do_not_outlive_the_size(slurm: Controller) -> None:
    outcome = slurm.submit(SCRIPT, {"SLURM_GPUS_PER_NODE": "4", "SLURM_NTASKS": "2", "HOME": "/"})
    left = {"SLURM_GPUS_PER_NODE": "", "SLURM_NTASKS": "2", "HOME": "/"}
    assert {k: outcome.environment[k] for k in left} == left
    fixed = slurm.submit("#SYNERGY resize=no\n", {"SLURM_GPUS_PER_NODE": "4"})
    assert fixed.environment["SLURM_GPUS_PER_NODE"] == "4"


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"bitflags": 16.0 + 2.0**38}, "--gres-flags=enforce-binding"),
        ({"licenses": "matlab:1"}, "--licenses"),
        ({"contiguous": 1.0}, "--contiguous"),
        ({"sockets_per_node": 1.0}, "--sockets-per-node"),
        ({"cores_per_socket": 2.0}, "--cores-per-socket"),
    ],
)
def test_an_option_that_no_other_size_would_meet_keeps_the_size(
    slurm: Controller, fields: dict[str, Any], option: str
) -> None:
    done = slurm.submit(SCRIPT.replace("max_gpus=16", "max_gpus=16 reshard=yes"), **fields)
    line = f"#SYNERGY in script line 2: {option} keeps the job at its size; leave it out to have it resized"
    assert (done.rc, done.said) == (0, [line])
    assert done.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16 resize=no"
    assert done.job["begin_time"] == 0.0, "Slurm starts it at once"


def test_options_that_are_not_given_change_nothing(slurm: Controller) -> None:
    unset: dict[str, Any] = {
        "bitflags": 32.0 + 8.0,
        "licenses": "",
        "contiguous": 0.0,
        "sockets_per_node": 65534.0,
        "cores_per_socket": 65534.0,
    }
    done = slurm.submit(SCRIPT, **unset)
    assert (done.rc, done.said) == (0, []) and "resize=no" not in done.job["admin_comment"]
