# see NAME PARENT: `known NAME` where the task has a record, `free NAME` where even the parent of
# its work directory is missing.
see() {
  if [ -e "$1.task" ]; then
    echo "known $1"
  elif ! [ -e "$2" ] && ! [ -L "$2" ]; then
    echo "free $1"
  fi
}
