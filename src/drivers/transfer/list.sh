# shellcheck shell=sh
# Prints type, mode, size, time, path and link of files of DIRECTORY, the last two each before a NUL.
# Ends with 44 where there is no such directory, with 45 where the account may not read it. `whole`
# prints all of it. `!` before the type marks what the account may not read.
export LC_ALL=C
export FORMAT='%y %m %s %T@\0%p\0%l\0'
[ -d "$DIRECTORY" ] && [ ! -L "$DIRECTORY" ] || exit 44
[ -r "$DIRECTORY" ] && [ -x "$DIRECTORY" ] || exit 45
cd "$DIRECTORY" || exit 1
# shellcheck disable=SC2016 # The inner shell expands it.
listed='exec find "$@" \( -type l -o -type d -readable -executable -o ! -type d -readable \) \
  -printf "$FORMAT" -o -printf "!$FORMAT" -prune'
whole() { exec sh -c "$listed" sh .; }
# The paths are on standard input, each before a NUL; those where nothing is are left out.
# shellcheck disable=SC2016 # The inner shell expands it.
there() {
  xargs -0 sh -c 'for path; do if [ -e "$path" ] || [ -L "$path" ]; then printf "%s\0" "$path"; fi; done' sh
}
# parents: without what is in them.
parents() { there | xargs -r -0 sh -c "set -- \"\$@\" -maxdepth 0; $listed" sh; }
# below: with all that is in them.
below() { there | xargs -r -0 sh -c "$listed" sh; }
