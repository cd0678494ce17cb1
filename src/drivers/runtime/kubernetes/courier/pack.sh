# shellcheck shell=sh
# pack PATH…: to standard output. Sub-second times need the POSIX format, which only GNU tar writes;
# its exit code 1 means that a file changed meanwhile.
pack() {
  format= gnu=
  tar --version 2> /dev/null | grep -q GNU && gnu=1 format=--format=posix
  # shellcheck disable=SC2086 # one option or none
  tar $format -cf - "$@"
  code=$?
  [ "$code" = 1 ] && [ -n "$gnu" ] && code=0
  exit "$code"
}
