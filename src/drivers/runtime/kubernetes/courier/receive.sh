# shellcheck shell=sh
# In a Pod: receives the files of its task into a folder of their own. After tidy.sh, before
# unpack.sh. ROOT: of the site's files. TRIES: of this worker. FOLDER: to be made. ALREADY: the code
# where all has been delivered.
cd "$ROOT" || exit 97
tidy .lock "$TRIES"
[ -e .go ] && exit "$ALREADY"
umask 077
mkdir "$FOLDER" && cd "$FOLDER" || exit
