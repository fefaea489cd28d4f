#!/bin/bash
#SBATCH --job-name=m
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:1
#SBATCH --requeue --open-mode=append
set -euo pipefail

export SYNERGY_CHECKPOINT_DIR=-rf
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$(shuf -i 15000-31999 -n 1)
# words with $ or ` are quoted: put in by hand what the shell of your own script makes of them

srun --nodes=2 --ntasks=2 --ntasks-per-node=1 bash -c 'exec torchrun --nnodes 2 --nproc-per-node 1 --node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"' torchrun \
  -m 'pa'"'"'ckage' '$(touch owned)' '`touch owned`' ''"'"'; touch owned; '"'"'' '"; touch owned; "' $'a\nb\ttouch owned\n' $'ünï中\xe2\x80\xae' '' -n \
  '--x=$HOME' '\' $'\\\n' '!!' '*' '~' '#SBATCH --uid=0' '| touch owned' '> owned'
