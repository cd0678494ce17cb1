# The supervisor of tasks at a site: POSIX `sh` (dash, bash, busybox) with env, setsid, sleep and rm
# of any Linux, GNU grep, and /proc. One supervisor a task, a fork of the shell that was started for
# the whole batch.
#
# Arguments: `detached` or `foreground`; the folder of records; the variable that marks processes;
# the kernel's count of kills for memory before the tasks, or '' where it is read here; GNU time or
# ''; options of env or ''; `date` or '';
# `cgroups` where each task should have its own, or ''; then scripts: `NAME.TOKEN` is the script
# `NAME.TOKEN.run` of task NAME.
#
# It prints `started NAME PID`, `known NAME`, `failed NAME WORDS` or, where no retry helps, `refused
# NAME WORDS`; its output ends when it has answered for all. In the foreground it ends with the task's
# code, and with 97 where the task failed to start or was refused. A record (`NAME.task`) is created
# exclusively and grows by lines:
#
#     start SCRIPT PID BIRTH BOOT NODE UPTIME DATE     DATE is `-` unless asked for
#     limits cgroup FOLDER                             what holds its memory and processors: a line for each of
#                                                      its cgroups,
#     limits rlimit                                    or RLIMIT_DATA of each process, or nothing (`none`); the
#                                                      last kind counts
#     counts kills                                     it counts the job's kills for memory, whatever the
#                                                      exit code
#     task PID                                         leader of the task's session
#     peak KIB                                         by GNU time
#     0m0.010000s 0m0.000000s                          twice: `times` of this shell, and of the task with its
#                                                      descendants
#     exit CODE REASON UPTIME .                        complete with its point only; SIGNAL lines of GNU time
#                                                      distinguish 143 from SIGTERM
#
# UPTIME is /proc/uptime in hundredths of a second: no clock that can be set. A task costs two forks
# and three execs (setsid, env, the program), about 2 ms of processor time; under GNU time one fork
# and two execs more, in a cgroup of its own one of each.
#
# A trapped signal interrupts `wait`, which then returns 128 + its number: 138 is USR1, from the
# timer; 140 is USR2, from a cancel (`NAME.cancel` holds the grace in hundredths). When the first
# process ends, the supervisor kills all processes with the mark in their environment and the rest
# of the process group before it records the exit: nothing of an attempt lives beside the next one.
# A process that left the group and cleared its environment is not found. The exit is written again
# until the disk accepts it; as the record is a block already, a full disk has room for it.
#
# Where the account may make cgroups (in its own one, in a delegated one above it, or in one that
# its lingering systemd provides), a task has its own: a process cannot leave it by leaving the
# process group, and it counts kills for memory. Its folder is `orrery.NAME.TOKEN`, and is removed
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
# The host name of a Pod of an Indexed Job is its index, without the letters of its own.
[ -z "${ORRERY_POD-}" ] || node=$ORRERY_POD
# The job's GPUs, from its scheduler's variables, go to the task before its own variables.
for each in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK SLURM_JOB_GPUS; do
  eval "line=\${$each-}"
  case $line in '' | *[!A-Za-z0-9,.:/_-]*) ;; *) signals="$signals $each=$line" ;; esac
done

# Hundredths of a second since boot.
now() {
  read -r up rest < /proc/uptime
  up=${up%.*}${up#*.} up=${up#0} up=${up#0}
}

# The file that counts kills for memory: in a scheduler's job that of its cgroup, else that of the
# node.
counter=/proc/vmstat
[ -n "$oom" ] || [ "$mode" != foreground ] || while IFS=: read -r number names path; do
  case $number:,$names, in
    0:,,) each=/sys/fs/cgroup$path/memory.events ;;
    *,memory,*) each=/sys/fs/cgroup/memory$path/memory.oom_control ;;
    *) continue ;;
  esac
  grep -qs '^oom_kill ' "$each" && counter=$each
done < /proc/self/cgroup

# Kills for memory so far, in killed.
kills() {
  killed=$(grep '^oom_kill ' "$counter") || killed='oom_kill 0'
  killed=${killed#oom_kill }
} 2>/dev/null
[ -n "$oom" ] || { kills; oom=$killed; }

# Fields of /proc/PID/stat behind the command: state, parent, group, session … the 20th is the
# start.
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

# Sets the limits of the task's cgroup; without the memory limits the task has none.
bound() {
  if [ -e "$cgroup/memory.max" ]; then
    [ "$bytes" -eq 0 ] || echo "$bytes" >| "$cgroup/memory.max" || return
    [ "$bytes" -eq 0 ] || [ ! -e "$cgroup/memory.swap.max" ] || echo 0 >| "$cgroup/memory.swap.max"
    [ ! -e "$cgroup/cpu.max" ] || echo "$((cores * 100000)) 100000" >| "$cgroup/cpu.max"
  else
    [ "$bytes" -eq 0 ] || echo "$bytes" >| "$cgroup/memory.limit_in_bytes" || return
    [ "$bytes" -eq 0 ] || [ ! -e "$cgroup/memory.memsw.limit_in_bytes" ] ||
      echo "$bytes" >| "$cgroup/memory.memsw.limit_in_bytes"
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

# Live processes with the mark or in the cgroup, in found. Within two seconds process ids cannot
# wrap around: if few were assigned since the start, only those are read, and mostly none lives. In
# a cgroup only a process that was moved out of it has to be found by its mark. Elsewhere a process
# has no environment for a moment during an exec (a tenth of a millisecond): one read shows for each
# whether it has any. Those without one may be the task's (born since, no kernel threads) and are
# read again, 20 times at most, as a read that a busy machine interrupts shows none of a process that
# has become another program meanwhile; and all are read again where one of them has ended, perhaps
# after it had started another. With 500 processes the first takes 5 ms, the second 20. One that has
# no command line either is in the middle of an exec, where it may be left for a while: it is waited
# for up to a second.
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
    becoming= again= most=20 tries=$((tries + 1))
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
        *)
          [ "$birth" -ge $((began - 100)) ] || continue
          becoming="$becoming /proc/$each/environ"
          grep -aqse '[ -~]' "/proc/$each/cmdline" || most=100 ;;
      esac
    done
    candidates=${again:-$becoming}
    [ -n "$candidates" ] && [ "$tries" -lt "$most" ] || return 0
    sleep 0.01
  done
}

# Sends a signal to the group, then to the task's other processes.
tell() {
  leader
  if [ "$1" = KILL ] && [ -n "$cgroup" ] && [ -w "$cgroup/cgroup.kill" ]; then
    echo 1 >| "$cgroup/cgroup.kill"
  fi 2>/dev/null
  [ -n "$task" ] && kill -s "$1" -- "-$task" 2>/dev/null
  marked
  for each in $found; do
    facts "$each"
    [ "$group" = "$task" ] || kill -s "$1" "$each" 2>/dev/null
  done
}

# Whether any process is left; unreaped zombies do not count.
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

# Why it was woken: the first reason counts, and the end is polite; when the grace is over, it is
# forced.
attend() {
  now
  if [ -z "$reason" ]; then
    if [ -n "$asked" ] || { [ -n "$stopped" ] && [ -e "$name.cancel" ]; }; then
      reason=cancelled
      # Empty on a full disk.
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

# Enters the cgroups, as the process that becomes the task; GNU time stays outside, so that it
# survives when all processes inside are killed.
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
  # The reader of the answer may be gone.
  trap '' PIPE
  reason= woken= stopped= asked= timer= task= forced=0 date=-
  { {
    read -r line
    read -r line word limit word grace word memory word bytes word cores word must
  } < "$script.run"; } 2> /dev/null || {
    echo "failed $name has no script"
    return 97
  }
  # Many supervisors answer through one pipe at once: each with one line, in one write.
  if ! command exec 3> "$name.task"; then
    if [ -e "$name.task" ]; then
      echo "known $name"
      return 0
    fi
    line=$({ : > "$script.why"; } 2>&1; rm -f -- "$script.why")
    set -f
    # shellcheck disable=SC2086 # one line of whatever was said
    echo "failed $name" $line
    set +f
    return 97
  fi 2> /dev/null
  exec 3>> "$name.task"
  facts self
  pid=${line%% *} born=$birth
  [ -z "$clock" ] || date=$(date +%s.%N)
  now
  began=$up
  # From its first line on others send it signals.
  trap 'woken=1' USR1
  trap 'woken=1 asked=1' USR2
  trap 'woken=1 stopped=1' TERM
  if ! echo "start $script $pid $born $boot $node $began $date" >&3; then
    rm -f -- "$name.task"
    echo "failed $name cannot write its record"
    return 97
  fi 2> /dev/null
  # The task was given up or cancelled before this record had a line.
  [ ! -e "$name.lost" ] || reason=stopped
  [ ! -e "$name.cancel" ] || reason=cancelled
  if [ -n "$reason" ]; then
    release
    printf '\nexit 143 %s %s .\n' "$reason" "$began" >&3
    { echo "$name" >> ../ends; } 2>/dev/null
    echo "known $name"
    return 143
  fi
  [ -z "$cgroup" ] || { [ "${cores:-0}" -gt 0 ] && bound 2>/dev/null; } || release
  if [ "$must" = cgroup ] && [ -z "$cgroup" ]; then
    rm -f -- "$name.task"
    remedy='use rlimit or none, or give the account cgroups'
    echo "refused $name memoryLimit is cgroup, and this account cannot make one here; $remedy"
    return 97
  fi
  for each in "$cgroup" "$processor"; do
    [ -z "$each" ] || echo "limits cgroup $each" >&3
  done 2>/dev/null
  case $counter in */job_*) echo 'counts kills' >&3 ;; esac 2>/dev/null
  echo "started $name $pid" 2>/dev/null
  [ "$mode" = foreground ] || exec > /dev/null 2>&1
  perform &
  job=$!
  if [ -z "$measure" ]; then
    task=$job
    echo "task $task" >&3
  fi
  [ "$limit" -gt 0 ] && wake_after "$limit"
  wait "$job"
  code=$?
  # A kill of a whole job signals its processes one after the other: ours may be the last.
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
  # Hundredths of a second. The same processes may hang in the kernel for hours, and a look at all
  # processes costs a part of a processor.
  nap=2 before=
  while remains; do
    now
    if [ -n "$polite" ] && [ "$up" -lt "$forced" ]; then
      [ "$polite" = 2 ] || tell TERM
      polite=2
    else
      tell KILL
    fi
    [ "$found" = "$before" ] || nap=2 before=$found
    sleep "0.$((nap / 10))$((nap % 10))"
    nap=$((nap + nap / 8 + 1))
    [ "$nap" -le 50 ] || nap=50
  done
  [ "$reason" = cancelled ] && [ "$code" -eq 0 ] && reason=
  if [ -z "$reason" ] && [ -n "$cgroup" ] && [ "$code" -ne 0 ]; then
    for each in memory.events memory.oom_control; do
      [ ! -e "$cgroup/$each" ] || while read -r word value; do
        [ "$word" = oom_kill ] && [ "$value" -gt 0 ] && reason=memory
      done < "$cgroup/$each"
    done
  elif [ -z "$reason" ]; then
    # In the cgroup of a job of its own each such kill is one of the task, whatever its code.
    case $code:$counter in
      137:* | *:*/job_*)
        kills
        [ "$killed" -gt "$oom" ] 2>/dev/null && reason=memory ;;
    esac
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
