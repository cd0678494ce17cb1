# shellcheck shell=sh
# The script of an array for one of its elements. The text before it defines `choose INDEX`, which
# sets script (NAME.TOKEN) and, for a task that creates its own script and work directory, from,
# size and directory; and `supervise`, which becomes the supervisor of the task. FOLDER: of the
# records. INDEX: of the element. PACK: the packed texts. RESTARTS: how often the scheduler has run
# the element again; empty where it may not do that.

cd "$FOLDER" || exit 66
# shellcheck disable=SC2034 # `unpack` reads size
script= size=
choose "$INDEX"
[ -n "$script" ] || exit 64
name=${script%%.*}
# A removed task starts nothing, nor does one that was given back to be submitted anew.
[ -e "$name.array" ] || exit 0
# A task with a verdict is over, even if the scheduler runs it again.
[ -e "$name.verdict" ] && exit 0
# The scheduler took the task away and runs it again: the record of the earlier start is put aside,
# unless the task had ended by itself.
if [ "${RESTARTS:-0}" -gt 0 ] && grep -q '^start ' "$name.task" &&
  ! grep '^exit .*\.$' "$name.task" | grep -qv '^exit [0-9]* stopped '; then
  mv "$name.task" "$name.task.$RESTARTS"
fi
unpack
supervise
