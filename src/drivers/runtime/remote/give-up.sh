# give_up NAME…: gives up tasks whose record has no line or is missing. A supervisor that writes its
# line after that starts nothing; a missing record becomes an empty one, so that no other one starts.
give_up() {
  set -C
  for each; do
    [ -e "$each.lost" ] || echo > "$each.lost" || continue
    printf '' > "$each.task"
  done 2> /dev/null
  return 0
}
