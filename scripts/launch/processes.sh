# shellcheck shell=bash
# Plans the processes of a distributed run from the environment. Sourced after python_env.sh; needs bash >= 3.2.
#
#   source "${ROOT}/scripts/launch/processes.sh"
#   take_launch_flags "$@"          sets TRAIN_ARGUMENTS, and MASTER_PORT from --master_port, and so on
#   check_launch_variables          ends the script if one of them is unusable; needs no Python
#   plan_processes                  sets LAUNCHER_ARGUMENTS, exports OMP_NUM_THREADS; reads PYTHON; with several nodes
#                                   waits for the first one, and exports GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME
#   run_launcher MODULE ARGUMENT ...   prints the command that starts this launcher of torch, then becomes it

readonly DEFAULT_MASTER_PORT=29500

#######################################
# Sorts the arguments: a flag of torchrun that has a variable here sets it (`--master_port 12345` is MASTER_PORT=12345),
# the others are train.py's.
# Globals:   TRAIN_ARGUMENTS (array, written), NPROC_PER_NODE, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, MAX_RESTARTS
#            (written)
#######################################
take_launch_flags() {
  local flag value
  TRAIN_ARGUMENTS=()
  while (($# > 0)); do
    flag="${1%%=*}"
    case "${flag//-/_}" in
      __nproc_per_node | __nnodes | __node_rank | __master_addr | __master_port | __max_restarts)
        if [[ "$1" == *=* ]]; then
          value="${1#*=}"
          shift
        else
          value="${2:-}"
          shift "$(($# > 1 ? 2 : 1))"
        fi
        [[ -n "${value}" ]] || fail "${flag} needs a value, such as ${flag} 2; give one, or leave out ${flag}"
        printf -v "$(printf '%s' "${flag#--}" | tr 'a-z-' 'A-Z_')" '%s' "${value}"
        ;;
      *)
        TRAIN_ARGUMENTS+=("$1")
        shift
        ;;
    esac
  done
}

#######################################
# Ends the script with status 2 when NPROC_PER_NODE, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, MASTER_TIMEOUT and
# MAX_RESTARTS make no sense.
#######################################
check_launch_variables() {
  local -r nnodes="${NNODES:-1}" node_rank="${NODE_RANK:-0}" port="${MASTER_PORT:-${DEFAULT_MASTER_PORT}}"
  check_whole_number NPROC_PER_NODE "${NPROC_PER_NODE:-1}" 1
  check_whole_number NNODES "${nnodes}" 1
  check_whole_number NODE_RANK "${node_rank}" 0
  check_whole_number MASTER_PORT "${port}" 1
  check_whole_number MASTER_TIMEOUT "${MASTER_TIMEOUT:-1}" 1
  check_whole_number MAX_RESTARTS "${MAX_RESTARTS:-0}" 0
  ((port <= 65535)) || fail "MASTER_PORT=${port} is not a port; use 1024 to 65535"
  if ((nnodes > 1)); then
    [[ -n "${MASTER_ADDR:-}" ]] \
      || fail "NNODES=${nnodes} but MASTER_ADDR is not set; set it to the name or IP address of the machine with NODE_RANK=0"
    [[ -n "${NODE_RANK:-}" ]] \
      || fail "NNODES=${nnodes} but NODE_RANK is not set; set it to this machine's number: 0 on ${MASTER_ADDR}, then 1 and up"
  fi
  ((node_rank < nnodes)) \
    || fail "NODE_RANK=${node_rank} but NNODES=${nnodes}; NODE_RANK goes from 0 to $((nnodes - 1))"
}

#######################################
# Turns the environment into arguments of torchrun and of torch.distributed.launch.
# Globals:   LAUNCHER_ARGUMENTS (array, written), OMP_NUM_THREADS, GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME (exported
#            unless set, the last two for several nodes), PYTHON (read)
#######################################
plan_processes() {
  local -r nnodes="${NNODES:-1}" node_rank="${NODE_RANK:-0}"
  local nproc port
  nproc="${NPROC_PER_NODE:-$(default_process_count)}"
  port="$(choose_master_port "${nnodes}" "${node_rank}")" || exit
  if ((nnodes > 1)); then
    find_rendezvous "${port}" "${node_rank}"
  fi
  # More threads than cores slow every process down; torchrun would set 1, which leaves cores idle.
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(threads_per_process "${nproc}")}"
  # shellcheck disable=SC2034  # read by the script that sources this file
  LAUNCHER_ARGUMENTS=(
    "--nproc_per_node=${nproc}"
    "--nnodes=${nnodes}"
    "--node_rank=${node_rank}"
    "--master_addr=${MASTER_ADDR:-127.0.0.1}"
    "--master_port=${port}"
    "--max_restarts=${MAX_RESTARTS:-0}"
  )
}

#######################################
# Prints the command that starts a launcher of torch, quoted so that it can be pasted into a shell, and replaces this
# shell by it, so that a signal sent to the script reaches the launcher.
# Arguments: torch.distributed.run or torch.distributed.launch, then its arguments.
#######################################
run_launcher() {
  local variable root
  root="$(cd -- "${BASH_SOURCE[0]%/*}/../.." && pwd)"
  # The launcher of the Python found above, not that of PATH; launcher.py handles its end.
  set -- "${PYTHON}" "${root}/retrofit/distributed/launcher.py" "$@"
  for variable in CUDA_VISIBLE_DEVICES OMP_NUM_THREADS GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME; do
    [[ -z "${!variable+set}" ]] || printf '%s=%q ' "${variable}" "${!variable}"
  done >&2
  printf '%q' "$1" >&2
  printf ' %q' "${@:2}" >&2
  printf '\n' >&2
  exec "$@"
}

# Fails unless $2, the value of the variable named $1, is a whole number >= $3 (and < 10^9).
check_whole_number() {
  if [[ ! "$2" =~ ^(0|[1-9][0-9]{0,8})$ ]] || (($2 < $3)); then
    fail "$1 must be a whole number >= $3, got '$2'; set another, or leave out $1 for the default"
  fi
}

# Checks that this node ($2) reaches the first one at port $1 of MASTER_ADDR, and makes gloo and NCCL use the interface
# that leads there. By default gloo takes the one that the host's name belongs to, often the loopback.
find_rendezvous() {
  local answer
  answer="$("${PYTHON}" "${BASH_SOURCE[0]%/*}/rendezvous.py" "${MASTER_ADDR}" "$1" "$2" "${MASTER_TIMEOUT:-600}")" \
    || fail "${answer:-could not check MASTER_ADDR=${MASTER_ADDR}, see above}"
  if [[ -n "${answer}" ]]; then
    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-${answer}}"
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-=${answer}}" # = is this exact name, not a prefix
  fi
}

# Prints the number of visible GPUs (CUDA_VISIBLE_DEVICES counts), or 2 on a machine without one.
default_process_count() {
  # Ctrl-C ends it like other programs: no traceback from the middle of an import.
  "${PYTHON}" -c 'import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)
import torch; print(torch.cuda.device_count() or 2)'
}

# Prints the threads that each of $1 processes gets of the cores that this shell may use.
threads_per_process() {
  "${PYTHON}" - "$1" << 'END'
import os, sys
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
print(max(1, cores // int(sys.argv[1])))
END
}

# Prints the port on which the processes meet: MASTER_PORT, else the same default on each of several nodes ($1 > 1),
# else a free one. Fails if MASTER_PORT is taken and this node ($2) is the one that listens on it.
choose_master_port() {
  local -r nnodes="$1" node_rank="$2" port="${MASTER_PORT:-${DEFAULT_MASTER_PORT}}"
  if [[ -z "${MASTER_PORT:-}" ]] && ((nnodes == 1)); then
    free_port || fail "found no free port from 20000 to 29999; set MASTER_PORT to one that is free"
    return
  fi
  if ((node_rank == 0)) && ! free_port "${port}" > /dev/null; then
    fail "MASTER_PORT=${port} is already in use on this machine; set another, the same on every node, \
or on a single node unset it and a free one is found"
  fi
  printf '%s\n' "${port}"
}

# Prints the first port of "$@" that is free, without arguments a random free one. Returns 1 if there is none.
free_port() {
  "${PYTHON}" - "$@" << 'END'
import errno, random, socket, sys

def is_free(port):
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as probe:
                # As the launcher's own socket: connections of an ended run that linger in TIME_WAIT do no harm.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, port))
                probe.listen(1)
        except OSError as error:  # anything else, such as a machine without IPv6, does not concern the port
            if error.errno == errno.EADDRINUSE:
                return False
    return True

# Below the range from which outgoing connections get theirs: nothing takes it before the launcher listens on it.
ports = map(int, sys.argv[1:]) if sys.argv[1:] else random.sample(range(20000, 30000), 50)
port = next(filter(is_free, ports), None)
if port is None:
    sys.exit(1)
print(port)
END
}

# Prints the part of the help that the launch scripts have in common.
print_shared_help() {
  cat << 'END'
Environment:
  NPROC_PER_NODE        processes on this machine (default: the visible GPUs; 2 on a machine without one)
  CUDA_VISIBLE_DEVICES  GPUs to use, such as 0,1 (default: all; '' trains on the CPU)
  OMP_NUM_THREADS       CPU threads of each process (default: cores / processes)
  MASTER_PORT           port on which the processes meet (default: a free one; 29500 for several nodes)
  NNODES                machines that train together (default: 1)
  NODE_RANK             number of this machine, 0 to NNODES - 1 (default: 0; required for several nodes)
  MASTER_ADDR           address of the machine with NODE_RANK=0 (default: 127.0.0.1; required for several nodes)
  MASTER_TIMEOUT        seconds that another machine waits for the one with NODE_RANK=0 to listen (default: 600)
  GLOO_SOCKET_IFNAME    network interface for several nodes (default: the one that leads to MASTER_ADDR);
  NCCL_SOCKET_IFNAME    the same for GPUs (default: the same)
  MAX_RESTARTS          times that all processes are started again after one died; the training continues from its
                        last checkpoint, see --chk_steps (default: 0; the same on every machine)
  PYTHON                interpreter to use; it must have the dependencies (default: the active one if it has them,
                        else .venv next to this script, which is made on the first run)

Flags of torchrun set the same: --nproc_per_node, --nnodes, --node_rank, --master_addr, --master_port, --max_restarts.
A flag wins over its variable.

Every other argument goes to train.py as given; `python train.py --help` lists them. Without one the run is
`--config demo`: a small training that is sized to this machine. Paths in arguments are relative to the folder you
are in; train.py is the one next to this script. The command that runs is printed first.

Ctrl-C stops after the step that is running, and saves.
END
}
