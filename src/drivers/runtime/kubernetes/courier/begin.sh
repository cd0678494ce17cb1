# shellcheck shell=sh
# At the keeper: creates the record of a task that is about to start in its Pod, exclusively. A task
# that may have started is not buried any more; a buried task does not start. NAME; RECORD: its line
# without the time. Prints the first word of the record that counts.
cd tasks || exit
(set -C; echo "$RECORD $(date +%s.%N)" > "$NAME.task") 2> /dev/null
# shellcheck disable=SC2034 # only the first word counts
read -r word rest < "$NAME.task" && echo "$word"
