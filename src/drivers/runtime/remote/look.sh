# shellcheck shell=sh
# look NAME PATH: prints the SHA-256 of a file of a task, or `cut NAME` where the task is cancelled
# before its end.
look() {
  job=
  if [ ! -e "$1.cancel" ]; then
    sha256sum -- "$2" 2> /dev/null &
    job=$!
  fi
  while [ -n "$job" ] && kill -s 0 "$job" 2> /dev/null; do
    if [ -e "$1.cancel" ]; then
      kill -s KILL "$job"
      wait "$job"
      job=
    else
      sleep 0.05 || sleep 1
    fi
  done 2> /dev/null
  [ -n "$job" ] || echo "cut $1"
}
