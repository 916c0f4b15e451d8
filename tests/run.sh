#!/usr/bin/env bash
#
# Runs the checks of this project: ShellCheck, vermin (for what Python 3.9 lacks), ruff, mypy, then the tests. Stops
# at the first that fails.
#
#   bash tests/run.sh                              the tests but those marked slow, up to four files at a time
#   bash tests/run.sh --all                        also those marked slow: further cases of what a quicker one shows
#   bash tests/run.sh tests/test_vscode.py -k ddp  the same linters, and only these tests (arguments of pytest;
#                                                  paths are relative to the project's folder)
#
# Uses the active Python if it has the dependencies and the extra [test], else .venv (made now if need be).

set -euo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
readonly ROOT
cd -- "${ROOT}"
# shellcheck source=scripts/launch/python_env.sh
source scripts/launch/python_env.sh

# The tests start hundreds of processes; without files of bytecode each of them would compile torch again.
unset PYTHONDONTWRITEBYTECODE

main() {
  local scripts
  local -a shell_files=(.ci/run)
  # One more than there are cores: many tests wait, for a timeout or for another process.
  local -a parallel=(
    --numprocesses="$(($(getconf _NPROCESSORS_ONLN) + 1))" --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
  )
  find_python "${ROOT}" test
  "${PYTHON}" --version
  # The tests run several processes at once; one thread each is what there are cores for.
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

  echo '== shellcheck'
  while IFS= read -r -d '' file; do
    shell_files+=("${file}")
  done < <(find . -name '.?*' -prune -o -name '*.sh' -print0)
  scripts="$("${PYTHON}" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')"
  PATH="${scripts}:${PATH}" shellcheck -x "${shell_files[@]}"

  echo '== vermin'
  PATH="${scripts}:${PATH}" vermin --quiet --no-tips --eval-annotations --violations --target=3.9- \
    retrofit scripts segmentation train.py utils.py

  echo '== ruff'
  "${PYTHON}" -m ruff check .

  echo '== mypy'
  "${PYTHON}" -m mypy

  if [[ "${1:-}" == --all ]]; then
    shift
    set -- -m '' "${parallel[@]}" "$@"
  elif (($# == 0)); then
    set -- "${parallel[@]}"
  else
    set -- -m '' "$@"
  fi
  echo '== pytest'
  exec "${PYTHON}" -m pytest "$@"
}

main "$@"
