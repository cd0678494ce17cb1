# shellcheck shell=sh
# At the keeper, before it gives a Pod its files: after pack.sh. WRAPPERS is a pattern; SCRIPT, JOB and DIRECTORY are the task's.
# shellcheck disable=SC2086 # the pattern is ours
pack $WRAPPERS "./tasks/$SCRIPT.run" "./arrays/$JOB/script" "./$DIRECTORY"
