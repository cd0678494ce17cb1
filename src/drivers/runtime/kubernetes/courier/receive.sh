# shellcheck shell=sh
# In a Pod: receives the files of its task into a folder of their own. Before unpack.sh. ROOT: of
# the site's files. FOLDER: to be made. ALREADY: the code where all has been delivered.
cd "$ROOT" || exit 97
[ -e .go ] && exit "$ALREADY"
umask 077
mkdir "$FOLDER" && cd "$FOLDER" || exit
