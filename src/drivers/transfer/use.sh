# shellcheck shell=sh
# use KEY…: leaves a mark in ROOT that the task NAME uses the files of these keys, before they
# arrive, and prints which are there.
umask 077; mkdir -p "$ROOT" && cd "$ROOT" || exit 1
use() {
  for k; do
    i=0; until mkdir -p "$k.uses" && : > "$k.uses/$NAME"; do i=$((i + 1)); [ "$i" -lt 9 ] || exit 1; done
    [ ! -d "$k" ] || echo "$k"
  done
}
