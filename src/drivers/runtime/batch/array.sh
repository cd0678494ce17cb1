# shellcheck shell=sh
# What an array runs for one of its elements. Before it: `choose INDEX` sets script (NAME.TOKEN) and, for a task that makes its own script and
# work directory, from, size and directory; `supervise` becomes the supervisor of the task. FOLDER: of the records. INDEX: of the element.
# PACK: the texts of those that are packed. RESTARTS: how often the scheduler has run the element again; empty where it may not do that.

cd "$FOLDER" || exit 66
# shellcheck disable=SC2034 # `unpack` reads size
script= size=
choose "$INDEX"
[ -n "$script" ] || exit 64
name=${script%%.*}
# A task with a verdict is over, even if the scheduler runs it once more.
[ -e "$name.verdict" ] && exit 0
# The scheduler took it away and runs it once more: the record of the earlier start is put aside, unless the task had come to an end of its own.
if [ "${RESTARTS:-0}" -gt 0 ] && grep -q '^start ' "$name.task" && ! grep '^exit .*\.$' "$name.task" | grep -qv '^exit [0-9]* stopped '; then
  mv "$name.task" "$name.task.$RESTARTS"
fi
unpack
supervise
