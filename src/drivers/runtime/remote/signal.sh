# signal_marked SIGNAL VARIABLE NAME…: finds processes that carry the mark of a task, or are in its
# cgroup. It prints `VARIABLE=NAME` for each name with such processes, and sends SIGNAL to them,
# unless it is empty. After each-cgroup.sh.
send() {
  [ -z "$signal" ] || kill -s "$signal" "$1" 2> /dev/null
}

within() {
  [ -r "$1/cgroup.procs" ] || return
  while read -r pid; do
    echo "$variable=$2"
    send "$pid"
  done < "$1/cgroup.procs"
}

signal_marked() {
  signal=$1 variable=$2
  shift 2
  names=$*
  for each; do
    shift
    set -- "$@" -e "$variable=$each"
  done
  # shellcheck disable=SC2013 # paths below /proc have no blanks
  for each in $(grep -slF "$@" /proc/[0-9]*/environ); do
    mark=$(tr '\000' '\n' < "$each" 2> /dev/null | grep -xF "$@") || continue
    echo "$mark"
    each=${each#/proc/}
    send "${each%/environ}"
  done
  # Names have no blanks.
  for each in $names; do each_cgroup within "$each"; done
  return 0
}
