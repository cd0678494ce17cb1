# shellcheck shell=sh
# At the keeper: moves the received files in FOLDER into place, once, the record last. NAME and
# DIRECTORY (relative) are the task's.
export FOLDER NAME DIRECTORY
# shellcheck disable=SC2016 # the inner shell expands them
flock courier.lock /bin/sh -ec '[ -e "tasks/$NAME.fetched" ] && exit
[ -e "$FOLDER/in" ] || exit 1
if [ -e "./$DIRECTORY" ]; then mv -- "./$DIRECTORY" "$FOLDER/before"; fi
if [ -e "$FOLDER/in/$DIRECTORY" ]; then
  chmod u+rwx -- "$FOLDER/in/$DIRECTORY"
  mkdir -p -- "$(dirname -- "./$DIRECTORY")"
  mv -- "$FOLDER/in/$DIRECTORY" "./$DIRECTORY"
fi
for each in out err place task; do
  if [ -e "$FOLDER/in/tasks/$NAME.$each" ]; then mv -f -- "$FOLDER/in/tasks/$NAME.$each" "tasks/$NAME.$each"; fi
done
: > "tasks/$NAME.fetched"
echo "$NAME" >> ends' || exit
chmod -R u+rwX fetch/"$NAME".* 2> /dev/null
rm -rf fetch/"$NAME".*
