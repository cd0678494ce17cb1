# shellcheck shell=sh
# At the keeper: receives a Pod's outputs into a folder of their own. After tidy.sh, before unpack.sh.
# TRIES: of this worker. FOLDER: to be made.
tidy courier.lock "$TRIES"
mkdir -p "$FOLDER/in" && cd "$FOLDER/in" || exit
