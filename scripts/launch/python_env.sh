# shellcheck shell=bash
# Finds the Python that the scripts of this project run with. Sourced, never run; needs bash >= 3.2.
#
#   source "${ROOT}/scripts/launch/python_env.sh"
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
# Sets PYTHON to the path of a Python >= 3.9 that has every dependency: ${PYTHON} if it is set (an error if something
# is missing there), else the active `python` or `python3`, else the project's .venv, which is made now if need be.
# Globals:   PYTHON (read and written)
# Arguments: the project's folder, then the extras of pyproject.toml that are needed too.
#######################################
find_python() {
  local -r root="$1"
  shift
  local command candidate answer base='' notes=''
  if [[ -n "${PYTHON:-}" ]]; then
    candidate="$(recent_python "${PYTHON}")" \
      || fail "PYTHON=${PYTHON} is not a Python >= 3.9; set another, or unset PYTHON"
    answer="$(check_python "${candidate}" "${root}" "$@")" \
      || fail "PYTHON=${PYTHON} lacks dependencies: ${answer}; install them, or unset PYTHON to use ${root}/.venv"
    PYTHON="${candidate}"
    return
  fi
  for command in python python3 "${root}/.venv/bin/python"; do
    candidate="$(recent_python "${command}")" || continue
    if answer="$(check_python "${candidate}" "${root}" "$@")"; then
      PYTHON="${candidate}"
      [[ -z "${notes}" ]] || printf '[python_env] using %s (the active Python lacks dependencies)\n' "${PYTHON}" >&2
      return
    fi
    if [[ "${candidate}" != "${base}" ]]; then # python and python3 are mostly the same
      notes+="[python_env] ${candidate} lacks dependencies: ${answer}"$'\n'
    fi
    base="${base:-${candidate}}"
  done
  for command in python3.{14,13,12,11,10,9}; do
    base="${base:-$(recent_python "${command}" || true)}"
  done
  [[ -n "${base}" ]] \
    || fail "no Python >= 3.9 found (python is: $(python --version 2>&1 || true)); install one, or set PYTHON to its path"
  printf '%s' "${notes}" >&2
  # `tensorboard --logdir=./log` is not needed to train, but most users run it next.
  "${base}" "${root}/scripts/launch/dependencies.py" install "${root}" tensorboard "$@" || exit
  PYTHON="${root}/.venv/bin/python"
}

# Prints the path of the interpreter that the command $1 runs (the command may be a shim) if it is a Python >= 3.9.
recent_python() {
  command -v -- "$1" > /dev/null \
    && "$1" -c 'import sys; sys.version_info < (3, 9) and sys.exit(1); print(sys.executable)' 2> /dev/null
}

# Prints what the interpreter $1 lacks of the dependencies of project $2 and its extras ${@:3}; returns 1 if anything.
check_python() {
  local -r python="$1"
  shift
  "${python}" "${BASH_SOURCE[0]%/*}/dependencies.py" check "$@" 2> /dev/null
}
