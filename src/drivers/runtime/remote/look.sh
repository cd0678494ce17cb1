# shellcheck shell=sh
# look NAME LIST PATH…: the SHA-256 of files of a task. Reading them may take hours, and holds no
# channel: it goes on in the background, and the answer is in `NAME.LIST.sums`, whose last line is
# `done`. Prints `sums NAME` and the lines of sha256sum when all are read, `cut NAME` and the lines
# so far where the task is cancelled, else `reading NAME` or, where it starts a reader, `begun NAME`:
# ask again. A reader needs room for its link `NAME.LIST.reading`, whose target is its process, and
# for the lines: without it, every call starts one that ends at once.
# shellcheck disable=SC2016 # what is quoted for another shell is expanded there
reader='
name=$1 list=$2
shift 2
ln -s -- "$$" "$name.$list.reading" || exit
# The call that starts it waits until here.
exec > /dev/null
{
  while sleep 1 && [ -e "$name.task" ] && [ ! -e "$name.cancel" ]; do :; done
  kill -s KILL 0
} &
watcher=$!
# sha256sum reports files that it cannot read as it reports a full disk; cat reports only the latter.
{
  sha256sum -- "$@"
  [ "$?" -gt 1 ] || echo done
} | cat > "$name.$list.$$.part" && mv -- "$name.$list.$$.part" "$name.$list.sums" ||
  rm -f -- "$name.$list.$$.part"
kill "$watcher"
'
look() {
  going=
  pid=$(readlink -- "$1.$2.reading") && grep -aqs -e "$2" "/proc/$pid/cmdline" && going=1
  # Only now: its reader may have ended meanwhile.
  if [ "$(tail -n 1 -- "$1.$2.sums")" = 'done' ]; then
    echo "sums $1"
    cat "$1.$2.sums"
  elif [ -e "$1.cancel" ]; then
    echo "cut $1"
    cat "$1.$2".*.part
  elif [ -n "$going" ]; then
    echo "reading $1"
  else
    echo "begun $1"
    rm -f -- "$1.$2.reading"
    : "$(setsid /bin/sh -c "$reader" reader "$@" < /dev/null &)"
  fi
} 2> /dev/null
