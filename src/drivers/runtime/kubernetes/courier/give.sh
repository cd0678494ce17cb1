# shellcheck shell=sh
# At the keeper: before it sends a Pod its files. After pack.sh. WRAPPERS is a pattern; SCRIPT, JOB
# and DIRECTORY are the task's.
# shellcheck disable=SC2086 # the pattern is ours
pack $WRAPPERS "./tasks/$SCRIPT.run" "./arrays/$JOB/script" "./$DIRECTORY"
