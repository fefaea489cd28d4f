"""A small byte-level GPT on megatron-core, trained on the Python language reference.

    torchrun --nproc-per-node 4 -m synergy_launch.examples.gpt --steps 20 --checkpoint /tmp/gpt

Degrees and batch come from Synergy's plan; without one every process is a data-parallel replica. The losses are the
same on every plan, and a run may go on from its checkpoint under any other.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace

from synergy_core.records import ModelSpec, Plan

from synergy_launch.agent.agent import Agent
from synergy_launch.agent.settings import AgentSettings, at_own_batch, check_plan
from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.batch.learning_rate import Schedule
from synergy_launch.examples.arguments import common_arguments


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = common_arguments(__doc__, global_batch=8, lr_rule="sqrt", count="examples")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--gated", action="store_true", help="SwiGLU, RMSNorm and untied embeddings, as Llama has")
    parser.add_argument("--micro-batch", type=int, default=1, help="without a plan (default 1)")
    parser.add_argument("--warmup", type=int, default=0, metavar="STEPS", help="steps of --global-batch (default 0)")
    parser.add_argument("--cosine", action="store_true", help="to a tenth of --lr at the end (default: constant)")
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args(argv)


def model_spec(args: argparse.Namespace) -> ModelSpec:
    return ModelSpec(
        name="byte-gpt",
        layers=args.layers,
        hidden=args.hidden,
        heads=args.heads,
        kv_heads=args.heads,
        ffn=4 * args.hidden,
        vocab=256,
        seq=args.seq,
        gated=args.gated,
        tied_embeddings=not args.gated,
    )


def train(args: argparse.Namespace, settings: AgentSettings) -> None:
    plan = settings.plan or check_plan(
        Plan(dp=settings.world, micro_batch=args.micro_batch, global_batch=args.global_batch), settings.world
    )
    settings = replace(settings, accepts={**(settings.accepts or {}), "blocks": True})
    if settings.own_batch:
        plan = at_own_batch(plan, args.global_batch, "--global-batch")
    # Imported here: wrong settings are reported without waiting for torch.
    from synergy_launch.examples.text import TextWindows
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group
    from synergy_launch.pytorch.device import device_memory, peak_memory

    ranks = start_process_group()
    agent = Agent(settings, plan, ranks, peak_memory=peak_memory, device_memory=device_memory)
    agent.install_signals()
    with agent.watching():
        spec = model_spec(args)
        checkpoint = agent.find_checkpoint(args.checkpoint).checkpoint
        plan = agent.find_bounded_plan(args.global_batch)
        text = TextWindows(args.seq, args.seed)
        run = MegatronRun(
            spec,
            plan,
            ranks,
            text.sample,
            lr=args.lr,
            seed=args.seed,
            bf16=args.bf16,
            checkpoint=checkpoint,
            base_batch=args.global_batch,
            lr_rule=args.lr_rule,
            count=args.count,
            schedule=Schedule(args.warmup * args.global_batch, args.steps * args.global_batch if args.cosine else 0),
            skipped=agent.skipped,
        )
        for remark in (run.note, run.following.format_factors(plan.global_batch, run.noise_scale)):
            if remark:
                agent.note(remark)
        agent.start(
            run.step,
            save=run.save,
            stage=run.stage_save,
            checkpoint_interval=args.checkpoint_interval,
            resharding=True,
            model=spec,
            tokens=run.tokens,
            base_batch=run.following.base,
            peers=run.stage,
            kernels=run.kernels,
        )
        while not run.following.has_finished(args.steps):
            loss = run.train_step()
            if args.step_delay:
                time.sleep(args.step_delay)
            if not agent.after_step(
                run.step,
                loss=loss,
                tokens=run.tokens,
                noise_scale=run.noise_scale,
                own_s=run.forward_timer.take(),
                done=run.following.examples_done,
                total=run.following.total,
                samples=run.samples,
            ):
                return
            changed = agent.take_batch()
            if changed is not None:
                run.follow(changed)
                agent.note(
                    run.following.format_factors(changed.global_batch, run.noise_scale) or "back at the tuned batch"
                )
        agent.finish()


def main(argv: list[str] | None = None) -> int:
    # Until the agent listens, a request for a checkpoint has nothing to save and must not kill the process.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    args = arguments(argv)
    with exit_on_error():
        train(args, AgentSettings.from_environment())
    return 0


# The guard matters: saving spawns a process that imports this file again.
if __name__ == "__main__":
    sys.exit(main())
