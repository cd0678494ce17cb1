# shellcheck shell=sh
# At the keeper: creates the record of a task that is about to start in its Pod, exclusively. A task
# that may have started is not buried any more; a buried task does not start. NAME; RECORD: its line
# without the time. Prints the first word of the record that counts. A record that cannot be written
# is removed. One that stays empty for a minute is the remains of a process that could not: of a cancel
# or of one that gave the task up, where their marks are there.
cd tasks || exit
if [ -e "$NAME.task" ] && [ -n "$(find "./$NAME.task" -size 0 -mmin +1)" ]; then
  if [ -e "$NAME.cancel" ] || [ -e "$NAME.lost" ]; then
    echo "cancelled $(date +%s) ." > "$NAME.task" || exit
  else
    rm -f -- "$NAME.task"
  fi
fi
(
  set -C
  command exec 3> "$NAME.task" || exit 0
  echo "$RECORD $(date +%s.%N)" >&3 && exit
  rm -f -- "$NAME.task"
  exit 1
) || exit
# shellcheck disable=SC2034 # only the first word counts
read -r word rest < "$NAME.task" && echo "$word"
