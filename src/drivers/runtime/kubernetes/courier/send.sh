# shellcheck shell=sh
# In a Pod: sends a task's outputs back, once its end has come. After pack.sh. ROOT: of the site's
# files. NAME and DIRECTORY (relative) are the task's. OVER: whether the cluster reports that its
# container has ended. ALREADY, NOTHING, NOT_YET: the codes where there is nothing to send.
cd "$ROOT" || exit 97
[ -e .fetched ] && exit "$ALREADY"
[ -e .go ] || exit "$NOTHING"
tries=0
until [ -e .over ] || [ "$tries" -ge 10 ]; do tries=$((tries + 1)); sleep 0.2; done
[ -e .over ] || [ -n "$OVER" ] || exit "$NOT_YET"
set --
for each in task out err place; do
  [ -e "tasks/$NAME.$each" ] && set -- "$@" "./tasks/$NAME.$each"
done
if [ -d "./$DIRECTORY" ]; then
  set -- "$@" "./$DIRECTORY"
  find "./$DIRECTORY" -type d ! -perm -500 -exec chmod u+rx {} \;
  find "./$DIRECTORY" -type f ! -perm -400 -exec chmod u+r {} \;
fi
pack "$@"
