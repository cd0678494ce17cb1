# shellcheck shell=sh
# Removes files that do not belong to ARRIVING, makes its directories and writes a list for each
# pack. Standard input: these lists, one after the other. After next.sh.
export LC_ALL=C; umask 077; cd "$ARRIVING/files" || exit 1
# strangers BYTES
strangers() { next "$1" | xargs -0 rm -rf -- || exit 1; }
# directories BYTES
directories() { next "$1" | xargs -0 mkdir -p -- || exit 1; }
# list NUMBER BYTES
list() {
  if [ "$2" = 0 ]; then : > "../lists/$1"; else next "$2" > "../lists/$1" || exit 1; fi
}
