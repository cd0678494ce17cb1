# shellcheck shell=sh
# Prints a digest over the paths, kinds, sizes, links and times of all files of DIRECTORY: another one
# after each change. Ends with 44 where there is no such directory.
export LC_ALL=C
[ -d "$DIRECTORY" ] && cd "$DIRECTORY" || exit 44
find . -printf '%y %m %s %T@ %C@ %l %p\0' | sort -z | sha256sum
