# shellcheck shell=sh
# At the keeper: the record of a task that is about to start in its Pod, created exclusively. Who may have started is not buried any more; who is buried
# does not start. NAME; RECORD: its line without the time. Answers the first word of the record that counts.
cd tasks || exit
(set -C; echo "$RECORD $(date +%s.%N)" > "$NAME.task") 2> /dev/null
# shellcheck disable=SC2034 # only the first word counts
read -r word rest < "$NAME.task" && echo "$word"
