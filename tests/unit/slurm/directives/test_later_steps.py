"""Scripts whose lines behind the training would not work after nodes have left the job."""

from __future__ import annotations

import pytest

from synergyd.slurm.directives.later_steps import step_after_training

HEAD = "#!/bin/bash\n#SBATCH --nodes=4\n#SYNERGY model=gpt2\n"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("srun synergy-launch train.py\n", None),
        ("srun hostname\nsrun synergy-launch train.py\necho done; cp -r /tmp/out $HOME\n", None),
        ("srun synergy-launch \\\n  train.py --nodes $SLURM_NNODES\necho $?\n", None),
        ("# srun later\nsrun synergy-launch train.py\n# srun eval.py\n", None),
        ("srun synergy-launch train.py\nsrun python eval.py\n", 5),
        ("srun synergy-launch train.py\nmpirun -n 4 ./eval\n", 5),
        ("srun synergy-launch train.py\necho $SLURM_JOB_NODELIST\n", 5),
        ("srun synergy-launch a.py\nsrun synergy-launch b.py\n", 5),
        ("for i in 1 2; do\n  srun synergy-launch train.py\ndone\n", 6),
        ("srun --wait=60 synergy-launch train.py\n", 4),
        ("srun -W 60 synergy-launch train.py\n", 4),
        ("export SLURM_WAIT=60\nsrun synergy-launch train.py\n", 4),
        ("bash run.sh\n", 1),
        ("", 1),
    ],
)
def test_the_first_line_that_needs_all_nodes(body: str, line: int | None) -> None:
    found = step_after_training(HEAD + body)
    assert (found and found[0]) == line


def test_a_script_of_any_length_takes_no_time() -> None:
    step_after_training(HEAD + "srun synergy-launch train.py " + "\\\n-x " * 100_000)
