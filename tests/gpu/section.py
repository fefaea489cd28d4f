"""One part of the run in a process of its own: `python -m tests.gpu.section NAME --out FILE`; a JSON line a result."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MethodType
from typing import Any

from synergy_core.records import ModelSpec, Plan

from tests.gpu.sizes import FULL, TINY, Setting, Sizes
from tests.paths import ROOT

_USUAL = Setting(micro_batch=1, seq=0, recompute="none", fused=True)
Result = dict[str, Any]
Part = tuple[str, Callable[[], Any]]


def hardware(sizes: Sizes, work: Path) -> Iterator[Part]:
    """`synergyctl profiles measure`, NCCL with one rank, and shapes."""
    from tests.gpu import adapters, device, gemms

    def figures() -> Result:
        command = [sys.executable, "-m", "synergyd.cli.measure", "--ranks", "1", "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
        if done.returncode:
            raise RuntimeError(done.stderr[-600:])
        found: Result = json.loads(done.stdout)
        return found

    def collectives() -> list[Result]:
        import torch
        import torch.distributed as dist

        from synergyd.jobmodel.model.measure import all_reduces

        adapters.one_rank()
        points = all_reduces(
            torch, device.DEVICE.type, dist.group.WORLD, 1, (1 << 12, 1 << 20, 1 << 27), time.perf_counter
        )
        return [{"bytes": p.amount, "seconds": p.seconds} for p in points]

    yield "figures", figures
    yield "one-rank all-reduce", collectives
    for name in ("alignment", "layers", "attention", "waves"):
        yield name, lambda name=name: list(getattr(gemms, name)(sizes))  # type: ignore[misc]


def plain(sizes: Sizes, work: Path) -> Iterator[Part]:
    """Plain PyTorch: overhead, settings, checkpoints."""
    from tests.gpu import overhead, saves, step_rows

    yield "rows", lambda: step_rows.plain(sizes.model, sizes.plain)
    for count in (2, 1):
        yield f"overhead, {count} micro-batches", lambda c=count: overhead.plain(sizes, c)  # type: ignore[misc]
    yield "checkpoint", lambda: saves.plain(sizes.model, work / "plain", 1)


def megatron(sizes: Sizes, work: Path) -> Iterator[Part]:
    """megatron-core: overhead, settings, checkpoints, of one model that is made once."""
    from megatron.core.distributed import finalize_model_grads
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group

    from tests.gpu import overhead, saves, step_rows

    ranks = start_process_group()

    def make(checkpoint: Any = None) -> Any:
        longest = max(sizes.model.seq, *(s.seq for s in sizes.megatron))
        tokens = _tokens(sizes.model, longest)

        def sample(number: int) -> Any:
            return tokens[number % 16][: made.spec.seq + 1]

        made: Any = MegatronRun(sizes.model, Plan(), ranks, sample, lr=1e-4, bf16=True, checkpoint=checkpoint)
        _use(made, _USUAL)
        return made

    runs: list[Any] = []
    yield "build", lambda: runs.append(make())
    for count in (2, 1):
        yield (
            f"overhead, {count} micro-batches",
            lambda c=count: overhead.megatron(runs[0], sizes, c, finalize_model_grads),  # type: ignore[misc]
        )
    yield "rows", lambda: step_rows.megatron(runs[0], sizes.megatron, _use)
    _use(runs[0], _USUAL)
    yield "checkpoint", lambda: saves.megatron(runs.pop(), work / "megatron", make)


def _tokens(spec: ModelSpec, longest: int) -> list[list[int]]:
    import torch

    seeded = torch.Generator().manual_seed(0)  # a run that is made anew goes on with the same data
    found: list[list[int]] = torch.randint(0, spec.vocab, (16, longest + 1), generator=seeded, device="cpu").tolist()
    return found


def _use(run: Any, setting: Setting) -> None:
    """Recompute and attention of a run that is there: Megatron reads both at each pass."""
    from megatron.core import parallel_state
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    full = setting.recompute == "full"
    run.config.recompute_granularity = "full" if full else None
    run.config.recompute_method, run.config.recompute_num_layers = ("uniform", 1) if full else (None, None)
    # kept between steps, of the largest size so far
    parallel_state.get_global_memory_buffer().buffer.clear()
    for layer in run.model.module.decoder.layers:
        attention = layer.self_attention
        attention.checkpoint_core_attention = setting.recompute == "selective"
        core = attention.core_attention
        core.forward = MethodType(_fused if setting.fused else DotProductAttention.forward, core)


def _fused(core: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    """torch's fused causal attention in the place of Megatron's own, which keeps the scores: (s, b, heads, width) each."""
    import torch

    q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.permute(2, 0, 1, 3).flatten(2)


def restart(sizes: Sizes, work: Path) -> Iterator[Part]:
    """Restart in place."""
    from tests.gpu import device, saves
    from tests.gpu import restart as module

    kind = "tiny" if sizes is TINY else "full"
    for warm in (False, True):
        yield (
            f"restart in place, {'warm' if warm else 'cold'}",
            lambda warm=warm: module.measure(work / "plain", kind, warm=warm),  # type: ignore[misc]
        )
    size_bytes = sum(path.stat().st_size for path in (work / "plain").rglob("*") if path.is_file())
    with module.memory_folder(2 * size_bytes) as folder:
        yield "checkpoint in memory", lambda: saves.plain(sizes.model, folder, 1)
        device.free_memory()
        yield "restart in place, warm, from memory", lambda: module.measure(folder, kind, warm=True)


def adapters(sizes: Sizes, work: Path) -> Iterator[Part]:
    """Each adapter's small run."""
    from tests.gpu import adapters as module

    module.one_rank()
    yield from module.cases(sizes, work / "adapters")


def counters(sizes: Sizes, work: Path) -> Iterator[Part]:
    """What the launcher reads of the GPU."""
    from tests.gpu import counters as module

    yield "idle", module.idle
    yield "matrix products", lambda: module.matmuls(2 * sizes.gemm)
    yield "copies", lambda: module.copies(1 << 30)
    yield "the launcher's samples", lambda: module.sampled(2 * sizes.gemm)
    yield "cost of a reading", module.cost


SECTIONS: dict[str, Callable[[Sizes, Path], Iterator[Part]]] = {
    "hardware": hardware,
    "counters": counters,  # NVIDIA only
    "adapters": adapters,
    "plain": plain,
    "megatron": megatron,
    "restart": restart,  # from the checkpoint that "plain" leaves
}


def run(name: str, sizes: Sizes, work: Path, out: Path) -> int:
    """Every part of the section; what fails is noted, and the next one is tried. The number of failures."""
    failed = 0
    with out.open("a") as lines:

        def note(**values: Any) -> None:
            print(json.dumps({"section": name, **values}), file=lines, flush=True)

        try:
            for part, measure in SECTIONS[name](sizes, work):
                began = time.perf_counter()
                try:
                    found = measure()
                    if isinstance(found, Iterator):
                        for number, one in enumerate(found):
                            note(part=part, number=number, found=one)
                        found = None
                    note(part=part, found=found, seconds=time.perf_counter() - began)
                except (Exception, SystemExit) as error:  # the others still count
                    failed += 1
                    traceback.print_exc()
                    note(part=part, error=f"{type(error).__name__}: {error}"[:600], seconds=time.perf_counter() - began)
                print(f"{name}: {part}: {time.perf_counter() - began:.1f} s", flush=True)
        except Exception as error:
            failed += 1
            traceback.print_exc()
            note(part="section", error=f"{type(error).__name__}: {error}"[:600])
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SECTIONS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    told = parser.parse_args()
    work = told.work or Path(tempfile.mkdtemp(prefix="synergy-gpu-"))
    return min(1, run(told.name, TINY if told.tiny else FULL, work, told.out))


if __name__ == "__main__":
    sys.exit(main())
