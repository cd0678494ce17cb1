# shellcheck shell=sh
# tidy LOCK TRIES: removes the folders of one worker's tries to carry the files of a task; their names
# are TRIES, `_` and more. A script that moves the files of a try into place, and whose answer was
# lost, may still run or wait for LOCK: afterwards it finds no folder, and fails.
tidy() {
  # shellcheck disable=SC2016 # the inner shell expands them
  flock "$1" /bin/sh -c 'for each; do mv "$each" "$each.over"; done' sh "$2"_*
  chmod -R u+rwX "$2"_*
  rm -rf "$2"_*
} 2> /dev/null
