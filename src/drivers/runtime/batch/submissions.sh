# shellcheck shell=sh
# The records of a batch scheduler's driver at its site. Functions; the current folder is `tasks`,
# messages are in English.

# Prints one line about a name: its place, and its verdict. It starts no process.
entry() {
  array= index= limit= time= job= end= at= cause= asked=-
  read -r array index limit time < "$1.array" || return
  read -r job < "../arrays/$array/job"
  read -r end at cause < "$1.verdict"
  [ -e "$1.cancel" ] && asked=cancel
  printf 'entry %s\n' "$1 $array $index $limit $time ${job:--} $asked ${end:--} ${at:-0} $cause"
} 2> /dev/null

# entries NAME…
entries() {
  for name; do
    [ -e "$name.array" ] && entry "$name"
  done
  return 0
}

# Sets holder: the array that contains the name, or nothing.
find_holder() {
  holder=
  # shellcheck disable=SC2034 # only the first word counts
  [ -e "$1.array" ] && read -r holder rest < "$1.array"
}

# put FILE LINE: creates the file with the line, or not at all. Sets words: why the site cannot write
# it; empty where the file exists. After `set -C`.
put() {
  created= words=
  { { created=1; printf '%s\n' "$2"; } > "$1"; } 2> /dev/null && return
  if [ -n "$created" ]; then
    # A builtin only reports that it could not write; tee reports why.
    words=$(printf '%s\n' "$2" | tee "$1" 2>&1 > /dev/null) && return
    rm -f "$1"
  elif [ ! -e "$1" ]; then
    words=$({ : > "$1.why"; } 2>&1)
    rm -f "$1.why"
  fi
  return 1
}

# admit NAME: puts the name into our array, unless another one has it. Prints `ours INDEX`, the entry
# of the other one, `failed NAME WORDS` (no words: another submission has created its file, without
# a line), or nothing: the task has a record, so it must not start.
admit() {
  [ ! -e "$1.task" ] || { entry "$1"; return; }
  if put "$1.array" "$own $number $seconds $now"; then
    echo "ours $number"
    return
  fi
  find_holder "$1"
  if [ "$holder" = "$own" ]; then
    echo "ours $number"
  elif [ -n "$holder" ]; then
    entry "$1"
  # Whoever created it was ended before the line.
  elif [ -z "$words" ] && at=$(stat -c %Y "$1.array" 2> /dev/null) &&
    [ $(($(date +%s) - at)) -gt 60 ] && rm -f "$1.array"; then
    admit "$1"
  else
    set -f
    # shellcheck disable=SC2086 # one line of whatever was said
    echo "failed $1" $words
    set +f
  fi
}

# claim ARRAY LIMIT NOW NAME…: creates the array's folder with the script on standard input, and
# adds each name that no other array has.
claim() {
  own=$1 seconds=$2 now=$3
  shift 3
  mkdir -p ../arrays || return
  if ! words=$(mkdir "../arrays/$own" 2>&1); then
    [ -d "../arrays/$own" ] || { echo "$words" >&2; return 1; }
    job=
    [ -e "../arrays/$own/job" ] && read -r job < "../arrays/$own/job"
    if [ -n "$job" ]; then echo "accepted $job"; else echo "open $(($(date +%s) - $(stat -c %Y "../arrays/$own")))"; fi
    return 0
  fi
  cat > "../arrays/$own/script" || { rm -rf "../arrays/$own"; return 1; }
  set -C
  number=0
  for name; do
    admit "$name"
    number=$((number + 1))
  done
  return 0
}

# release ARRAY NAME…: frees the names and removes the array's folder.
release() {
  own=$1
  shift
  for name; do
    shift
    find_holder "$name"
    [ "$holder" = "$own" ] && set -- "$@" "$name.array"
  done
  rm -rf "$@" "../arrays/$own"
}

# settle NAME LINE: writes the verdict, unless one that counts exists; the verdict of a name that
# had not started counts until another one is written.
settle() {
  printf '%s\n' "$2" > "$1.verdict.$$" || return
  ln "$1.verdict.$$" "$1.verdict" 2> /dev/null || {
    end=never
    [ -e "$1.verdict" ] && read -r end at cause < "$1.verdict"
    [ "$end" != never ] || mv "$1.verdict.$$" "$1.verdict" || return
  }
  rm -f "$1.verdict.$$"
  entry "$1"
}

# Whether a name of the array is left.
is_used() {
  # shellcheck disable=SC2034 # a line is `INDEX) script=NAME.TOKEN …`
  while read -r number word rest; do
    case $word in
      script=*)
        word=${word#script=}
        [ -e "${word%%.*}.array" ] && return 0 ;;
    esac
  done < "../arrays/$1/script"
  return 1
}

# forget NAME…: an array's folder is removed with the last of its names. Prints the removed arrays.
forget() {
  arrays=
  for name; do
    find_holder "$name"
    case " $arrays " in
      *" $holder "*) ;;
      *) arrays="$arrays $holder" ;;
    esac
  done
  for name; do
    shift
    set -- "$@" "$name.array" "$name.verdict" "$name.job" "$name".task.*
  done
  rm -f "$@"
  for array in $arrays; do
    is_used "$array" 2> /dev/null && continue
    rm -rf "../arrays/$array" 2> /dev/null
    echo "gone $array"
  done
  return 0
}
