# give_up NAME…: gives up tasks whose record has no line or is missing. A supervisor that writes its
# line after that starts nothing; a missing record becomes an empty one, so that no other one starts.
# Prints `unwritten FILE WORDS` for a file that the site does not let it write.
give_up() {
  set -C
  for each; do
    for file in "$each.lost" "$each.task"; do
      # Another one may have written it meanwhile.
      [ -e "$file" ] || words=$( { : > "$file"; } 2>&1) || [ -e "$file" ] || {
        set -f
        # shellcheck disable=SC2086 # one line of whatever was said
        echo "unwritten $file" $words
        set +f
        break
      }
    done
  done
  return 0
}
