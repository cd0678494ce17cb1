# mark_cancelled NOW GRACE SIGNAL BOOT NAME…: buries names that have no record (they never start),
# leaves a cancel mark with the grace (hundredths of a second) for the others, and where SIGNAL is
# not empty signals their supervisors that live since BOOT.
mark_cancelled() {
  set -C
  now=$1 grace=$2 signal=$3 boot=$4
  shift 4
  for each; do mark "$each"; done
  return 0
}

mark() {
  { echo "cancelled $now ." > "$1.task"; } 2> /dev/null && return
  word=
  # shellcheck disable=SC2034 # script and rest stand in the line
  { read -r word script pid birth since rest < "$1.task"; } 2> /dev/null
  [ "$word" = cancelled ] && return
  { echo "$grace" > "$1.cancel"; } 2> /dev/null
  [ -n "$signal" ] && [ "$word" = start ] && [ "$since" = "$boot" ] || return
  { read -r line < "/proc/$pid/stat"; } 2> /dev/null || return
  set -f
  # shellcheck disable=SC2086 # the fields of the line
  set -- ${line##*") "}
  set +f
  shift 9
  shift 9
  [ "$2" = "$birth" ] && kill -s USR2 "$pid" 2> /dev/null
}
