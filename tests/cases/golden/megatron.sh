#!/bin/bash
#SBATCH --job-name=llama
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:4
#SBATCH --nodelist=n1,n2
#SBATCH --requeue --open-mode=append
# plan: tp 2, pp 2, dp 2, micro-batch 1, global batch 16, recompute selective
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export SYNERGY_CHECKPOINT_DIR='/scratch/ck pt'
export SYNERGY_PLAN_JSON='{"tp": 2, "pp": 2, "dp": 2, "micro_batch": 1, "global_batch": 16, "recompute": "selective", "sequence_parallel": true, "zero_stage": 1, "vpp": 1, "cp": 1, "ep": 1, "precision": "bf16"}'
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$(shuf -i 15000-31999 -n 1)

srun --nodes=2 --ntasks=2 --ntasks-per-node=1 bash -c 'exec torchrun --nnodes 2 --nproc-per-node 4 --node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"' torchrun \
  pretrain_gpt.py \
  --num-layers 4 \
  --num-attention-heads=8 \
  --data-path 0.3 'a b' 0.7 c \
  --lr 1e-4 \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 \
  --micro-batch-size 1 \
  --global-batch-size 16 \
  --make-vocab-size-divisible-by 512 \
  --sequence-parallel \
  --recompute-granularity selective \
  --use-distributed-optimizer \
  --dist-ckpt-optim-fully-reshardable \
  --ckpt-format torch_dist \
  --overlap-grad-reduce \
  --overlap-param-gather \
  --override-opt_param-scheduler \
  --exit-signal-handler \
  --save '/scratch/ck pt' \
  --load '/scratch/ck pt'
