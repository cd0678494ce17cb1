# shellcheck shell=sh
# A task with nothing to stage creates its work directory, its home and its script itself, from the pack of
# its array, so that thousands need not be created one after the other. The pack has a name of its
# own, because a file of another submission under this array's name would have other bytes at these
# offsets.
unpack() {
  # shellcheck disable=SC2154 # `choose` sets script, from, size and directory
  [ -n "$size" ] && ! [ -e "$script.run" ] || return 0
  umask 077
  # shellcheck disable=SC2154 # so too
  mkdir -p -- "$directory" "$directory.home" && ! [ -L "$directory" ] &&
    tail -c "+$from" "$PACK" | head -c "$size" > "$script.part" && [ -s "$script.part" ] &&
      mv -f -- "$script.part" "$script.run" || exit 73
}
