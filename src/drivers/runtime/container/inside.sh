# What runs between the host and a task in its container: `sh` (dash, bash, busybox) of the image,
# else the host's static busybox. In `once` it serves one task; in `lane` it serves tasks one after
# the other, until no request has come for IDLE seconds. After clock.sh.
#
# Arguments: `once NAME MEASURED` or `lane IDLE MEASURED`; MEASURED is 1 where the container has a
# cgroup of its own. `/.orrery` holds of each task NAME: `NAME.run` (its script), `NAME.out` and
# `.err` (its output, the site's own files by hard link), and two FIFOs.
#
# - `NAME.life`: the launcher holds it open as long as it lives. The first line, `go`, shows that it
#   does; every further line asks for a polite end; its end, whatever killed the launcher, is the
#   forced end. So no container outlives its launcher, whether the engine answers or not.
# - `NAME.done`: `up`, then `end CODE BEGAN ENDED TOLD PEAK OOM`. Its end without that line is a
#   container that was ended from outside.
#
# No part of the engine is involved, so a restart of the engine that leaves containers alone is not
# noticed.
# shellcheck disable=SC2154 # clock.sh sets up

mode=$1 what=$2 measured=$3
cd /.orrery || exit 97
umask 077
unset HOSTNAME container OLDPWD PROMPT_COMMAND PS1 USER_PATH HOME
# Apptainer's own value, unless the image's is the same.
[ "$measured" = 1 ] || [ "$LANG" != C ] || unset LANG
unset APPTAINER_NO_EVAL SINGULARITY_NO_EVAL APPTAINER_APPNAME APPTAINER_BIND \
  APPTAINER_COMMAND APPTAINER_CONTAINER APPTAINER_ENVIRONMENT APPTAINER_NAME
unset SINGULARITY_APPNAME SINGULARITY_BIND \
  SINGULARITY_COMMAND SINGULARITY_CONTAINER SINGULARITY_ENVIRONMENT SINGULARITY_NAME
told=0 tmp=/tmp granted=1
# The account's name here, for programs that ask their environment; `id` may be missing.
user=user id=
while read -r key value word; do
  [ "$key" != Uid: ] || id=$value
done < /proc/self/status
while IFS=: read -r key word value word; do
  # shellcheck disable=SC2034 # the task's own script reads it
  [ "$value" != "$id" ] || { user=$key && break; }
done < /etc/passwd
# The engine asks it to end.
trap 'told=1; [ $$ -ne 1 ] || kill -s TERM -- -1 2>/dev/null' TERM

# Peak of memory: highest includes the cache of files, which is the host's, and peak does not; kills
# for lack of memory.
measure() {
  peak=- highest=- cache=0 oom=0
  [ "$measured" = 1 ] || return
  memory=/sys/fs/cgroup most=memory.peak events=memory.events files=file shared=shmem
  [ -e "$memory/memory.events" ] ||
    memory=/sys/fs/cgroup/memory most=memory.max_usage_in_bytes events=memory.oom_control
    files=total_cache shared=total_shmem
  [ -r "$memory/$most" ] && read -r highest < "$memory/$most"
  peak=$highest
  [ -r "$memory/$events" ] && while read -r key value; do
    [ "$key" = oom_kill ] && oom=$value
  done < "$memory/$events"
  [ -r "$memory/memory.stat" ] && while read -r key value; do
    [ "$key" = "$files" ] && cache=$((cache + value))
    [ "$key" = "$shared" ] && cache=$((cache - value))
  done < "$memory/memory.stat"
  [ "$peak" = - ] || [ "$peak" -lt "$cache" ] || peak=$((peak - cache))
}

task() {
  [ -p "$1.life" ] && [ -p "$1.done" ] || return
  [ -n "$granted" ] || claim "$1.taken" || return
  # Opened for reading and writing, then for reading only: without a launcher the first read finds
  # the end.
  exec 5<> "$1.life"
  exec 4< "$1.life"
  exec 5>&-
  read -r word <&4 || return
  exec 6<> "$1.done"
  measure
  [ "$mode" = once ] || before=$highest
  killed=$oom told=0
  now
  began=$up
  times > "$1.use"
  echo "up $began" >&6
  {
    trap - TERM
    umask 022
    exec < /dev/null >> "$1.out" 2>> "$1.err" 3>&- 4>&- 6>&-
    # shellcheck disable=SC1090 # the task's own script
    . "./$1.run"
  } &
  job=$!
  (
    trap '' TERM
    exec 3>&- 6>&-
    # shellcheck disable=SC2034 # every line means the same
    while read -r word; do kill -s TERM -- -1; done
    kill -s KILL -- -1
  ) <&4 > /dev/null 2>&1 &
  wait "$job"
  code=$?
  while [ "$told" = 1 ] && kill -s 0 "$job" 2>/dev/null; do
    wait "$job"
    code=$?
  done
  now
  ended=$up
  # All processes but this one: what the task left, and the listener for its end.
  kill -s KILL -- -1 2>/dev/null
  times >> "$1.use"
  measure
  # The peak over all tasks of the container counts only where it is this task's.
  [ "$mode" = once ] || [ "$highest" != "$before" ] || peak=-
  echo "end $code $began $ended $told $peak $((oom - killed))" >&6
  exec 4<&- 6>&-
}

if [ "$mode" = once ]; then
  task "$what"
  exit 0
fi
exec 3<> requests
while :; do
  { sleep "$what"; echo >&3; } &
  timer=$!
  read -r name granted <&3 || exit 0
  # Not TERM: a shell that has just been forked loses signals that its parent traps.
  kill -s USR1 "$timer" 2>/dev/null
  if [ -z "$name" ]; then
    echo closed > state
    exit 0
  fi
  # Never a mount below /tmp: only a folder of the task's own.
  tmp=/tmp/$name made=1
  mkdir -- "$tmp" || tmp=/tmp made=
  task "$name"
  wait
  [ -z "$made" ] || rm -rf -- "$tmp"
done
