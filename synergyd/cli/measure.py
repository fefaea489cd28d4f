"""`synergyctl profiles measure`: hardware figures of the GPUs, or the CPU, at hand."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from synergy_core.errors import UsageError

from synergyd.cli.measure_pairs import measured_pairs
from synergyd.cli.shared.atomic import write_atomically
from synergyd.jobmodel.model.figures_file import write_figures
from synergyd.jobmodel.model.hardware import canonical
from synergyd.jobmodel.model.measure import (
    AllReduceTimings,
    DeviceMeasurement,
    Timing,
    all_reduces,
    conf_line,
    derive_figures,
    one_device,
    report,
)

# bytes a rank: latency at the small end, bandwidth at the large one
_SIZES = {"cpu": (1 << 12, 1 << 16, 1 << 20, 1 << 23), "cuda": (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 27)}
_MOST_RANKS = 64


@click.command("measure")
@click.option("--gpu-type", metavar="NAME", help="Name of the type in Slurm's Gres; default: what torch calls it.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="auto: the GPUs where there are any.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1, _MOST_RANKS),
    metavar="N",
    help="Processes for the collectives; default: one a GPU, 2 on a CPU. 1: no collectives.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Default: standard output."
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON: figures and every measured point.")
@click.option(
    "--pairs",
    is_flag=True,
    help="Measure only what sharing a node's network link costs: one all-reduce between nodes, then two at once. Under torchrun or "
    "srun, 2 processes a node; it prints the NodeLink line for slurm.conf.",
)
@click.option(
    "--link", default="10gbe", show_default=True, metavar="NAME", help="The name in that line (a setting NodeLink)."
)
def measure(
    gpu_type: str | None, device: str, ranks: int | None, out: Path | None, as_json: bool, pairs: bool, link: str
) -> None:
    """Measure the GPUs at hand, or the CPU, and write their hardware figures.

    It takes half a minute: matrix products by size and precision, fused attention, copies in device memory, and all-reduces
    by size over this machine's GPUs; under torchrun or srun on several nodes also between nodes. The file says how each
    figure was measured. `synergyctl plan --figures FILE` reads it; its GpuType line fits slurm.conf.

    \b
    Examples:
      synergyctl profiles measure --gpu-type a100 --out a100.toml
      srun -N 2 --ntasks-per-node 1 torchrun ... -m synergyd.cli.measure --gpu-type a100 --out a100.toml
      synergyctl profiles measure --device cpu
      srun -N 2 --ntasks-per-node 1 torchrun --nproc-per-node 2 ... -m synergyd.cli.measure --pairs

    Exit code: 0; 2 if an option is wrong or torch is not installed.
    """
    try:
        text = measured_pairs(_device(device), link, as_json) if pairs else _measure(gpu_type, device, ranks, as_json)
        if text is None:
            return
        if out is None:
            click.echo(text, nl=False)
        else:
            write_atomically(out, text)
    except UsageError as error:
        click.echo(f"synergyctl profiles measure: {error}", err=True)
        sys.exit(2)


def _measure(gpu_type: str | None, device: str, ranks: int | None, as_json: bool) -> str | None:
    """Return the file's text, or None on ranks that leave it to the first one."""
    device = _device(device)
    import torch

    gpus = torch.cuda.device_count() if device == "cuda" else 0
    ranks = ranks or (gpus if device == "cuda" else 2)
    if device == "cuda" and ranks > gpus:
        raise UsageError("--ranks", f"{ranks} on {gpus} GPUs", f"at most {gpus}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        collectives = _under_torchrun(device)
        if collectives is None:
            return None
    else:
        collectives = _on_this_machine(device, ranks) if ranks > 1 else ()
    measurement = replace(one_device(torch, device, time.perf_counter), collectives=collectives)
    return _text(gpu_type or _guess_gpu_type(measurement.device, device), measurement, as_json)


def _device(name: str) -> str:
    """Return cuda or cpu. Raises UsageError."""
    try:
        import torch
    except ImportError:
        raise UsageError("torch", "is not installed", "pip install 'synergy-slurm[training]'") from None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cuda" and not gpus:
        raise UsageError("--device cuda", "torch sees no GPU", "run it where the GPUs are, or --device cpu")
    return "cpu" if name == "cpu" or not gpus else "cuda"


def _guess_gpu_type(name: str, device: str) -> str:
    """Return the type that torch's name of a device means, in Slurm's manner of writing it."""
    if device == "cpu":
        return "cpu"
    spelling = name.strip().lower().replace(" ", "_")
    return canonical(spelling) or spelling


def _text(gpu_type: str, measurement: DeviceMeasurement, as_json: bool) -> str:
    figures, remarks = derive_figures(measurement, gpu_type)
    if as_json:
        return json.dumps({"gpu_type": gpu_type, "figures": figures, "measured": asdict(measurement)}, indent=2) + "\n"
    head = (
        f"Measured on {socket.gethostname()} at {datetime.now().astimezone().isoformat(timespec='seconds')} by "
        f"`synergyctl profiles measure`.\nFor slurm.conf: {conf_line(gpu_type, figures)}\n\n{report(measurement)}"
    )
    return write_figures(gpu_type, figures, remarks, head)


def _on_this_machine(device: str, ranks: int) -> tuple[AllReduceTimings, ...]:
    """Measure collectives over `ranks` processes started here."""
    from torch.multiprocessing.spawn import start_processes

    with tempfile.TemporaryDirectory(prefix="synergy-measure-") as folder:
        try:
            start_processes(_rank, (device, ranks, folder), nprocs=ranks, start_method="spawn")  # type: ignore[no-untyped-call]
            content = json.loads((Path(folder) / "points.json").read_text(encoding="utf-8"))
        except Exception as error:  # what torch raises of its children is of many kinds, and shows a traceback
            last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise UsageError("collectives", last[0], "--ranks 1 leaves them out") from None
    return (AllReduceTimings(ranks, ranks, tuple(Timing(*pair) for pair in content)),)


def _rank(rank: int, device: str, ranks: int, folder: str) -> None:
    """Run one process of `_on_this_machine`."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks
    )
    points = all_reduces(torch, device, dist.group.WORLD, ranks, _SIZES[device], time.perf_counter)
    if rank == 0:
        pairs = [(p.amount, p.seconds) for p in points]
        (Path(folder) / "points.json").write_text(json.dumps(pairs), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _under_torchrun(device: str) -> tuple[AllReduceTimings, ...] | None:
    """Measure collectives over torchrun's own processes, of each node and of all nodes. Return None on all but the first rank."""
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    groups: list[tuple[int, Any]] = [(world, dist.group.WORLD)]
    if 1 < local < world:
        # every rank has to make every group
        nodes = [dist.new_group(list(range(first, first + local))) for first in range(0, world, local)]
        groups.insert(0, (local, nodes[rank // local]))
    timings = []
    for size, group in groups:
        points = all_reduces(torch, device, group, size, _SIZES[device], time.perf_counter)
        timings.append(AllReduceTimings(size, min(local, size), points))
    dist.barrier()
    dist.destroy_process_group()
    return tuple(timings) if rank == 0 else None


if __name__ == "__main__":
    measure(prog_name="synergyctl profiles measure")
