# shellcheck shell=bash
# Finds the Python that the scripts of this project run with. Sourced, never run; needs bash >= 3.2.
#
#   source "${ROOT}/retrofit/launch/python_env.sh"
#   find_python "${ROOT}"           sets PYTHON; installs into ${ROOT}/.venv if no Python has the dependencies
#   find_python "${ROOT}" test      the same, with the extra [test] of pyproject.toml

#######################################
# Prints an error to stderr and ends the script with status 2.
# Arguments: what was wrong, with the value seen and what to do.
#######################################
fail() {
  printf '%s: error: %s\n' "$(basename -- "$0")" "$1" >&2
  exit 2
}

#######################################
# Sets PYTHON to the absolute path of a Python >= 3.9 that has every dependency: ${PYTHON} if it is set (an error if
# something is missing there), else the active `python` or `python3`, else the project's .venv, which is made now if
# need be. Says on stderr why it passes an interpreter over.
# Globals:   PYTHON
# Arguments: the project's folder, then the extras of pyproject.toml that are needed too.
#######################################
find_python() {
  local -r root="$1"
  shift
  local candidate answer
  if [[ -n "${PYTHON:-}" ]]; then
    is_recent_python "${PYTHON}" || fail "PYTHON=${PYTHON} is not a Python >= 3.9; set another, or unset PYTHON"
    answer="$(check_python "${PYTHON}" "${root}" "$@")" \
      || fail "PYTHON=${PYTHON} lacks: ${answer}; install that, or unset PYTHON to use ${root}/.venv"
    PYTHON="${answer}"
    return
  fi
  for candidate in python python3 "${root}/.venv/bin/python"; do
    is_recent_python "${candidate}" || continue
    if answer="$(check_python "${candidate}" "${root}" "$@")"; then
      PYTHON="${answer}"
      return
    fi
    printf '[python_env] %s lacks: %s\n' "$(command -v "${candidate}")" "${answer}" >&2
  done
  for candidate in python python3 python3.{14,13,12,11,10,9}; do
    is_recent_python "${candidate}" || continue
    # `tensorboard --logdir=./log` is not needed to train, but the next thing one asks for.
    "${candidate}" "${root}/retrofit/launch/dependencies.py" install "${root}" tensorboard "$@" || exit
    PYTHON="${root}/.venv/bin/python"
    return
  done
  fail "no Python >= 3.9 found (python is: $(python --version 2>&1 || true)); install one, or set PYTHON to its path"
}

# Is $1 a command that runs Python >= 3.9?
is_recent_python() {
  command -v "$1" > /dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2> /dev/null
}

# Prints the path of the interpreter $1 if it has the dependencies of project $2 and its extras ${@:3}, else prints
# what it lacks and returns 1.
check_python() {
  local -r candidate="$1"
  shift
  "${candidate}" "${BASH_SOURCE[0]%/*}/dependencies.py" check "$@" 2> /dev/null
}
