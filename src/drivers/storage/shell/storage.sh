# shellcheck shell=sh
# Prints entries of a folder at a site. Every answer begins with + or with !, the fault, and the
# system's message. It walks to an entry step by step; in the end the kernel's current directory
# shows that no link was on the way.
export LC_ALL=C
umask 022
words=/dev/null

# Not empty where the script gets bytes on its standard input: a refusal reads them to their end, or
# for so many seconds.
fed=
# A command that ends before it has read its input can lose its answer on the way: the other end
# closes a connection on which bytes wait, and what was sent on it is dropped (RFC 1122, 4.2.2.13).
fail() { # fault, the system's message
  printf '!%s %s\n' "$1" "$2"
  case $fed in
    '') ;;
    end) cat >"$words" ;;
    *) timeout --foreground "$fed" cat >"$words" ;;
  esac
  exit 0
}
# The fault that a program's message means.
fault_of() {
  case $1 in
    *'No such file or directory'*) echo missing ;;
    *'File exists'*) echo exists ;;
    *'Not a directory'*) echo notDirectory ;;
    *'Is a directory'*) echo notFile ;;
    *'Too many levels of symbolic links'*) echo link ;;
    *'File name too long'* | *'Invalid argument'*) echo name ;;
    *'Read-only file system'*) echo readOnly ;;
    *'Permission denied'* | *'Operation not permitted'*) echo denied ;;
    *'No space left'* | *'quota exceeded'* | *'File too large'*) echo full ;;
    *'Device or resource busy'*) echo busy ;;
    *'Input/output error'* | *'Stale file handle'* | *'Transport endpoint'*) echo away ;;
    *) echo refused ;;
  esac
}
try() { # a program
  if said=$("$@" 2>&1 >/dev/null); then return 0; fi
  fail "$(fault_of "$said")" "$said"
}
# The kernel's current directory, whatever the shell's is.
here() {
  where=$(env pwd -P && echo .) || fail away 'the folder has no path'
  where=${where%??}
}
# Why it cannot be used: it may have been removed a moment ago.
gone() { # name
  if [ -d "./$1" ] && [ ! -x "./$1" ]; then fail denied "$1"; fi
  if [ -f "./$1" ] && [ ! -r "./$1" ]; then fail denied "$1"; fi
  fail missing "$1"
}
walk() { # base, names
  cd -P -- "$1" 2>"$words" || fail away 'the folder of the storage is not there'
  shift
  here
  for name; do
    if [ -h "./$name" ]; then fail link "$name"; fi
    if [ ! -e "./$name" ]; then
      [ -x . ] || fail denied "$name"
      fail missing "$name"
    fi
    [ -d "./$name" ] || fail notDirectory "$name"
    cd -P -- "./$name" 2>"$words" || gone "$name"
    where=${where%/}/$name
  done
  expected=$where
  here
  [ "$where" = "$expected" ] || fail link "$expected"
}
there() { # name
  [ -h "./$1" ] || [ -e "./$1" ] && return
  [ -x . ] || fail denied "$1"
  fail missing "$1"
}
records() { # paths
  find "$@" -maxdepth 0 \( -readable -printf r -o -printf - \) \( -writable -printf w -o -printf - \) \
    -printf '%y %s %T@ %C@ %i %m\0%f\0%l\0' 2>"$words"
}
regular() { # name
  there "$1"
  if [ -h "./$1" ]; then fail link "$1"; fi
  if [ -d "./$1" ]; then fail notFile directory; fi
  if [ -f "./$1" ] && [ -r "./$1" ]; then return; fi
  [ -f "./$1" ] || [ ! -e "./$1" ] || fail notFile special
  gone "$1"
}

# Of the current directory: it changes where a name comes or goes.
stamp() {
  find . -maxdepth 0 -printf '%D %i %T@ %C@' 2>"$words"
}
# The stamp, and the time, before the names.
names() {
  [ -r . ] || fail denied .
  printf '+%s\0%s\0' "$(stamp)" "$(date +%s)"
  find . -mindepth 1 -maxdepth 1 -printf '%f\0' 2>"$words"
}
# Of names on standard input. It prints no entry where the directory has another stamp than is given.
page() { # stamp
  if [ -n "$1" ] && [ "$1" != "$(stamp)" ]; then
    cat >"$words"
    printf '+changed\0'
    exit 0
  fi
  printf '+same\0'
  # shellcheck disable=SC2016
  xargs -0 -r sh -c 'find "$@" -maxdepth 0 \( -readable -printf r -o -printf - \) \
    \( -writable -printf w -o -printf - \) \
    -printf "%y %s %T@ %C@ %i %m\0%f\0%l\0" 2>/dev/null' records
  exit 0
}
entry() { # name
  there "$1"
  printf +
  records "./$1"
  exit 0
}
base_entry() {
  printf +
  records .
  exit 0
}
# A FIFO that replaces the file meanwhile is opened without waiting, a link not at all.
bytes() { # name, offset, count
  dd if="./$1" iflag=nofollow,nonblock,skip_bytes,count_bytes,fullblock skip="$2" count="$3" bs=1M status=none
}
content() { # name, offset, count; all to the end where count is empty
  regular "$1"
  printf +
  records "./$1"
  size=$(find "./$1" -maxdepth 0 -printf %s)
  bytes "$1" "$2" "${3:-$size}"
}
# Bytes for another site, with descriptor 5; all else that is said goes to standard error.
give() { # name, offset, count
  regular "$1"
  bytes "$1" "$2" "$3" >&5
}
state() { # name
  find "./$1" -maxdepth 0 -printf '%y %s %T@ %C@ %i %m'
}
# Prints the digest of a file, and its state before and after it was read.
digest() { # name
  regular "$1"
  choose_sum
  before=$(state "$1")
  # A pipe ends with the code of its last program, and the digest of a part would count for the whole.
  hash=$({ { bytes "$1" 0 "$(find "./$1" -maxdepth 0 -printf %s)" 2>&3 || echo 'not read to its end' >&3; } |
    sum | cut -c1-64 >&3; } 3>&1)
  case $hash in
    *[!0-9a-f]*) fail "$(fault_of "$hash")" "$hash" ;;
  esac
  printf '+%s\0%s\0%s' "$hash" "$before" "$(state "$1")"
}
free_name() { # name, yes: may be replaced
  if [ -d "./$1" ] && [ ! -h "./$1" ]; then fail notFile directory; fi
  if [ "$2" = yes ]; then return; fi
  if [ -h "./$1" ] || [ -e "./$1" ]; then fail exists "$1"; fi
}
kept() { # temporary name
  if [ -f "./$1" ] && [ ! -h "./$1" ]; then find "./$1" -maxdepth 0 -printf %s; else echo 0; fi
}
# The empty temporary file for bytes of another site.
begin() { # name, overwrite, temporary name
  free_name "$1" "$2"
  try rm -f -- "./$3"
  try dd if=/dev/null of="./$3" conv=excl status=none
  printf +
}
# Writes standard input into the temporary file from an offset on; prints its size afterwards. With
# `nocreat` the file has to be there: who comes after it was removed leaves none.
take() { # name, overwrite, temporary name, offset, nocreat
  free_name "$1" "$2"
  has=$(kept "$3")
  if [ "$4$5" != 0 ] && [ "$has" != "$4" ]; then fail offset "$has"; fi
  if [ "$4$5" = 0 ]; then rm -f -- "./$3"; fi
  said=$(dd of="./$3" oflag=nofollow,seek_bytes conv="notrunc,fsync${5:+,$5}" seek="$4" \
    iflag=fullblock bs=1M status=none 2>&1) || {
    # A later attempt has ended it. What another site goes on sending is not read, so that it stops.
    if [ $? = 137 ] && [ "$fed" != end ]; then
      printf '!away another attempt goes on with this file; try again later\n'
      sleep 1
      exit 0
    fi
    fail "$(fault_of "$said")" "$said"
  }
  printf +
  kept "$3"
  exit 0
}
# Ends who still writes a temporary file: a program that has it open could add to it when it is
# whole, and another site would go on sending what nobody takes.
end_writers() { # temporary name
  find /proc/[0-9]*/fd -maxdepth 1 -lname "*/$1" 2>"$words" | while IFS=/ read -r _ _ pid _ fd; do
    # Another folder may have a file of that name.
    if env test "/proc/$pid/fd/$fd" -ef "./$1"; then kill -s KILL "$pid" 2>"$words"; fi
  done
}
# Gives this attempt the bytes of an earlier one, or its own of before.
adopt() { # temporary name, those of earlier attempts
  own=$1
  for old; do
    if [ ! -f "./$old" ] || [ -h "./$old" ]; then continue; fi
    end_writers "$old"
    if [ "$old" = "$own" ]; then continue; fi
    if [ -e "./$own" ]; then rm -f -- "./$old"; else try mv -T -- "./$old" "./$own"; fi
  done
  printf +
  kept "$own"
}
put() { # name, overwrite, temporary name, bytes it has to have, mode, time; the last two may be empty
  has=$(kept "$3")
  if [ "$has" != "$4" ]; then fail offset "$has"; fi
  free_name "$1" "$2"
  if [ -n "$5" ]; then try chmod "$5" "./$3"; fi
  if [ -n "$6" ]; then try touch -c -m -d "@$6" "./$3"; fi
  if [ "$2" = yes ]; then
    try mv -f -T -- "./$3" "./$1"
  else
    try ln -T -- "./$3" "./$1"
    rm -f -- "./$3"
  fi
  entry "$1"
}
# An archive of the files whose names are on standard input, then the code of tar: it is not 0 where a
# file changes while it is read. It opens no link, FIFO or device.
get_many() {
  printf +
  tar -c -f - --format=pax --pax-option=delete=atime,delete=ctime --no-recursion \
    --hard-dereference --owner=0 --group=0 --numeric-owner --null --no-unquote \
    --verbatim-files-from -T - 2>"$words"
  printf ' %s' $?
}
# Gives the files of an archive on standard input their names at once; prints the names that are
# taken. They are unpacked in a folder that no other account can write into, and linked from there to
# the folder that was walked to, which is descriptor 4.
put_many() { # overwrite, temporary folder
  replace=$1
  place=$2
  rm -rf -- "./$place"
  try mkdir -m 700 -- "./$place"
  exec 4<.
  trap 'rm -rf -- "/proc/self/fd/4/$place"' EXIT
  trap 'exit 1' HUP INT TERM PIPE
  parent=$where
  cd -P -- "./$place" 2>"$words" || gone "$place"
  here
  [ "$where" = "${parent%/}/$place" ] || fail link "$place"
  said=$(tar -x -p -f - --no-same-owner 2>&1) || fail "$(fault_of "$said")" "$said"
  cd -P -- ./files 2>"$words" || fail refused 'the archive has no files'
  sha256sum --check --status ../sums || fail changed 'the bytes are not those that were sent'
  set --
  for file in ./* ./.[!.]* ./..?*; do
    [ -f "$file" ] || continue
    to=/proc/self/fd/4/${file#./}
    if [ -d "$to" ] && [ ! -h "$to" ]; then
      printf '%s\0' "${file#./}" >>../taken
    elif [ "$replace" = no ] && { [ -h "$to" ] || [ -e "$to" ]; }; then
      printf '%s\0' "${file#./}" >>../taken
    else
      set -- "$@" "$file"
    fi
  done
  if [ $# -gt 0 ]; then
    sync -- "$@" 2>"$words" || sync
    if [ "$replace" = yes ]; then
      said=$(mv -f -t /proc/self/fd/4 -- "$@" 2>&1) || fail "$(fault_of "$said")" "$said"
    else
      said=$(ln -P -t /proc/self/fd/4 -- "$@" 2>&1) || fail "$(fault_of "$said")" "$said"
    fi
  fi
  printf +
  if [ -f ../taken ]; then cat ../taken; fi
}
# Whoever writes behind the end that is cut would leave a hole, and a longer end would be one.
shorten() { # temporary name, bytes that stay
  if [ -f "./$1" ]; then end_writers "$1"; fi
  if [ "$2" = 0 ]; then
    rm -rf -- "./$1" "./$1.d"
  else
    truncate -c -s "<$2" -- "./$1"
  fi
  printf +
}
remove() { # name
  there "$1"
  if [ -d "./$1" ] && [ ! -h "./$1" ]; then fail notFile directory; fi
  try rm -f -- "./$1"
  printf +
}
make() { # name
  if [ ! -h "./$1" ] && [ -d "./$1" ]; then
    printf +
    exit 0
  fi
  try mkdir -- "./$1"
  printf +
}
# The new name of a link takes the place of another entry at once, as that of a file does.
make_link() { # name, overwrite, temporary name, target, time
  free_name "$1" "$2"
  try ln -s -T -- "$4" "./$3"
  if [ -n "$5" ]; then touch -h -m -d "@$5" "./$3" 2>"$words"; fi
  if [ "$2" = yes ]; then
    said=$(mv -f -T -- "./$3" "./$1" 2>&1)
  else
    said=$(ln -P -T -- "./$3" "./$1" 2>&1)
  fi || {
    rm -f -- "./$3"
    fail "$(fault_of "$said")" "$said"
  }
  rm -f -- "./$3"
  printf +
}
attributes() { # mode, time; of the folder that was walked to
  if [ -n "$2" ]; then try touch -c -m -d "@$2" .; fi
  if [ -n "$1" ]; then try chmod "$1" .; fi
  printf +
}
space() {
  free=$(df -P -B1 . 2>"$words" | awk 'NR == 2 { print $4 }')
  printf '+%s' "$free"
}
