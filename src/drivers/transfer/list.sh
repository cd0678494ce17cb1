# shellcheck shell=sh
# Prints type, mode, size, time, path and link of files of DIRECTORY, the last two each before a NUL.
# Ends with 44 where there is no such directory. `whole` prints all of it.
export LC_ALL=C
export FORMAT='%y %m %s %T@\0%p\0%l\0'
[ -d "$DIRECTORY" ] && [ ! -L "$DIRECTORY" ] || exit 44
cd "$DIRECTORY" || exit 1
whole() { exec find . -printf "$FORMAT"; }
# parents PATH…: without what is in them.
# shellcheck disable=SC2016 # The inner shell expands it.
parents() { printf '%s\0' "$@" | xargs -0 sh -c 'exec find "$@" -maxdepth 0 -printf "$FORMAT"' sh; }
# below PATH…: with all that is in them.
# shellcheck disable=SC2016 # The inner shell expands it.
below() { printf '%s\0' "$@" | xargs -0 sh -c 'exec find "$@" -printf "$FORMAT"' sh; }
