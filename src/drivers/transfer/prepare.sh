# shellcheck shell=sh
# Prints the state of DIRECTORY: `existing` with its MANIFEST, `occupied`, `partial` or `fresh`, on
# the first line; then free KiB and the output of `df`. It first ends what an earlier transfer to
# ARRIVING left running: by a signal (dd then reports its progress), after a second by force.
export LC_ALL=C; umask 077
if [ -d "$DIRECTORY" ] && [ -f "$MANIFEST" ]; then echo existing; exec cat "$MANIFEST"; fi
if [ -d "$DIRECTORY" ] && [ -n "$(find "$DIRECTORY" -mindepth 1 -maxdepth 1 -print -quit)" ]; then
  echo occupied
  exit 0
fi
state=fresh
if [ -d "$ARRIVING/files" ]; then
  state=partial; tries=0
  while :; do
    signal=INT; [ "$tries" -lt 20 ] || signal=KILL; left=
    for c in /proc/[0-9]*/cwd; do
      # shellcheck disable=SC3013 # dash, bash and busybox have -ef.
      if [ "$c" -ef "$ARRIVING" ] || [ "$c" -ef "$ARRIVING/files" ]; then
        p=${c#/proc/}
        kill -s "$signal" "${p%/cwd}" 2>/dev/null && left=1
      fi
    done
    [ -n "$left" ] && [ "$tries" -lt 40 ] || break
    tries=$((tries + 1)); sleep 0.05
  done
fi
mkdir -p "$ARRIVING/files" "$ARRIVING/notes" "$ARRIVING/lists" || exit 1
echo "$state"; df -Pk "$ARRIVING" | tail -n 1
