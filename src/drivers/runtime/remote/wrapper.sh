# What supervises tasks at a site: POSIX `sh` (dash, bash, busybox) with env, setsid, sleep and rm of any Linux, GNU grep, and /proc.
# One supervisor a task, a fork of the shell that was started for the whole batch.
#
# Arguments: `detached` or `foreground`; the folder of records; the variable that marks processes; how often the kernel had killed for
# memory; GNU time or ''; options of env or ''; `date` or ''; `cgroups` where tasks are to have their own, or ''; then scripts: `NAME.TOKEN`
# is the script `NAME.TOKEN.run` of task NAME.
#
# It answers `started NAME PID`, `known NAME`, `failed NAME WORDS` or, where no trial helps, `refused NAME WORDS`; the end of its output says that all have answered. A record
# (`NAME.task`) is created exclusively and grows by lines:
#
#     start SCRIPT PID BIRTH BOOT NODE UPTIME DATE     DATE is `-` unless asked for
#     limits cgroup FOLDER                             what holds its memory and processors: a line for each of its cgroups,
#     limits rlimit                                    or RLIMIT_DATA of each process, or nothing (`none`); the last kind counts
#     task PID                                         leader of the task's session
#     peak KIB                                         by GNU time
#     0m0.010000s 0m0.000000s                          twice: `times` of this shell, and of the task with its descendants
#     exit CODE REASON UPTIME .                        complete with its point only; SIGNAL lines of GNU time tell 143 from SIGTERM
#
# UPTIME is /proc/uptime in hundredths of a second: no clock that can be set. A task costs two forks and three execs (setsid, env, the
# program), about 2 ms of processor time; under GNU time one fork and two execs more, in a cgroup of its own one of each.
#
# `wait` is cut short by a trapped signal and then says 128 + its number: 138 is USR1, of the timer, 140 is USR2, of whoever cancels
# (`NAME.cancel` holds the grace in hundredths). What has the mark in its environment when the first process ends, or is left of its process group, is killed before the exit is
# recorded: nothing of an attempt lives beside the next one. A process that left the group and cleared its environment is not found.
# The exit is repeated until the disk takes it; as the record is a block already, a full disk has room for it.
#
# Where the account may make cgroups (of its own one, or of one above it, that was given to it; or of one that its lingering systemd gives), a
# task has its own: nobody leaves it by leaving the group, and a kill for memory is counted there. Its folder is `orrery.NAME.TOKEN`, and goes
# before the end is recorded.
# shellcheck disable=SC2016 # what is quoted for another shell is expanded there
set -C
umask 077
LC_ALL=C PATH=/usr/bin:/bin:$PATH
export LC_ALL PATH
mode=$1 tasks=$2 variable=$3 oom=$4 measure=$5 signals=$6 clock=$7 confined=$8
shift 8
cd "$tasks" || exit 97
read -r boot < /proc/sys/kernel/random/boot_id
read -r node < /proc/sys/kernel/hostname
# Which GPUs are the job's, as its scheduler says it, goes to the task before its own variables.
for each in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK SLURM_JOB_GPUS; do
  eval "line=\${$each-}"
  case $line in '' | *[!A-Za-z0-9,.:/_-]*) ;; *) signals="$signals $each=$line" ;; esac
done

# Hundredths of a second since boot.
now() {
  read -r up rest < /proc/uptime
  up=${up%.*}${up#*.} up=${up#0} up=${up#0}
}

# Words of /proc/PID/stat behind the command: state, parent, group, session … the 20th is the start.
facts() {
  state= group= birth=
  { read -r line < "/proc/$1/stat"; } 2>/dev/null || return
  set -f
  # shellcheck disable=SC2086 # the fields of the line
  set -- ${line##*") "}
  set +f
  state=$1 group=$3
  shift 9
  shift 9
  birth=$2
}

# Gives the task's cgroup its limits; without those of memory it is none.
bound() {
  if [ -e "$cgroup/memory.max" ]; then
    [ "$bytes" -eq 0 ] || echo "$bytes" >| "$cgroup/memory.max" || return
    [ "$bytes" -eq 0 ] || [ ! -e "$cgroup/memory.swap.max" ] || echo 0 >| "$cgroup/memory.swap.max"
    [ ! -e "$cgroup/cpu.max" ] || echo "$((cores * 100000)) 100000" >| "$cgroup/cpu.max"
  else
    [ "$bytes" -eq 0 ] || echo "$bytes" >| "$cgroup/memory.limit_in_bytes" || return
    [ "$bytes" -eq 0 ] || [ ! -e "$cgroup/memory.memsw.limit_in_bytes" ] || echo "$bytes" >| "$cgroup/memory.memsw.limit_in_bytes"
    for each in "$processor" "$cgroup"; do
      [ ! -e "$each/cpu.cfs_quota_us" ] || echo "$((cores * 100000))" >| "$each/cpu.cfs_quota_us"
    done
  fi
  return 0
}

release() {
  for each in "$cgroup" "$processor"; do
    [ -z "$each" ] || rmdir -- "$each" || find "$each" -depth -type d -exec rmdir {} ';'
  done 2>/dev/null
  cgroup= processor=
}

leader() {
  [ -n "$task" ] && return
  while read -r word value rest; do
    [ "$word" = task ] && task=$value
  done < "$name.task"
}

also() { case "$found " in *" $1 "*) ;; *) found="$found $1" ;; esac; }

# Live processes with the mark or in the cgroup, in found. Within two seconds process ids cannot have come round: if few were given since
# the start, only those are looked at, and mostly none lives. In a cgroup only who was moved out of it has to be found by its mark. Elsewhere
# who becomes another program has no environment at that moment (a tenth of a millisecond): one read tells of each whether it has any, and those
# without that may be the task's (born since, no threads of the kernel) are looked at again, and all where one of them has ended, perhaps
# after it had started another. Of 500 processes the first takes 5 ms, the second 20.
marked() {
  found= candidates='/proc/[0-9]*/environ'
  [ -z "$cgroup" ] || while read -r each; do
    found="$found $each"
  done 2>/dev/null < "$cgroup/cgroup.procs"
  now
  # shellcheck disable=SC2034 # the last field counts
  read -r a b c d last < /proc/loadavg
  if [ $((up - began)) -lt 200 ] && [ $((last - job)) -ge 0 ] && [ $((last - job)) -lt 200 ]; then
    candidates= each=$job
    while [ "$each" -lt "$last" ]; do
      each=$((each + 1))
      [ -O "/proc/$each/environ" ] && candidates="$candidates /proc/$each/environ"
    done
  fi
  [ -n "$candidates" ] || return
  if [ -n "$cgroup" ]; then
    # shellcheck disable=SC2013,SC2086 # paths below /proc have no blanks
    for each in $(grep -lzxF -e "$variable=$name" $candidates 2>/dev/null); do
      each=${each#/proc/} each=${each%/environ}
      also "$each"
    done
    return 0
  fi
  all=$candidates tries=0
  while :; do
    becoming= again= tries=$((tries + 1))
    set -f
    IFS='
'
    # shellcheck disable=SC2086 # so do the candidates
    for line in $(set +f; IFS=' '; grep -aHoE -e "^[ -~]|$variable=$name" $candidates 2>/dev/null); do
      each=${line%%/environ:*} each=${each#/proc/}
      case $line in
        *":$variable=$name")
          grep -zqxF -e "$variable=$name" "/proc/$each/environ" 2>/dev/null || { eval "seen_$each="; continue; }
          also "$each" ;;
      esac
      eval "seen_$each=$tries"
    done
    unset IFS
    set +f
    for each in $candidates; do
      each=${each#/proc/} each=${each%/environ}
      eval "line=\${seen_$each-}"
      [ "$line" = "$tries" ] && continue
      state=
      [ ! -O "/proc/$each" ] || [ ! -e "/proc/$each/exe" ] || facts "$each"
      case $state in
        '' | Z | X) [ "$candidates" = "$all" ] || again=$all ;;
        *) [ "$birth" -lt $((began - 100)) ] || becoming="$becoming /proc/$each/environ" ;;
      esac
    done
    candidates=${again:-$becoming}
    [ -n "$candidates" ] && [ "$tries" -lt 5 ] || return 0
    sleep 0.01
  done
}

# A signal to the group, then to what else is the task's.
tell() {
  leader
  if [ "$1" = KILL ] && [ -n "$cgroup" ] && [ -w "$cgroup/cgroup.kill" ]; then echo 1 >| "$cgroup/cgroup.kill"; fi 2>/dev/null
  [ -n "$task" ] && kill -s "$1" -- "-$task" 2>/dev/null
  marked
  for each in $found; do
    facts "$each"
    [ "$group" = "$task" ] || kill -s "$1" "$each" 2>/dev/null
  done
}

# Whether anything is left; zombies that nobody reaps are not.
remains() {
  leader
  if [ -n "$task" ] && kill -s 0 -- "-$task" 2>/dev/null &&
    grep -qsE "^[0-9]+ \\(.*\\) [^ZX] [0-9]+ $task " /proc/[0-9]*/stat; then
    return 0
  fi
  marked
  [ -n "$found" ]
}

# Wakes the supervisor after so many hundredths of a second, and again until it has ended.
wake_after() {
  [ -n "$timer" ] && kill "$timer" 2>/dev/null
  (
    over=
    trap 'over=1' TERM
    exec 3>&-
    sleep "$(($1 / 100)).$(($1 % 100 / 10))$(($1 % 10))" &
    nap=$!
    [ -n "$over" ] || wait "$nap"
    while [ -z "$over" ]; do
      facts "$pid"
      [ "$birth" = "$born" ] || exit 0
      kill -s USR1 "$pid"
      sleep 1
    done
    kill "$nap" 2>/dev/null
  ) > /dev/null 2>&1 &
  timer=$!
}

# Why it was woken: the first reason counts, politely; when the grace is over, by force.
attend() {
  now
  if [ -z "$reason" ]; then
    if [ -n "$asked" ] || { [ -n "$stopped" ] && [ -e "$name.cancel" ]; }; then
      reason=cancelled
      # Not there on a full disk.
      [ -s "$name.cancel" ] && read -r grace < "$name.cancel"
    elif [ -n "$stopped" ]; then
      reason=stopped
    elif [ "$limit" -gt 0 ] && [ $((up - began + 1)) -ge "$limit" ]; then
      reason=timeout
    else
      return
    fi
    forced=$((up + grace))
    tell TERM
    [ "$grace" -gt 0 ] && wake_after "$grace"
  fi
  [ "$up" -ge "$forced" ] && tell KILL
}

# Into the cgroups, as the process that becomes the task; GNU time stays outside, to live on when all that is in there is killed.
enter='
held=$cgroup
for each in "$cgroup" "$processor"; do
  [ -z "$each" ] || { echo 0 >| "$each/cgroup.procs"; } 2>/dev/null || held=
done
if [ -z "$held" ] && [ "$memory" -gt 0 ]; then
  if ulimit -d "$memory"; then echo "limits rlimit"; else echo "limits none"; fi >&3
fi 2> /dev/null
'

perform() {
  trap - USR1 USR2 TERM PIPE
  umask 022
  exec < /dev/null >| "$name.out" 2>| "$name.err" || exit 125
  if [ -n "$measure" ]; then
    exec "$measure" -a -o "$name.task" -f 'peak %M' /bin/sh -c '
      echo "task $$" >&3
      script=$1 signals=$2 cgroup=$3 processor=$4 memory=$5
      shift 5
      '"$enter"'
      exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
      . "$script"' sh "$tasks/$script.run" "$signals" "$cgroup" "$processor" "$memory" setsid
  fi
  eval "$enter"
  exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
  set -- setsid
  # shellcheck disable=SC1090 # the task's own script
  . "$tasks/$script.run"
}

supervise() {
  script=$1 name=${1%%.*}
  # Nobody may be there to read the answer any more.
  trap '' PIPE
  reason= woken= stopped= asked= timer= task= forced=0 date=-
  { { read -r line; read -r line word limit word grace word memory word bytes word cores word must; } < "$script.run"; } 2> /dev/null || {
    echo "failed $name has no script"
    return 0
  }
  # Many answer through one pipe at once: each with one line, at one go.
  if ! command exec 3> "$name.task"; then
    if [ -e "$name.task" ]; then
      echo "known $name"
    else
      line=$({ : > "$script.why"; } 2>&1; rm -f -- "$script.why")
      set -f
      # shellcheck disable=SC2086 # one line of whatever was said
      echo "failed $name" $line
      set +f
    fi
    return 0
  fi 2> /dev/null
  exec 3>> "$name.task"
  facts self
  pid=${line%% *} born=$birth
  [ -z "$clock" ] || date=$(date +%s.%N)
  now
  began=$up
  if ! echo "start $script $pid $born $boot $node $began $date" >&3; then
    rm -f -- "$name.task"
    echo "failed $name cannot write its record"
    return 0
  fi 2> /dev/null
  [ -z "$cgroup" ] || { [ "${cores:-0}" -gt 0 ] && bound 2>/dev/null; } || release
  if [ "$must" = cgroup ] && [ -z "$cgroup" ]; then
    rm -f -- "$name.task"
    echo "refused $name memoryLimit is cgroup, and this account cannot make one here; use rlimit or none, or give the account cgroups"
    return 0
  fi
  for each in "$cgroup" "$processor"; do
    [ -z "$each" ] || echo "limits cgroup $each" >&3
  done 2>/dev/null
  echo "started $name $pid" 2>/dev/null
  [ "$mode" = foreground ] || exec > /dev/null 2>&1
  trap 'woken=1' USR1
  trap 'woken=1 asked=1' USR2
  trap 'woken=1 stopped=1' TERM
  perform &
  job=$!
  if [ -z "$measure" ]; then
    task=$job
    echo "task $task" >&3
  fi
  [ "$limit" -gt 0 ] && wake_after "$limit"
  wait "$job"
  code=$?
  # Who ends a whole job tells its processes one after the other: ours may be the last.
  [ "$mode" = foreground ] && [ -z "$woken" ] && [ "$code" -eq 143 ] && sleep 0.5
  while [ -n "$woken" ]; do
    woken=
    attend
    wait "$job" 2>/dev/null
    again=$?
    # It had ended before the signal came.
    [ "$again" -eq 127 ] && [ "$code" -ne 138 ] && [ "$code" -ne 140 ] && ! kill -s 0 "$job" 2>/dev/null && break
    code=$again
  done
  now
  ended=$up
  { times >&3; } 2>/dev/null
  trap '' USR1 USR2 TERM
  [ -n "$timer" ] && kill "$timer" 2>/dev/null
  polite=${reason:+1}
  while remains; do
    now
    if [ -n "$polite" ] && [ "$up" -lt "$forced" ]; then
      [ "$polite" = 2 ] || tell TERM
      polite=2
    else
      tell KILL
    fi
    sleep 0.02
  done
  [ "$reason" = cancelled ] && [ "$code" -eq 0 ] && reason=
  if [ -z "$reason" ] && [ -n "$cgroup" ] && [ "$code" -ne 0 ]; then
    for each in memory.events memory.oom_control; do
      [ ! -e "$cgroup/$each" ] || while read -r word value; do
        [ "$word" = oom_kill ] && [ "$value" -gt 0 ] && reason=memory
      done < "$cgroup/$each"
    done
  elif [ -z "$reason" ] && [ "$code" -eq 137 ]; then
    killed=$(grep '^oom_kill ' /proc/vmstat)
    [ "${killed#oom_kill }" -gt "$oom" ] 2>/dev/null && reason=memory
  fi
  release
  until { printf '\nexit %s %s %s .\n' "$code" "${reason:-exited}" "$ended" >&3; } 2>/dev/null; do
    sleep 1
    [ -e "$name.task" ] || break
  done
  { echo "$name" >> ../ends; } 2>/dev/null
  return "$code"
}

# shellcheck disable=SC2034 # cgroups.sh reads them
room= share= cgroup= processor= lingering= alone= owner=$$
if [ "$mode" = foreground ]; then
  supervise "$1"
else
  linger
  [ -z "$confined" ] || confine "$@"
  for each; do
    {
      [ -z "$room" ] || [ ! -d "$room/orrery.$each" ] || cgroup=$room/orrery.$each
      [ -z "$cgroup" ] || [ -z "$share" ] || [ ! -d "$share/orrery.$each" ] || processor=$share/orrery.$each
      supervise "$each"
      release
    } &
  done
fi
