#!/bin/bash
#SBATCH --job-name='x\n#SBATCH --uid=0\n$(touch owned) '"'"'é" \x1b[31m'
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:2
#SBATCH --nodelist='n'"'"'1,$(touch owned)'
#SBATCH --requeue --open-mode=append
# plan: tp 1, pp 1, dp 2, micro-batch 1, global batch 2, recompute none
# why: because\nrm -rf / \x1b]0;owned\x07
set -euo pipefail

export A=$'\'\n$(touch owned)'
export SYNERGY_CHECKPOINT_DIR=$'/ck\'pt\n$(touch owned)'
export SYNERGY_PLAN_JSON='{"tp": 1, "pp": 1, "dp": 2, "micro_batch": 1, "global_batch": 2, "recompute": "none", "sequence_parallel": false, "zero_stage": 1, "vpp": 1, "cp": 1, "ep": 1, "precision": "bf16"}'
# words with $ or ` are quoted: put in by hand what the shell of your own script makes of them

srun --nodes=1 --ntasks=1 --ntasks-per-node=1 bash -c 'exec torchrun --nnodes 1 --nproc-per-node 2 --standalone "$@"' torchrun \
  'tr'"'"'ain $(touch owned).py' \
  --name '$(touch owned)' '`touch owned`' ''"'"'; touch owned; '"'"'' '"; touch owned; "' $'a\nb\ttouch owned\n' $'ünï中\xe2\x80\xae' '' -n \
  '--x=$HOME' '\' $'\\\n' '!!' '*' '~' '#SBATCH --uid=0' '| touch owned' '> owned'
