# remove NAME [DIRECTORY]: removes the records of a task, and its work directory with the home and the
# remains of a broken staging beside it. After each-cgroup.sh.

# A killed supervisor has left its cgroup behind. Processes that are no longer visible hold it until
# they are quite gone.
release() {
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ ! -d "$1" ] || rmdir -- "$1" && return
    sleep 0.1 || sleep 1
  done
}

remove() {
  each_cgroup release "$1"
  if [ -n "$2" ]; then
    rm -rf -- "$2" "$2.home" 2> /dev/null || {
      chmod -R u+rwx -- "$2" "$2.home" 2> /dev/null
      rm -rf -- "$2" "$2.home"
    } && rm -rf -- "${2%/*}/.${2##*/}".staging-* || return
  fi
  rm -f -- "$1".*
}
