# shellcheck shell=sh
# In a Pod: moves the received files in FOLDER into place, once, and lets the task start. ROOT: of
# the site's files. DIRECTORY: the task's work directory, relative.
cd "$ROOT" || exit 97
export FOLDER DIRECTORY
# shellcheck disable=SC2016 # the inner shell expands them
flock .lock /bin/sh -ec '[ -e .go ] && exit
umask 077
rm -rf -- "./$DIRECTORY"
mkdir -p -- "$(dirname -- "./$DIRECTORY")"
mv -- "$FOLDER/$DIRECTORY" "./$DIRECTORY"
cp -R -- "$FOLDER/." .
: > .go'
code=$?
[ "$code" = 0 ] && rm -rf .in-*
exit "$code"
