# each_cgroup COMMAND NAME: calls the command with each cgroup that the record names, and NAME.
each_cgroup() {
  while read -r word kind folder; do
    [ "$word $kind" != 'limits cgroup' ] || "$1" "$folder" "$2"
  done < "$2.task"
} 2> /dev/null
