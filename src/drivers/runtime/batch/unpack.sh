# shellcheck shell=sh
# A task with nothing to stage makes its work directory and its script itself, from the pack of its array, so that thousands are not made one
# after the other. A file of another submission under this array's name would not have these bytes at these places: hence its own name.
unpack() {
  # shellcheck disable=SC2154 # `choose` sets script, from, size and directory
  [ -n "$size" ] && ! [ -e "$script.run" ] || return 0
  umask 077
  # shellcheck disable=SC2154 # so too
  mkdir -p -- "$directory" && ! [ -L "$directory" ] &&
    tail -c "+$from" "$PACK" | head -c "$size" > "$script.part" && [ -s "$script.part" ] && mv -f -- "$script.part" "$script.run" || exit 73
}
