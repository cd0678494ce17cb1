# shellcheck disable=SC2034 # what includes it reads up
# `now` sets `up` to hundredths of a second since boot; `claim` makes a file, and is false when
# another process has made it.
now() {
  read -r up rest < /proc/uptime
  up=${up%.*}${up#*.} up=${up#0} up=${up#0}
}

claim() {
  set -C
  { true > "$1"; } 2>/dev/null
  claimed=$?
  set +C
  return "$claimed"
}
