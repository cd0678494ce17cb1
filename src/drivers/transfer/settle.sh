# shellcheck shell=sh
# Makes links in ARRIVING, sets modes and times of files that did not come by tar, and prints the list
# of all, as list.sh does. Standard input: targets and paths of links, then directories, those of a
# mode together. After next.sh.
export LC_ALL=C; cd "$ARRIVING/files" || exit 1
# links BYTES
links() { next "$1" | xargs -0 -n 2 ln -sfnT -- || exit 1; }
# modes BYTES MODE
modes() { next "$1" | xargs -0 chmod "$2" -- || exit 1; }
# settle MODE TIME, of FILE
settle() { chmod "$1" "$FILE" && touch -d "@$2" "$FILE" || exit 1; }
whole() { exec find . -printf '%y %m %s %T@\0%p\0%l\0'; }
