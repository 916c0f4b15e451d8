#!/usr/bin/env bash
#
# Trains with torchrun in a SLURM job: one torchrun per node, started by srun, one process per GPU.
#
#   sbatch --gpus-per-node=8 train_slurm.sh --dataset voc --dataset_path VOC2012            one node: any flag of train.py
#   sbatch --nodes=2 --gpus-per-node=8 --cpus-per-task=64 train_slurm.sh --config my.yaml   two nodes of eight GPUs
#   sbatch --nodes=2 --partition=gpu --time=24:00:00 train_slurm.sh --resume auto           options of sbatch come first
#   MAX_RESTARTS=3 sbatch --nodes=2 train_slurm.sh --chk_steps 500                 continues by itself after a failure
#   bash train_slurm.sh -h                                                                  every variable
#
# Submit it in the project's folder, which every node must see. What the job prints is in slurm-<job id>.out.
#
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@120

set -euo pipefail

# A batch script runs as a copy in SLURM's own folder: the project is where it was submitted, or ROOT.
ROOT="${ROOT:-${SLURM_SUBMIT_DIR:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)}}"
readonly ROOT

fail() {
  printf 'train_slurm.sh: error: %s\n' "$1" >&2
  exit 2
}

usage() {
  cat << 'END'
Usage: [VARIABLE=VALUE ...] sbatch [OPTION OF sbatch ...] train_slurm.sh [ARGUMENT OF train.py ...]

Trains with torchrun on every node of a SLURM job, one process per GPU that the job has there.

Environment:
  MASTER_PORT           port on which the nodes meet (default: 15000 + job id % 15000)
  MASTER_ADDR           where they meet (default: the job's first node)
  ROOT                  the project's folder (default: where sbatch was called)
  and those of train_torchrun.sh, except NNODES and NODE_RANK, which are the job's: `bash train_torchrun.sh -h`

Every argument goes to train.py as given; `python train.py --help` lists them. Two minutes before its time limit the
training is asked to stop: it saves a checkpoint, and `--resume auto` continues from there in the next job.

Examples:
  sbatch train_slurm.sh --layers 50 --dataset voc --dataset_path VOC2012
  sbatch --nodes=2 --gpus-per-node=8 train_slurm.sh --dataset voc --dataset_path VOC2012
  MAX_RESTARTS=3 sbatch --nodes=2 train_slurm.sh --dataset voc --dataset_path VOC2012 --chk_steps 500
END
}

main() {
  if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
    usage
    exit
  fi
  local argument
  for argument in "$@"; do
    case "${argument%%=*}" in
      --nnodes | --node_rank | --node-rank)
        fail "${argument%%=*} is the job's; give --nodes to sbatch, before train_slurm.sh"
        ;;
    esac
  done
  [[ -n "${SLURM_JOB_ID:-}" ]] \
    || fail "no SLURM job (SLURM_JOB_ID is not set); submit it: sbatch train_slurm.sh, or use train_torchrun.sh here"
  [[ -f "${ROOT}/train_torchrun.sh" ]] \
    || fail "no train_torchrun.sh in ${ROOT}; call sbatch in the project's folder, or set ROOT to it"
  local hosts
  hosts="$(scontrol show hostnames "${SLURM_JOB_NODELIST}")" || fail "scontrol does not know the nodes of this job"
  export ROOT MASTER_ADDR="${MASTER_ADDR:-${hosts%%$'\n'*}}"
  # Below the range from which outgoing connections get theirs, and another one for each job on a shared node.
  export MASTER_PORT="${MASTER_PORT:-$((15000 + SLURM_JOB_ID % 15000))}"
  export NNODES="${SLURM_JOB_NUM_NODES:-1}"
  # srun does not take this from sbatch since SLURM 22.05, and a task would get one core.
  [[ -z "${SLURM_CPUS_PER_TASK:-}" ]] || export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK}"
  # One task per node, whatever the job's options say; SLURM_NODEID, which is each node's own, is its NODE_RANK.
  # shellcheck disable=SC2016  # for the node's shell, not for this one
  exec srun --nodes="${NNODES}" --ntasks="${NNODES}" --ntasks-per-node=1 --kill-on-bad-exit=1 \
    bash -c 'NODE_RANK="${SLURM_NODEID}" exec bash "${ROOT}/train_torchrun.sh" "$@"' train_slurm.sh "$@"
}

main "$@"
