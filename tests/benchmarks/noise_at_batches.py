"""The gradient noise scale at other batches than the one that a job trains at: one number for all, or efficiency.noise_scale_at.

    python -m tests.benchmarks.noise_at_batches --data DIR

DIR holds pollux/. Of each application of Pollux's artifact, at each stage of its training and for each pair of the batches that it was
trained at: the noise scale of the one predicts the statistical efficiency at the other. Prints the RMS error and the mean error of the
efficiency for larger and for smaller batches, by both rules. Exit code 0; a line where the data is not there.
"""

from __future__ import annotations

import argparse
from itertools import permutations
from pathlib import Path

import numpy as np
from synergy_sim.pollux_truth import PolluxTruth, read_application

from synergyd.jobmodel.model.efficiency import efficiency, efficiency_at

KINDS = ("imagenet", "cifar10", "bert", "deepspeech2", "yolov3")


def log_errors(truth: PolluxTruth, larger: bool) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return log(predicted / true EFF), (N, 2): with one noise scale for all batches, and with noise_scale_at."""
    rows = []
    for stage in range(truth.stages):
        noises = {}
        for batch in truth.validation:
            sqr, var = truth.gradient(stage, batch)
            if sqr > 0 and var > 0:
                noises[batch] = truth.low * var / sqr
        for (present, noise), (batch, own) in permutations(noises.items(), 2):
            if (batch > present) == larger:
                at = efficiency(np.array([batch, batch]), np.array([own, noise]), truth.low)
                rows.append(np.log([at[1] / at[0], efficiency_at(batch, noise, present, truth.low) / at[0]]))
    return np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    folder = parser.parse_args().data / "pollux" / "traces"
    if not folder.exists():
        print(f"skipped: {folder} is not here")
        return
    print("| | batches | one: RMS | mean | by temperature: RMS | mean |\n|---|---|---|---|---|---|")
    for kind in KINDS:
        truth = read_application(folder / kind, "t4")
        for larger in (True, False):
            off = log_errors(truth, larger)
            rms, mean = np.sqrt((off**2).mean(axis=0)), off.mean(axis=0)
            where = "larger" if larger else "smaller"
            print(f"| {kind} | {where} | {rms[0]:.3f} | {mean[0]:+.3f} | {rms[1]:.3f} | {mean[1]:+.3f} |")


if __name__ == "__main__":
    main()
