# shellcheck shell=sh
# At the keeper: finds the task of each Pod. The text before it defines `sees`, which calls `see JOB
# INDEX` for each queried place. Packed files are created first.
cd tasks || exit
see() {
  [ -e "../arrays/$1/script" ] || return 0
  script=$(JOB_COMPLETION_INDEX=$2 ORRERY_IMAGE= ORRERY_PREPARE=1 ORRERY_SHELL=own /bin/sh "../arrays/$1/script") || {
    echo "failed $1/$2"
    return 0
  }
  [ -n "$script" ] || return 0
  name=${script%%.*} state=open word=
  [ -e "$name.delivered" ] && state=delivered
  # shellcheck disable=SC2034 # only the first word counts
  [ -e "$name.task" ] && { read -r word rest < "$name.task"; } && [ "$word" = cancelled ] && state=buried
  [ -e "$name.fetched" ] && state=fetched
  echo "at $1/$2 $state $script"
  grep -sm1 '^# facts ' "$script.run"
}
(flock 8 || exit; sees) 8> ../courier.lock
