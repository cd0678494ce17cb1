# shellcheck shell=sh
# Sets modes and times of files of ARRIVING that did not come by tar, and prints the list of all, as
# list.sh does. Standard input: directories, those of a mode together. After next.sh.
export LC_ALL=C; cd "$ARRIVING/files" || exit 1
# modes BYTES MODE
modes() { next "$1" | xargs -0 chmod "$2" -- || exit 1; }
# settle MODE TIME, of FILE
settle() { chmod "$1" "$FILE" && touch -d "@$2" "$FILE" || exit 1; }
whole() { exec find . -printf '%y %m %s %T@\0%p\0%l\0'; }
