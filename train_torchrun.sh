#!/usr/bin/env bash
#
# Trains with torchrun on every GPU of this machine (without a GPU: in two CPU processes).
#
#   bash train_torchrun.sh                                             a small demonstration
#   bash train_torchrun.sh --dataset voc --dataset_path VOC2012        your training: any flag of train.py
#   CUDA_VISIBLE_DEVICES=0,1 bash train_torchrun.sh --batchsize 8      on two of the GPUs
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh   the first of two machines
#   NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh   the second one
#   bash train_torchrun.sh --master_port 12345                         a flag of torchrun in the place of a variable
#   bash train_torchrun.sh -h                                          every variable

set -euo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
readonly ROOT
# shellcheck source=scripts/launch/python_env.sh
source "${ROOT}/scripts/launch/python_env.sh"
# shellcheck source=scripts/launch/processes.sh
source "${ROOT}/scripts/launch/processes.sh"

usage() {
  cat << 'END'
Usage: [VARIABLE=VALUE ...] bash train_torchrun.sh [ARGUMENT OF train.py ...]

Trains with torchrun, one process per GPU.

END
  print_shared_help
  cat << 'END'

Examples:
  bash train_torchrun.sh
  bash train_torchrun.sh --layers 50 --model_type res50_ASPP_lorm --dataset voc --dataset_path VOC2012
  CUDA_VISIBLE_DEVICES=0,1 bash train_torchrun.sh --batchsize 8 --resume auto
  CUDA_VISIBLE_DEVICES='' bash train_torchrun.sh --nproc_per_node 4 --layers 18 --crop_size 64
  NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh --dataset voc --dataset_path VOC2012
END
}

main() {
  if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
    usage
    exit
  fi
  take_launch_flags "$@"
  if ((${#TRAIN_ARGUMENTS[@]} == 0)); then
    TRAIN_ARGUMENTS=(--config demo)
  fi
  check_launch_variables
  find_python "${ROOT}"
  plan_processes
  run_launcher torch.distributed.run "${LAUNCHER_ARGUMENTS[@]}" \
    "${ROOT}/train.py" --distributed "${TRAIN_ARGUMENTS[@]}"
}

main "$@"
