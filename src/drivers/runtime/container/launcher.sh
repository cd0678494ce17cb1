# The program of a task that runs in a container, as seen by the site: POSIX `sh` on the host where
# the task runs. It brings the image, starts the container, waits for the task's end and ends as the
# task did, so time limits, exit records, logs and cancellation stay those of the site's own driver.
# Installed once per content at `<root>/containers/<hash>/launcher`, behind `inside` (the text of
# inside.sh), clock.sh and sweep.sh.
#
# Arguments: ENGINE (`auto` too), IMAGE, the image's key, CPUS, MEMORY in bytes, GPUS, NETWORK (0,
# 1), IDLE seconds of a kept container (0: a container of its own), engines that may keep one,
# SCOPE, NAME, the variable that marks processes, UID:GID, the lane's key, the kept container's
# mount, whether the image may be brought (0, 1), then the mounts of work directory and home and
# further ones (in the form of `--mount`).
# Environment: ORRERY_PARTS and ORRERY_PART_0 …, the task's script in pieces, because one variable
# takes 128 KiB.
#
# Below `<root>/containers`: `images/KEY.HOST` is the resolved image, once per run and host (FIFO
# order by flock, one pull for all), with the length of its file, and
# `images/KEY.HOST.passwd` its accounts with ours, if needed;
# `images/KEY.HOST.silent` has the time since boot when an engine did not answer, and words about it;
# `records/NAME` is the record of the task's container;
# `tasks/NAME` is `/.orrery` in the container; `lanes/KEY.HOST.N` is the same of a kept container,
# which takes requests while `state` is `open CONTAINER`. A kept container makes `NAME.taken` before
# it starts a task, or finds that the launcher has made it.
#
# It ends with 125 when there was no container; the record then has `trouble CLASS WORDS`. Engines
# are started in a session of their own without the mark, so that a signal for the task's group
# cannot hit one in the middle of a start.
# shellcheck disable=SC2154 # clock.sh sets up, launcher.ts inside
umask 077
# shellcheck disable=SC3045 # dash, bash and busybox have it
ulimit -c 0
LC_ALL=C
export LC_ALL
engine=$1 image=$2 known=$3 cpus=$4 memory=$5 gpus=$6 network=$7 idle=$8 keepers=$9
shift 9
scope=$1 name=$2 marker=$3 account=$4 lane=$5 shared=$6 brings=$7
shift 7
unset "$marker"
cd "${0%/*}/.." || exit 125
base=$PWD
read -r node < /proc/sys/kernel/hostname
known=images/$known.$node
fewer_gpus="ask for fewer GPUs, or plan the activity elsewhere"
# Seconds for an engine to answer, and for the first container of an image, whose files an engine may
# have to copy. Docker's engine may accept a command and not answer it for ever.
patience=120 copying=600
unanswered="it did not answer for $patience s"
told= line= place= pumps= pulled=0 reused=0 remove=--rm remains=
trap 'told=1; [ -z "$line" ] || echo TERM >&9' TERM

record() {
  printf '%s\n' "$*" >> "records/$name"
}

clear_away() {
  # A pump that no container has written to finds its end.
  for each in "$place/$name".out "$place/$name".err; do
    [ ! -p "$each" ] || rm -f -- "$each" 4<> "$each"
  done
  case $place in
    tasks/*)
      rm -rf -- "$place"
      case $remains in podman) remove_podman "$name" ;; docker) "$tool" rm -f "$name" > /dev/null 2>&1 ;; esac ;;
    lanes/*) rm -f -- "$place/$name".* ;;
  esac
}

# Ends with the task's exit. The signals 19 to 22 end no process, they would stop this one: such a
# code is the program's own.
end_with() {
  clear_away
  if [ "$1" -gt 128 ] && [ "$1" -lt 160 ] && { [ "$1" -lt 147 ] || [ "$1" -gt 150 ]; }; then
    trap - TERM
    kill "-$(($1 - 128))" $$ 2>/dev/null
  fi
  exit "$1"
}

give_up() {
  [ -z "$told" ] || end_with 143
  words=$(printf '%s' "$2" | tr '\n' ' ' | cut -c 1-1500)
  record "trouble $1 $words"
  printf '%s\n' "$words" >&2
  clear_away
  exit 125
}

# Classifies an engine's message: the first list passes by itself, the second does not.
classify() {
  case $1 in
    *"onnection refused"* | *"no such host"* | *imeout* | *"timed out"* | *EOF* | *"connection reset"* | \
      *"is unreachable"* | *"no route to host"* | \
      *"annot connect to "* | *"server misbehaving"* | *"Service Unavailable"* | *"Internal Server Error"* | \
      *toomanyrequests* | *"o space left"*)
      class=infrastructure ;;
    *"not found"* | *"manifest unknown"* | *"not known"* | *"name unknown"* | *"no such file"* | *"denied"* | \
      *nauthorized* | *"uthentication required"* | *"invalid reference"* | \
      *"no matching manifest"* | *"no image found"* | *"short-name"* | *"ange of CPUs"* | \
      *"inimum memory limit"* | *"could not select device driver"* | *"unresolvable CDI"* | \
      *nvidia-container-cli* | *"requires root"* | *"cannot be used"*)
      class=refused ;;
    *) class=infrastructure ;;
  esac
}

# The remedy, appended to an engine's message.
advise() {
  case $gpus:$said in
    *"open /dev/fuse: Permission denied"*)
      said="$said; let accounts use /dev/fuse there (mode 0666), or install apptainer-suid" ;;
    0:*) ;;
    *"could not select device driver"* | *nvidia.com/gpu* | *nvidia-container-cli*)
      said="$said; the task needs GPU $devices of $node: install NVIDIA's driver and container toolkit there"
      said="$said (for Podman, nvidia-ctk cdi generate), $fewer_gpus" ;;
  esac
}

kills() {
  killed=0
  while read -r key value; do
    [ "$key" != oom_kill ] || killed=$value
  done < /proc/vmstat
}

# ---- the engine

# `timeout` of coreutils makes a process group, which a signal to the task's does not reach, unless it
# is in the foreground; that of busybox makes none, and its early versions take other words.
limiter=
find_limiter() {
  for limiter in 'timeout --foreground -s KILL' 'timeout -s KILL' ''; do
    $limiter ${limiter:+5} true 2> /dev/null && return
  done
}

# Runs a command for so many seconds at most; 124: its time is over. A client of Docker passes other
# signals than KILL on, and waits. Podman has no engine that may be silent, and may wait long for the
# lock of its store.
within() {
  limit=$1
  shift
  case $limiter:${1##*/} in
    :* | *:podman)
      "$@"
      return ;;
  esac
  now
  due=$((up + limit * 100))
  $limiter "$limit" "$@" && return
  code=$?
  now
  [ "$code" -ne 137 ] || [ "$up" -lt "$due" ] || code=124
  return "$code"
}

ask_version() {
  said=$(within "$patience" "$@" 2>&1 > /dev/null 8>&-)
  code=$?
  [ "$code" -ne 124 ] || said=$unanswered
  return "$code"
}

works() {
  said=
  case $1 in
    apptainer) tool=$(command -v apptainer || command -v singularity) ;;
    docker) tool=$(command -v docker) && ask_version docker version --format '{{.Server.Version}}' ;;
    podman) tool=$(command -v podman) && ask_version podman version ;;
  esac
}

# Gives up, and with it all tasks that wait for the same answer.
report_silence() {
  now
  printf '%s %s\n' "$up" "$1" > "$known.silent"
  give_up infrastructure "$1"
}

# Whether the engine has not answered since this task waits. Times of another boot are no times.
is_silent() {
  { read -r since words < "$known.silent"; } 2> /dev/null || return
  now
  [ "$since" -gt "$launched" ] && [ "$since" -le "$up" ]
}

find_engine() {
  if [ "$engine" = auto ]; then
    class=refused why= choice='docker podman apptainer'
    case $image in
      archive:*) choice='docker podman' ;;
      /*) choice=apptainer ;;
    esac
    for each in $choice; do
      if works "$each"; then
        engine=$each
        return
      fi
      [ -z "$said" ] || why="$why; $each: $said"
      [ "$said" != "$unanswered" ] || class=infrastructure
    done
    why="$node has no docker, podman or apptainer that works for this account$why"
    [ "$class" = refused ] || report_silence "$why"
    give_up refused "$why; install one there, or set containerRuntime"
  fi
  works "$engine" && return
  [ -n "$tool" ] || give_up refused "$node has no $engine; install it there, or set containerRuntime"
  [ "$said" != "$unanswered" ] || report_silence "$engine does not work on $node: $said"
  classify "$said"
  give_up "$class" "$engine does not work on $node: $said"
}

# Whether the engine should remove containers that have ended. Before version 25, an engine that
# keeps containers alive over its restart ends those that it has to remove. What a launcher could
# not remove there, a launcher an hour later removes: a younger container may be about to start.
ask_removal() {
  remove=--rm
  [ "$engine" = docker ] || return
  each='{{.LiveRestoreEnabled}} {{.ServerVersion}}'
  case $(within "$patience" docker info --format "$each" 2> /dev/null 8>&-) in
    'true 1'?.* | 'true 2'[0-4].*)
      remove=
      within "$patience" docker container prune --force --filter label=orrery.scope --filter until=1h \
        > /dev/null 2>&1 8>&- ;;
  esac
}

# ---- the image

# A file's length, without reading it; of what else an image is at a site, none.
length_of() {
  length=-
  [ ! -f "$1" ] || length=$(stat -L -c %s -- "$1" 2> /dev/null)
}

# A file may leave the site during the run, or be replaced: it is looked for by each task.
know() {
  [ -s "$known" ] && { read -r engine digest entry remove id && read -r known_length; } < "$known" &&
    [ -n "$id" ] || return
  case $id in
    /*)
      length_of "$id"
      [ -e "$id" ] && [ "$length" = "$known_length" ] || return ;;
  esac
  tool=$engine remove=${remove#-}
  [ "$engine" != apptainer ] || works apptainer
}

inspect() {
  each='{{.Id}}{{range .RepoDigests}} {{.}}{{end}}'
  found=$(within "$patience" "$tool" image inspect --format "$each" "$1" 2> /dev/null 8>&-) || {
    [ "$?" -ne 124 ] || report_silence "$engine on $node cannot look for $image: $unanswered"
    return 1
  }
  [ -n "$found" ] || return
  id=${found%% *} digest=${found#* }
  digest=${digest%% *} digest=${digest##*@} digest=sha256:${digest#sha256:}
  [ -z "$want" ] || case " $found " in *"$want "* | *" ${want#sha256:} "*) digest=$want ;; esac
}

bring() {
  now
  begun=$up
  said=$("$tool" pull -q $plain_http "$1" 2>&1 > /dev/null 8>&-)
  code=$?
  now
  pulled=$((pulled + up - begun))
  return "$code"
}

# Loads an image from its archive at the site. Its name keeps the engine from pruning it.
loaded_image() {
  file=${image%@sha256:*} want=${image##*@}
  file=${file#archive:}
  inspect "$want" && return
  [ -e "$file" ] || give_up refused "$node has no image at $file: no such file"
  now
  begun=$up
  said=$("$tool" load -q -i "$file" 2>&1 > /dev/null 8>&-) || {
    classify "$said"
    give_up "$class" "$engine on $node cannot load $file: $said"
  }
  inspect "$want" || give_up refused "the digest of $file differs: asked for $want, but it holds another image"
  within "$patience" "$tool" tag "$want" "orrery-artifact:${want#sha256:}" > /dev/null 2>&1 8>&-
  now
  pulled=$((up - begun))
}

differ() {
  give_up refused "the digest of $image differs: asked for $want, but $plain is $digest"
}

stay_away() {
  give_up refused "$engine on $node does not have $image, and use-in-place brings nothing; load it there, or give \
delivery.strategy destination-pull or auto"
}

layered_image() {
  case $image in archive:*) loaded_image; return ;; esac
  plain_http=
  case $engine:$image in podman:127.* | podman:localhost[:/]*) plain_http=--tls-verify=false ;; esac
  want= plain=${image%%@*}
  case $image in *@*) want=${image#*@} ;; esac
  inspect "$image" && return
  # An image that was built or loaded here has a name, and its id is its digest.
  [ -n "$want" ] && inspect "$plain" && [ "$digest" = "$want" ] && return
  if [ "$brings" = 0 ]; then
    [ -z "$want" ] || ! inspect "$plain" || differ
    stay_away
  fi
  if bring "$image"; then
    inspect "$image" && return
    give_up infrastructure "$engine on $node has pulled $image and does not know it"
  fi
  classify "$said"
  words=$said
  if [ "$class" = refused ] && [ -n "$want" ] && { inspect "$plain" || { bring "$plain" && inspect "$plain"; }; }; then
    differ
  fi
  give_up "$class" "$node cannot pull $image: $words"
}

sum_of() {
  choose_sum
  digest=sha256:$(sum < "$1")
  digest=${digest%% *}
}

# A SIF file, made once from a registry's image.
file_image() {
  want= digest=-
  case $image in *@*) want=${image##*@} ;; esac
  case $image in
    /*)
      id=${image%@sha256:*} remedy=
      [ "$brings" = 1 ] || remedy='; put the file there, or correct its path or digest'
      [ -e "$id" ] || give_up refused "$node has no image at $id: no such file$remedy"
      [ ! -f "$id" ] || sum_of "$id"
      [ -z "$want" ] || [ "$want" = "$digest" ] ||
        give_up refused "the digest of $id differs: asked for $want, but it is $digest$remedy"
      return ;;
  esac
  source=${image#docker://}
  # The engine accepts a digest or a tag, not both.
  plain=${source%@*} last=${source%@*} last=${last##*/}
  case $last in *:*) plain=${plain%:*} ;; esac
  [ -z "$want" ] || source=$plain@$want
  key=${known#images/*-}
  id=$base/images/${key%%.*}.sif
  if ! [ -s "$id" ]; then
    [ "$brings" = 1 ] || give_up refused "apptainer on $node would have to make a SIF file of $image, and use-in-place \
brings nothing; give the SIF file there as remote-file, or give delivery.strategy destination-pull or auto"
    now
    begun=$up
    case $source in
      127.* | localhost[:/]*)
        APPTAINER_NOHTTPS=1 SINGULARITY_NOHTTPS=1
        export APPTAINER_NOHTTPS SINGULARITY_NOHTTPS ;;
    esac
    said=$("$tool" -q build --disable-cache -F "$id.$node.$$" "docker://$source" 2>&1 > /dev/null 8>&-) || {
      rm -f -- "$id.$node.$$"
      classify "$said"
      give_up "$class" "$node cannot pull $image: $said"
    }
    mv -f -- "$id.$node.$$" "$id" || give_up infrastructure "$node cannot write $id"
    now
    pulled=$((up - begun))
  fi
  digest=${want:-$digest}
  [ "$digest" != - ] || sum_of "$id"
}

# Finds the shell for the task's script in the image: the image's own sh, else the host's busybox.
# `said` is then a line, and the image's accounts.
probe() {
  busybox=$(command -v busybox)
  # shellcheck disable=SC2016 # the image's shell expands it
  facts='command -v env || exit
{ while IFS= read -r line; do echo "$line"; done < /etc/passwd; } 2> /dev/null
true'
  for entry in sh busybox; do
    set --
    [ "$entry" = sh ] || {
      [ -n "$busybox" ] && set -- --mount "type=bind,source=$busybox,target=/.orrery-tools/busybox,readonly"
    } || break
    case $engine$entry in
      apptainersh) said=$("$tool" -q exec --containall --no-home "$id" /bin/sh -c "$facts" 2>&1 8>&-) ;;
      apptainer*)
        said=$("$tool" -q exec --containall --no-home \
          --mount "type=bind,source=$busybox,target=/.orrery-tools/busybox,ro" \
          "$id" /.orrery-tools/busybox sh -c "$facts" 2>&1 8>&-) ;;
      *sh)
        said=$(within "$copying" "$tool" run --rm --pull never --network none --entrypoint /bin/sh \
          "$id" -c "$facts" 2>&1 8>&-) ;;
      *)
        said=$(within "$copying" "$tool" run --rm --pull never --network none "$@" --entrypoint /.orrery-tools/busybox \
          "$id" sh -c "$facts" 2>&1 8>&-) ;;
    esac && return
    [ "$?" -ne 124 ] || report_silence "$engine on $node cannot run $image: it did not answer for $copying s"
    case $said in *"no such file"* | *"not found"* | *"o such file"* | '') ;; *) break ;; esac
  done
  case $said in
    *"no such file"* | *"not found"* | *"o such file"* | '')
      said="install busybox-static there, or put a shell into the image"
      give_up refused "$image has no /bin/sh and env, and $node has no static busybox to lend it; $said" ;;
  esac
  classify "$said"
  advise
  give_up "$class" "$engine on $node cannot run $image: $said"
}

# The image's accounts and this one, where the image has no name for its number. Apptainer adds it by
# itself.
name_account() {
  rm -f -- "$known.passwd"
  accounts=$(printf '%s\n' "$said" | grep -E '^[^:/ ]+:[^:]*:[0-9]+:[0-9]+:')
  [ "$engine" != apptainer ] && ! printf '%s\n' "$accounts" | grep -q "^[^:]*:[^:]*:${account%:*}:" || return 0
  each=$(id -un 2> /dev/null) || each=user
  case $each in '' | *[:/]*) each=user ;; esac
  printf '%s\n' "$accounts" "$each:x:$account:$each:/tmp:/bin/sh" | grep . > "$known.passwd" &&
    chmod 644 "$known.passwd"
}

resolve() {
  know && return
  exec 8>> "$known.lock"
  flock 8 || give_up refused "$node lacks flock (Debian: util-linux), which containers need"
  if ! know; then
    ! is_silent || give_up infrastructure "$words"
    find_limiter
    find_engine
    [ "$engine" != podman ] || sweep "$node" 8>&-
    ask_removal
    case $engine in apptainer) file_image ;; *) layered_image ;; esac
    probe
    name_account || give_up infrastructure "$node cannot write $base/$known.passwd"
    length_of "$id"
    printf '%s\n' "$engine $digest $entry -$remove $id" "$length" > "$known.$$" && mv -f -- "$known.$$" "$known" ||
      give_up infrastructure "$node cannot write $base/$known"
  fi
  exec 8>&-
}

# ---- the container

count() {
  found=$#
  [ -e "$1" ] || found=0
}

# The task's GPUs by their numbers on this node: those that Slurm gave the job, else the first.
# Slurm sets them in the environment of our parent process, as ours is the task's. Apptainer stays
# within the job's GPUs, where they may have other numbers.
choose_gpus() {
  devices= visible= each=0
  [ "$gpus" != 0 ] || return 0
  for given in $({ tr '\0' '\n' < "/proc/$PPID/environ" |
    grep -E '^(SLURM_JOB_GPUS|CUDA_VISIBLE_DEVICES)='; } 2> /dev/null); do
    case $given in SLURM*) devices=${given#*=} ;; *) visible=${given#*=} ;; esac
  done
  [ -n "$devices" ] || while [ "$each" -lt "$gpus" ]; do
    devices=$devices${devices:+,}$each each=$((each + 1))
  done
  devices=$(printf '%s' "$devices" | cut -d , -f "1-$gpus")
  # A kept container keeps the GPUs with which it was started.
  lane=$lane-gpu-$(printf '%s' "$devices" | tr ',' '-')
  [ "$engine" = apptainer ] || return 0
  count /dev/nvidia[0-9]*
  [ "$found" -ge "$gpus" ] || {
    given="the task asks for $gpus of NVIDIA's GPUs and $node has $found (/dev/nvidia0 …)"
    give_up refused "$given; install their driver there, $fewer_gpus"
  }
  visible=$(printf '%s' "${visible:-$devices}" | cut -d , -f "1-$gpus")
  APPTAINERENV_CUDA_VISIBLE_DEVICES=$visible SINGULARITYENV_CUDA_VISIBLE_DEVICES=$visible
  export APPTAINERENV_CUDA_VISIBLE_DEVICES SINGULARITYENV_CUDA_VISIBLE_DEVICES
}

# Passes our output to the task: the same file, else through a pipe.
attach() {
  exec 3>&"$1"
  if ! ln -L -- "/proc/$$/fd/3" "$2" 2> /dev/null; then
    mkfifo -- "$2" || give_up infrastructure "$node cannot make a pipe at $base/$2"
    (
      trap '' TERM
      exec cat < "$2" >&3 5>&- 7>&- 9>&-
    ) &
    pumps="$pumps $!"
  fi
  exec 3>&-
}

prepare() {
  part=0
  while [ "$part" -lt "$ORRERY_PARTS" ]; do
    eval "printf '%s' \"\$ORRERY_PART_$part\""
    part=$((part + 1))
  done > "$place/$name.run" && mkfifo -- "$place/$name.life" "$place/$name.done" ||
    give_up infrastructure "$node cannot prepare $base/$place (is its disk full?)"
  attach 1 "$place/$name.out"
  attach 2 "$place/$name.err"
  exec 9<> "$place/$name.life"
  exec 5<> "$place/$name.done"
  echo go >&9
  line=1
  [ -z "$told" ] || echo TERM >&9
}

# The parent does not hold the pipe open meanwhile, so that its end is that of the container.
begin() {
  {
    setsid "$tool" "$@" < /dev/null > "$place/said" 2>&1
    code=$?
    [ ! -p "$place/$name.done" ] || { echo "left $code" 1<> "$place/$name.done"; } 2> /dev/null
  } 5>&- 7>&- 9>&- &
  starter=$!
}

start() {
  mode=$1 what=$2
  shift 2
  measured=1
  [ "$engine" != apptainer ] || measured=0
  for each; do
    shift
    set -- "$@" --mount "$each"
  done
  set -- --mount "type=bind,source=$base/$place,target=/.orrery" "$@"
  if [ "$entry" = sh ]; then
    shell=/bin/sh
  else
    shell=/.orrery-tools/busybox
    set -- --mount "type=bind,source=$(command -v busybox),target=$shell" "$@"
  fi
  if [ "$engine" = apptainer ]; then
    [ "$gpus" = 0 ] || set -- --nv "$@"
    [ "$network" = 1 ] || set -- --net --network none "$@"
    # Only root may limit a container without a cgroup of its own.
    if [ "$account" = 0:0 ]; then
      [ "$memory" = 0 ] || set -- --memory "$memory" "$@"
      [ "$cpus" = 0 ] || set -- --cpus "$cpus" "$@"
    fi
    set -- -q exec --containall --no-home --no-eval --env "$marker=$name" "$@" "$id" "$shell"
    [ "$entry" = sh ] || set -- "$@" sh
    begin "$@" -c "$inside" orrery "$mode" "$what" "$measured"
    return
  fi
  [ "$cpus" = 0 ] || set -- --cpus "$cpus" "$@"
  case $* in
    *,target=/etc | *,target=/etc[\ ,]* | *,target=/etc/passwd | *,target=/etc/passwd[\ ,]*) ;;
    *)
      [ ! -s "$known.passwd" ] ||
        set -- --mount "type=bind,source=$base/$known.passwd,target=/etc/passwd,readonly" "$@" ;;
  esac
  size=
  if [ "$memory" != 0 ]; then
    set -- --memory "$memory" --memory-swap "$memory" "$@"
    size=,size=$((memory / 2))
  fi
  case $engine:$devices in
    *:) ;;
    docker:*) set -- --gpus "\"device=$devices\"" "$@" ;;
    *) for each in $(printf '%s' "$devices" | tr ',' ' '); do set -- --device "nvidia.com/gpu=$each" "$@"; done ;;
  esac
  [ "$network" = 1 ] || set -- --network none "$@"
  [ "$mode" = lane ] || set -- -e "$marker=$name" "$@"
  # Without root the engine's own user replaces the account.
  case $engine:$account in podman:0:*) ;; podman:*) set -- --userns keep-id "$@" ;; esac
  detached=-d
  # Its monitor, which removes the container at its end, is a child of this process.
  [ "$engine:$mode" != podman:once ] || detached= remains=podman
  [ -n "$remove" ] || remains=docker
  # shellcheck disable=SC2086 # one option or none
  set -- run $detached $remove --pull never --name "$container" \
    --label "orrery.scope=$scope" --label "orrery.node=$node" --log-driver none --pids-limit 4096 \
    --read-only --tmpfs "/tmp:rw,exec,nosuid,nodev,mode=1777$size" --user "$account" --cap-drop ALL \
    --security-opt no-new-privileges --security-opt label=disable "$@" --entrypoint "$shell" "$id"
  [ "$entry" = sh ] || set -- "$@" sh
  begin "$@" -c "$inside" orrery "$mode" "$what" "$measured"
}

# Reads the next line of the task's own FIFO into word and rest; false at its end.
listen() {
  until read -r word rest <&"$1"; do
    [ -n "$told" ] && [ "$told" != heard ] || return
    told=heard
  done
}

# TERM does not end it: a shell that has just been forked loses signals that its parent traps.
remind_after() {
  (
    trap 'kill "$nap"; exit' USR1
    sleep "$1" 5>&- &
    nap=$!
    wait "$nap"
    echo late >&5
  ) > /dev/null 2>&1 7>&- 9>&- &
  reminder=$!
}

# Waits until the task runs.
await_start() {
  reminder=
  [ -z "$1" ] || remind_after "$1"
  while listen 5; do
    case $word in
      up) break ;;
      late) return 1 ;;
      left)
        if [ "$rest" != 0 ]; then
          said=$(cat "$place/said")
          return 1
        fi
        # It has been started, and has not reported yet.
        remind_after 120 ;;
    esac
  done
  [ -z "$reminder" ] || kill -s USR1 "$reminder" 2> /dev/null
  record "up $rest"
  exec 6< "$place/$name.done"
  exec 5>&-
}

choose_lane() {
  each=0
  while [ $((each = each + 1)) -le 128 ]; do
    place=lanes/$lane.$node.$each
    [ -d "$place" ] || mkdir -p -- "$place" || return
    exec 7>> "$place/lock"
    flock -n 7 && return
    exec 7>&-
  done
  place=
  return 1
}

# Lets the kept container run the task; false when another container has to run it.
ask_kept() {
  echo "$name" 1<> "$place/requests"
  await_start 5 && return
  # It was removed, or is slow: the process that makes this file first may start the task or give it
  # to another.
  if ! claim "$place/$name.taken"; then
    await_start 120 && return
    give_up infrastructure "the container that $engine on $node keeps has taken the task and does not say that it runs"
  fi
  said=$("$tool" rm -f "$container" 2>&1 > /dev/null 5>&- 7>&- 9>&-) || case $said in
    *"o such container"* | *"already in progress"*) ;;
    *) give_up infrastructure "$engine on $node cannot take away a container that does not answer: $said" ;;
  esac
  return 1
}

run_in_lane() {
  choose_lane || return
  prepare
  state=
  [ ! -s "$place/state" ] || read -r state container < "$place/state"
  if [ "$state" = open ] && [ -p "$place/requests" ] && ask_kept; then
    reused=1
    return 0
  fi
  container=orrery-$lane-$each-$$
  rm -f -- "$place/requests"
  mkfifo -- "$place/requests" || give_up infrastructure "$node cannot make a pipe at $base/$place"
  exec 4<> "$place/requests"
  echo "$name granted" >&4
  start lane "$idle" "$shared" "$@"
  await_start '' || fail_start
  exec 4>&-
  echo "open $container" > "$place/state"
}

# No launcher sends it requests any more.
leave_kept() {
  [ -z "$keeps" ] || echo closed > "$place/state"
}

fail_start() {
  case $said in
    *"No such image"* | *"image not known"* | *"no such image"* | *"could not open image"*"no such file"*)
      rm -f -- "$known"
      give_up infrastructure "$image was taken away from $engine on $node: $said" ;;
  esac
  classify "$said"
  advise
  give_up "$class" "$engine on $node cannot start a container of $image: ${said:-it did not answer for two minutes}"
}

now
launched=$up
kills
killed_before=$killed
record "image $image" && mkdir -p -- images tasks lanes ||
  give_up infrastructure "$node cannot write below $base: is its disk full?"
resolve
record "engine $engine"
record "digest $digest"
record "id $id"
[ -z "$DOCKER_HOST" ] || record "host $DOCKER_HOST"
record "pull $pulled"
if [ "$pulled" != 0 ]; then
  case $engine in
    apptainer) size=$(wc -c < "$id") ;;
    *) size=$(within "$patience" "$tool" image inspect --format '{{.Size}}' "$id" 2> /dev/null 8>&-) ;;
  esac
  [ -z "$size" ] || record "size $size"
fi
[ -z "$told" ] || end_with 143
choose_gpus
keeps=
[ "$idle" = 0 ] || [ -z "$remove" ] || case " $keepers " in *" $engine "*) keeps=1 ;; esac
if [ -n "$keeps" ]; then
  own=$1 home=$2
  shift 2
  run_in_lane "$@" || keeps=
  set -- "$own" "$home" "$@"
fi
if [ -z "$keeps" ]; then
  place=tasks/$name container=$name
  mkdir -- "$place" || give_up infrastructure "$node cannot make $base/$place"
  prepare
  start once "$name" "$@"
  await_start '' || fail_start
fi

# The engine's output about the start may come later, and is no fact about a running task.
code= left=
while [ -z "$code" ] && listen 6; do
  case $word in end) code=$rest ;; left) left=$rest ;; esac
done
if [ -z "$code" ]; then
  leave_kept
  [ -z "$told" ] || end_with 143
  kills
  # For lack of memory the kernel may end the whole container.
  if [ "$memory" != 0 ] && [ "$killed" -gt "$killed_before" ]; then
    record 'oom 1'
    end_with 137
  fi
  give_up infrastructure "the container was ended from outside: its engine was restarted, or somebody removed it"
fi
# shellcheck disable=SC2086 # the fields of the line
set -- $code
code=$1
{ read -r a && read -r b && read -r c && read -r d; } < "$place/$name.use"
record "place $launched $2 $3"
record "times $a $b $c $d"
record "peak $5"
record "oom $6"
record "reused $reused"
for each in $pumps; do wait "$each"; done
case $engine:$keeps in
  apptainer:) wait "$starter" ;;
  podman:)
    # Its monitor is about to remove the container; if the monitor was killed, the client would wait
    # for ever.
    exec 5<> "$place/$name.done"
    remind_after 10
    while [ -z "$left" ] && listen 6; do
      case $word in left) left=$rest ;; late) left=late ;; esac
    done
    kill -s USR1 "$reminder" 2> /dev/null
    [ "$left" != 0 ] || remains= ;;
esac
if [ "$4" != 0 ] && [ -z "$told" ]; then
  leave_kept
  give_up infrastructure "$engine on $node told the container to stop"
fi
end_with "$code"
