"""Training runs for tests: one process a rank, forked from a server that has imported torch and Megatron once.

A plan then takes 1 to 4 seconds in place of 15. What `run` is given to call executes in the ranks; rank 0's result
comes back.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from synergy_core.records import ModelSpec, Plan
from synergy_launch.agent.background_save import BackgroundSave
from synergy_launch.agent.checkpoint import Checkpoints
from synergy_launch.examples.text import TextWindows

from tests.paths import ROOT, python_path

SPEC = ModelSpec("test", layers=4, hidden=32, heads=4, kv_heads=4, ffn=128, vocab=256, seq=32)


class Call:
    """A function of this module (or "module:name") with its arguments, as it can be sent to a rank."""

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        module, _, self.name = name.rpartition(":")
        self.module, self.args, self.kwargs = module or __name__, args, kwargs

    def __call__(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)(*self.args, **self.kwargs)


class Failed(AssertionError):
    """A rank ended with another code than was expected."""


def context() -> Any:
    """Where processes are forked from."""
    forkserver: Any = multiprocessing.get_context("forkserver")
    # The server does not take over sys.path (Python 3.11).
    os.environ["PYTHONPATH"] = python_path()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    forkserver.set_forkserver_preload(
        [
            "synergy_launch.megatron_core.training",
            "synergy_launch.pytorch.training",
            "synergy_launch.pytorch.pipeline",
            "torch.distributed.fsdp",
            "torch._dynamo",
        ]
    )
    return forkserver


def run(
    folder: Path,
    world: int,
    call: Call,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 240.0,
    code: int = 0,
) -> tuple[Any, str]:
    """Run `call` in `world` ranks; (rank 0's result, all ranks' output). Raises Failed with that output."""
    ranks = start(folder, world, call, environment)
    deadline = time.monotonic() + timeout_s
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in ranks:
        if process.is_alive():
            process.kill()
            process.join()
    output = "".join((folder / f"rank{rank}.out").read_text(errors="replace") for rank in range(world))
    codes = [process.exitcode for process in ranks]
    if any(answer != code for answer in codes):
        raise Failed(f"exit codes {codes} instead of {code}\n{output[-6000:]}")
    result = folder / "result"
    return (pickle.loads(result.read_bytes()) if code == 0 and result.exists() else None), output


def start(folder: Path, world: int, call: Call, environment: Mapping[str, str] | None = None) -> list[Any]:
    """The processes of `world` ranks, started; their output and rank 0's result go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = context()
    ranks = []
    for rank in range(world):
        values = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **(environment or {}),
        }
        ranks.append(server.Process(target=_rank, args=(folder, rank, values, call)))
    for process in ranks:
        process.start()
    return ranks


def _rank(folder: Path, rank: int, values: Mapping[str, str], call: Call) -> None:
    os.environ.update(values)
    with (folder / f"rank{rank}.out").open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    result = call()
    if rank == 0:
        (folder / "result").write_bytes(pickle.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through Python's own shutdown: gloo's threads have nothing left to do, and waiting for them takes a second.
    os._exit(0)


def gpt(
    plan: Plan,
    steps: int,
    *,
    spec: ModelSpec = SPEC,
    checkpoint: Path | None = None,
    save: bool = False,
    die_in_save: bool = False,
    distributed_optimizer: bool = False,
    lr: float = 3e-3,
    bf16: bool = False,
    decay: float | None = None,
    beside: int = 0,
) -> dict[str, Any]:
    """Train up to `steps` steps, from the newest good checkpoint in `checkpoint` if there is one.

    `beside`: the checkpoint is written while so many further steps are made.
    """
    from synergy_launch.megatron_core.model import CPU
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group

    ranks = start_process_group()
    store = Checkpoints(checkpoint, ranks) if checkpoint else None
    found = store.find() if store else None
    run = MegatronRun(
        spec,
        plan,
        ranks,
        TextWindows(spec.seq).sample,
        lr=lr,
        bf16=bf16,
        distributed_optimizer=distributed_optimizer,
        checkpoint=found.checkpoint if found else None,
    )
    if decay is not None and run.noise is not None:
        run.noise.scale.decay = decay
    first = run.step
    forwards: list[int] = []
    for layer in run.model.module.decoder.layers:
        layer.mlp.register_forward_hook(lambda *_: forwards.append(1))
    losses = [run.train_step() for _ in range(first, steps)]
    if beside and store:
        background = BackgroundSave(store)
        background.begin(run.step, run.stage_save)
        for _ in range(beside):
            losses.append(run.train_step())
            background.advance(*ranks.maximum(background.state()))
        background.wait()
    elif save and store:

        def write(folder: Path) -> Mapping[str, Any]:
            meta = run.save(folder)
            if die_in_save:
                ranks.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
            return meta

        store.save(run.step, write)
    return {
        "first": first,
        "losses": losses,
        "note": found.note if found else "",
        "noise": run.noise_scale,
        "samples": run.samples,
        "mlps": len(forwards) / max(1, (run.step - first) * plan.micro_batches),
        "intercepted": dict(CPU.intercepted) if CPU else {},
    }


def example(module: str, argv: list[str]) -> int:
    """`python -m module argv`; its exit code."""
    code: object = 0
    with contextlib.suppress(FileNotFoundError):
        os.chdir(ROOT)
    try:
        code = importlib.import_module(module).main(argv)
    except SystemExit as end:
        code = end.code
    if code:
        sys.stdout.flush()
        os._exit(int(str(code)))
    return 0


def gpt_noise_by_brute_force(samples: int, spec: ModelSpec = SPEC) -> float:
    """Noise scale at the initial weights from one gradient per sample: tr(covariance) / |mean|^2, both unbiased."""
    import torch
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group

    run = MegatronRun(spec, Plan(), start_process_group(), TextWindows(spec.seq).sample, noise=False)
    model = run.model.module
    total: list[Any] = []
    squares = 0.0
    for number in range(samples):
        # An autograd of its own, past Megatron's accumulation and averaging.
        output, loss_of = run._forward(iter([[number]]), model)
        chosen = [p for name, p in model.named_parameters() if "word_embeddings" not in name]
        gradients = torch.autograd.grad(loss_of(output)[0], chosen)
        squares += sum(float(g.double().square().sum()) for g in gradients)
        total = (
            [a + g.double() for a, g in zip(total, gradients, strict=True)]
            if total
            else [g.double() for g in gradients]
        )
    mean_square = sum(float((t / samples).square().sum()) for t in total)
    trace = (squares / samples - mean_square) * samples / (samples - 1)
    return trace / (mean_square - trace / samples)


def sharded(checkpoint: Path, steps: int, *, interval: int = 0, die_at: int = 0) -> list[float]:
    """A small model under FSDP2 with SynergyTask; the losses of the steps made.

    After `die_at` steps it dies without a word, as soon as what is being written is there.
    """
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask
    from synergy_launch.examples.ddp import ByteModel
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = ByteModel(16, 2)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    with SynergyTask(
        model, optimizer, global_batch=8, micro_batch=1, checkpoint=checkpoint, checkpoint_interval=interval
    ) as task:
        for rows in task.batches(
            TextWindows(32), steps, collate=lambda items: torch.tensor([list(item) for item in items])
        ):
            logits = model(rows[:, :-1])
            before = task.step_count
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
            if task.step_count > before:
                losses.append(float(task.agent.status["loss"]))
            if die_at and task.step_count == die_at:
                task.agent.checkpointer.settle()
                os._exit(9)
        assert task.noise.state()["weight"] > 0  # every step had two norms to compare
    return losses


def rebatched(
    checkpoint: Path,
    plan: Plan | None,
    steps: int,
    *,
    rule: str = "",
    optimiser: str = "AdamW",
    lr: float = 3e-3,
    update_s: float = 0.0,
) -> dict[str, Any]:
    """A small model tuned for a global batch of 8, trained under `plan` (None: none is given) with SynergyTask up to 8 * `steps` examples.

    Its learning rate falls by a thirtieth for every 8 examples, to a tenth. `update_s` is added to each step, whatever its batch.
    """
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask
    from synergy_launch.examples.ddp import ByteModel
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(ByteModel(16, 2))
    optimizer = getattr(torch.optim, optimiser)(model.parameters(), lr=lr, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / 30))
    if plan is not None:
        os.environ["SYNERGY_PLAN_JSON"] = json.dumps(asdict(plan))
    rates: list[float] = []
    real_step = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        rates.append(float(optimizer.param_groups[0]["lr"]))
        time.sleep(update_s)
        return real_step(*args, **kwargs)

    losses: list[float] = []
    with SynergyTask(
        model, optimizer, global_batch=8, checkpoint=checkpoint, scheduler=scheduler, lr_rule=rule, seed=3
    ) as task:
        optimizer.step = step  # not before: loading makes an empty step
        for rows in task.batches(
            TextWindows(32), steps, collate=lambda items: torch.tensor([list(item) for item in items])
        ):
            before = task.step_count
            logits = model(rows[:, :-1])
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
            if task.step_count > before:
                losses.append(float(task.agent.status["loss"]))
        return {
            "rates": rates[: len(losses)],  # saving a state that is empty makes an empty step too
            "losses": losses,
            "samples": task.samples,
            "progress": task.following.progress,
            "noise": task.noise.value,
            "schedule": scheduler.last_epoch,
            "tuned": float(optimizer.param_groups[0]["lr"]),
            "weights": torch.cat([p.detach().flatten() for p in model.parameters()]),
            "plan": asdict(task.plan),
            "note": task.agent.status["note"],
        }


def rebatched_by_hand(batches: list[int]) -> Any:
    """What `rebatched` with AdamW and its usual rule must come to, written out: the weights after those steps."""
    import math

    import torch
    from synergy_launch.batch.data_order import SampleOrder
    from synergy_launch.examples.ddp import ByteModel

    torch.manual_seed(0)
    model = ByteModel(16, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    text = TextWindows(32)
    order = SampleOrder(len(text), 3)
    seen = 0
    for batch in batches:
        scale = batch / 8
        group = optimizer.param_groups[0]
        group["lr"] = 3e-3 * (1 - (seen // 8) / 30) * math.sqrt(scale)
        group["weight_decay"] = 0.1 * math.sqrt(scale)
        rows = torch.tensor([list(text[order.index(seen + i)]) for i in range(batch)])
        logits = model(rows[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        seen += batch
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def straggling(steps: int, delay_s: float) -> dict[str, Any]:
    """Each rank as if on a node of its own, the last of which takes `delay_s` longer for its forward pass."""
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask
    from synergy_launch.examples.ddp import ByteModel
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    os.environ["SLURMD_NODENAME"] = f"node{dist.get_rank()}"
    late = dist.get_rank() == dist.get_world_size() - 1
    model = DistributedDataParallel(ByteModel(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with SynergyTask(model, optimizer, global_batch=2 * dist.get_world_size()) as task:
        for rows in task.batches(
            TextWindows(16), steps, collate=lambda items: torch.tensor([list(item) for item in items])
        ):
            logits = model(rows[:, :-1])
            time.sleep(0.01 + late * delay_s)
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
        return {
            "slow": task.agent.stragglers.slow if task.agent.stragglers else None,
            "status": task.agent.status.values,
        }


def drifting(steps: int, *, rule: str, heeds: bool = True) -> dict[str, Any]:
    """A linear model of 8 features under SGD, with labels that no model can tell wholly, tuned for a global batch of 8, which is
    doubled up to 64 as often as a batch is chosen at all. Each step's batch and loss. Without `heeds` the loss is not watched.

    With gaussian inputs and rate r the squared error of the weights is multiplied by 1 - 4r + 4r^2 (1 + 9/B) in each step: by .28 at a
    batch B of 32 and four times the rate, by 1.56 at 64 and eight times, where the loss grows from step to step.
    """
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask
    from synergy_launch.batch import tuner
    from torch.nn.parallel import DistributedDataParallel

    def choose(plan: Plan, limits: tuple[int, int], *_: Any) -> Plan:
        return tuner.fit_batch(plan, min(2 * plan.global_batch, limits[1]), plan.micro_batch) or plan

    vars(tuner)["choose_plan"] = choose  # what pays depends on how busy the machine is
    if not heeds:
        tuner.BatchTuner._back = lambda *_: None  # type: ignore[method-assign]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(1 << 14, 8)
    labels = inputs @ torch.ones(8) + torch.randn(1 << 14)
    model = DistributedDataParallel(torch.nn.Linear(8, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    os.environ["SYNERGY_PLAN_JSON"] = json.dumps(asdict(Plan(dp=2, micro_batch=4, global_batch=8)))
    batches: list[int] = []
    losses: list[float] = []
    with SynergyTask(model, optimizer, global_batch=8, lr_rule=rule, count="examples", batch_range=(8, 64)) as task:
        for rows, wanted in task.batches(torch.utils.data.TensorDataset(inputs, labels), steps):
            before, batch = task.step_count, task.plan.global_batch
            task.step((model(rows).squeeze(1) - wanted).square().mean())
            if task.step_count > before:
                losses.append(float(task.agent.status["loss"]))
                batches.append(batch)
        return {"batches": batches, "losses": losses}


def placed_on_groups() -> tuple[Any, ...]:
    """Of a layer on the plan's mesh: its dimensions, those it is put on, how its weight is placed, and the part of it that a rank has."""
    import torch
    import torch.distributed as dist
    from synergy_launch import data_mesh, plan_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    dist.init_process_group("gloo")
    mesh = plan_mesh("cpu")
    layer = torch.nn.Linear(8, 8, bias=False)
    fully_shard(layer, mesh=data_mesh(mesh))
    weight = layer.weight
    assert isinstance(weight, DTensor)
    placed = " ".join("R" if p.is_replicate() else f"S({p.dim})" for p in weight.placements)  # type: ignore[attr-defined]
    share = weight.to_local().numel() / weight.numel()
    return mesh.mesh_dim_names, tuple(mesh.shape), weight.device_mesh.mesh_dim_names, placed, share
