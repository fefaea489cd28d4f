#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH --requeue --open-mode=append
# plan: tp 1, pp 1, dp 4, micro-batch 1, global batch 8, recompute none
set -euo pipefail

export SYNERGY_PLAN_JSON='{"tp": 1, "pp": 1, "dp": 4, "micro_batch": 1, "global_batch": 8, "recompute": "none", "sequence_parallel": false, "zero_stage": 1, "vpp": 1, "cp": 1, "ep": 1, "precision": "bf16"}'

srun --nodes=1 --ntasks=1 --ntasks-per-node=1 bash -c 'exec torchrun --nnodes 1 --nproc-per-node 4 --standalone "$@"' torchrun \
  train.py \
  --steps 10 data.bin
