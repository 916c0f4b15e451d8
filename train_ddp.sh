#!/usr/bin/env bash
#
# Trains with torch.distributed.launch, the launcher from before torchrun: the same variables and checks as
# train_torchrun.sh. PyTorch warns that it is deprecated; use it where a cluster's own scripts expect it.
#
#   bash train_ddp.sh                                             a small demonstration
#   bash train_ddp.sh --dataset voc --dataset_path VOC2012        your training: any flag of train.py
#   CUDA_VISIBLE_DEVICES=0,1 bash train_ddp.sh --batchsize 8      on two of the GPUs
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash train_ddp.sh   the first of two machines
#   NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 bash train_ddp.sh   the second one
#   bash train_ddp.sh --master_port 12345                         a flag of torchrun in the place of a variable
#   bash train_ddp.sh -h                                          every variable

set -euo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
readonly ROOT
# shellcheck source=scripts/launch/python_env.sh
source "${ROOT}/scripts/launch/python_env.sh"
# shellcheck source=scripts/launch/processes.sh
source "${ROOT}/scripts/launch/processes.sh"

usage() {
  cat << 'END'
Usage: [VARIABLE=VALUE ...] bash train_ddp.sh [ARGUMENT OF train.py ...]

Trains with torch.distributed.launch, one process per GPU. train_torchrun.sh is the newer route.

END
  print_shared_help
  cat << 'END'

Examples:
  bash train_ddp.sh
  bash train_ddp.sh --layers 50 --model_type res50_ASPP_lorm --dataset voc --dataset_path VOC2012
  CUDA_VISIBLE_DEVICES=0,1 bash train_ddp.sh --batchsize 8 --resume auto
  CUDA_VISIBLE_DEVICES='' bash train_ddp.sh --nproc_per_node 4 --layers 18 --crop_size 64
  NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash train_ddp.sh --dataset voc --dataset_path VOC2012
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
  # --use_env: the rank comes by LOCAL_RANK, as with torchrun, and not as an argument --local-rank.
  run_launcher torch.distributed.launch --use_env "${LAUNCHER_ARGUMENTS[@]}" \
    "${ROOT}/train.py" --distributed "${TRAIN_ARGUMENTS[@]}"
}

main "$@"
