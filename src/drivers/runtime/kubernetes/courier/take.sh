# shellcheck shell=sh
# At the keeper: takes what a Pod gives back into a folder of its own. Before unpack.sh. FOLDER: to be made.
mkdir -p "$FOLDER/in" && cd "$FOLDER/in" || exit
