# shellcheck shell=sh
# The script of an array for one of its elements. The text before it defines `choose INDEX`, which
# sets script (NAME.TOKEN) and, for a task that creates its own script and work directory, from,
# size and directory; and `supervise`, which becomes the supervisor of the task. ARRAY: its name.
# FOLDER: of the records. INDEX: of the element. PACK: the packed texts. JOB: the scheduler's id of the
# array, and RESTARTS: how often the scheduler has run the element again; both empty where it may not
# do that.

cd "$FOLDER" || exit 66
# shellcheck disable=SC2034 # `unpack` reads size
script= size=
choose "$INDEX"
[ -n "$script" ] || exit 64
name=${script%%.*}
# A removed task starts nothing, nor does one that was given back and is in another array now.
# shellcheck disable=SC2034 # only the first word counts
[ -e "$name.array" ] && read -r holder rest < "$name.array" && [ "$holder" = "$ARRAY" ] || exit 0
# A task with a verdict is over, even if the scheduler runs it again.
[ -e "$name.verdict" ] && exit 0
unpack
# Of several jobs of the array's name the one that starts the task first runs it, also again: another
# one would put the record of the running task aside.
if [ -n "$JOB" ]; then
  echo "$JOB" > "$name.job.$JOB" && {
    # Not every file system has links.
    ln "$name.job.$JOB" "$name.job" || [ -e "$name.job" ] || mv "$name.job.$JOB" "$name.job"
  } 2> /dev/null
  rm -f "$name.job.$JOB"
  read -r job < "$name.job" || exit 73
  [ "$job" = "$JOB" ] || exit 0
fi
# The scheduler took the task away and runs it again: the record of the earlier start is put aside,
# unless the task had ended by itself.
if [ "${RESTARTS:-0}" -gt 0 ] && grep -q '^start ' "$name.task" &&
  ! grep '^exit .*\.$' "$name.task" | grep -qv '^exit [0-9]* stopped '; then
  mv "$name.task" "$name.task.$RESTARTS"
fi
supervise
