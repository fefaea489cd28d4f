#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --requeue --open-mode=append
set -euo pipefail


srun --nodes=1 --ntasks=1 --ntasks-per-node=1 bash -c 'exec torchrun --nnodes 1 --nproc-per-node 1 --standalone "$@"' torchrun \
  -m my.package run \
  --steps 10 20
