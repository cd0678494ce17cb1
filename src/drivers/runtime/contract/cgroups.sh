# Where tasks get cgroups of their own: one rule for this machine and for every host. The account
# may make a cgroup in its own one, in a delegated one above it, or in one that its lingering
# systemd provides; version 2 or 1.
#
# Before the calls: `owner`, the process whose cgroup counts; empty `room`, `share`, `lingering`;
# `alone`, empty or not. `confine NAME…` then makes a cgroup `orrery.NAME` for each name in the
# folder that it puts into `room`; it leaves `room` empty where it can make none.
# shellcheck disable=SC2034,SC2154 # what includes it sets owner and reads room and share

has() {
  { read -r line < "$1"; } 2>/dev/null || line=
  case " $line " in *" $2 "*) return 0 ;; esac
  return 1
}

# Makes a cgroup in the folder for each script, if such a cgroup would have the file and processes
# may enter it; otherwise none.
furnish() {
  folder=$1 file=$2
  shift 2
  [ -w "$folder" ] || return
  if [ -e "$folder/cgroup.controllers" ]; then
    [ -w "$folder/cgroup.procs" ] && has "$folder/cgroup.controllers" memory || return
    # The kernel refuses memory as long as processes are in the folder itself. It allows processors,
    # but then no process can leave the folder downwards.
    for each in memory cpu; do
      has "$folder/cgroup.subtree_control" "$each" || echo "+$each" >| "$folder/cgroup.subtree_control"
      has "$folder/cgroup.subtree_control" memory || return
    done 2>/dev/null
  fi
  for each; do
    set -- "$@" "$folder/orrery.$each"
    shift
  done
  mkdir -- "$@" 2>/dev/null
  [ -w "$1/$file" ] && (echo 0 >| "$1/cgroup.procs") 2>/dev/null && return
  rmdir -- "$@" 2>/dev/null
  return 1
}

# Tries the same in the cgroup of this process, below the mount, or in the nearest usable one above
# it.
climb() {
  mount=$1 path=${2%/} file=$3
  shift 3
  until furnish "$mount$path" "$file" "$@"; do
    [ -n "$path" ] || return
    path=${path%/*}
  done
}

# Whether the path of a cgroup of this process matches this pattern.
within() {
  while IFS=: read -r number names path; do
    # shellcheck disable=SC2254 # a pattern is meant
    case $path in $1) return 0 ;; esac
  done < "/proc/$owner/cgroup"
  return 1
}

# Under systemd a login's cgroup belongs to root, and its processes may end with the login. Where
# the account lingers, its own systemd outlives the logins: it takes this process (owner), and so
# the tasks, into a cgroup that is ours.
linger() {
  within '*/session-*.scope' && [ -e "/var/lib/systemd/linger/$(id -un)" ] || return
  bus=/run/user/$(id -u)/bus
  [ -S "$bus" ] || return
  # This shell moves with the owner: from elsewhere it could not try the new cgroup.
  set -- "$owner"
  [ "$owner" = $$ ] || set -- "$owner" $$
  read -r up rest < /proc/uptime
  each=orrery-$owner-${up%.*}${up#*.}.scope
  DBUS_SESSION_BUS_ADDRESS=unix:path=$bus busctl --user --timeout=10 call \
    org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager \
    StartTransientUnit 'ssa(sv)a(sa(sv))' \
    "$each" fail 3 PIDs au $# "$@" Delegate b true CollectMode s inactive-or-failed 0 \
    > /dev/null 2>&1 < /dev/null || return
  for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    if within "*/$each"; then lingering=1; return; fi
    sleep 0.1
  done
}

# Sets room, the folder for cgroups of the given names, and, unless alone is set, share, the folder
# for processors where they are in a tree of their own.
confine() {
  tree= memories= processors= own=/ ours=/ theirs=/
  while read -r line place kind flags rest; do
    case $kind:,$flags, in
      cgroup2:*) tree=${tree:-$place} ;;
      cgroup:*,memory,*) memories=${memories:-$place} ;;
      cgroup:*,cpu,*) processors=${processors:-$place} ;;
    esac
  done < /proc/mounts
  while IFS=: read -r number names path; do
    case $number:,$names, in
      0:*) own=$path ;;
      *,memory,*) ours=$path ;;
      *,cpu,*) theirs=$path ;;
    esac
  done < "/proc/$owner/cgroup"
  if has "$tree/cgroup.controllers" memory; then
    # The account's systemd divides what is above its own cgroup.
    if [ -z "$lingering" ] && climb "$tree" "$own" memory.max "$@"; then room=$folder; return; fi
    # This cgroup is ours and nothing above it is: its processes have to leave it.
    [ -O "$tree$own" ] && [ -w "$tree$own/cgroup.procs" ] || return
    mkdir -- "$tree$own/orrery.rest" 2>/dev/null
    for try in 1 2 3; do
      while read -r each; do
        echo "$each" >| "$tree$own/orrery.rest/cgroup.procs"
      done < "$tree$own/cgroup.procs" 2>/dev/null
      if furnish "$tree$own" memory.max "$@"; then room=$folder; return; fi
    done
    return
  fi
  if [ -n "$memories" ] && climb "$memories" "$ours" memory.limit_in_bytes "$@"; then
    room=$folder
    if [ -z "$alone" ] && [ -n "$processors" ] && [ "$processors" != "$memories" ] &&
      climb "$processors" "$theirs" cpu.cfs_quota_us "$@"; then share=$folder; fi
  fi
}
