# shellcheck shell=sh
# Gives the static busybox in a folder the names of all it can be: by itself where it was built for that, as 270 processes take 0.4 s.
link_tools() {
  { "$1/busybox" --install "$1" && [ -x "$1/sh" ]; } 2> /dev/null && return
  for each in $("$1/busybox" --list); do
    [ "$each" = busybox ] || ln -sf busybox "$1/$each" || return
  done
}
