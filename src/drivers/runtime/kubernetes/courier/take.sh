# shellcheck shell=sh
# At the keeper: receives a Pod's outputs into a folder of their own. Before unpack.sh. FOLDER: to
# be made.
mkdir -p "$FOLDER/in" && cd "$FOLDER/in" || exit
