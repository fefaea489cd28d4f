#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH --nodelist=n1,n2
#SBATCH --requeue --open-mode=append
# plan: tp 1, pp 1, dp 8, micro-batch 1, global batch 8, recompute none
# why: grows
set -euo pipefail

export SYNERGY_CHECKPOINT_DIR=/ckpt
export SYNERGY_PLAN_JSON='{"tp": 1, "pp": 1, "dp": 8, "micro_batch": 1, "global_batch": 8, "recompute": "none", "sequence_parallel": false, "zero_stage": 1, "vpp": 1, "cp": 1, "ep": 1, "precision": "bf16"}'
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$(shuf -i 15000-31999 -n 1)

srun --nodes=2 --ntasks=2 --ntasks-per-node=1 bash -c 'exec torchrun --nnodes 2 --nproc-per-node 4 --node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"' torchrun \
  train.py \
  --steps 10
