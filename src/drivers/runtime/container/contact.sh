# Puts the launcher below the root of a site, once per content, and prints the facts that it needs
# of the account. ROOT: of the site. HASH names LAUNCHER, its text. MISSING: the code where that is
# impossible.
umask 077
base=$ROOT/containers
mkdir -p -- "$base/$HASH" "$base/records" && cd -- "$base" || exit "$MISSING"
[ -s "$HASH/launcher" ] ||
  { printf '%s' "$LAUNCHER" > "$HASH/.launcher.$$" && mv -f -- "$HASH/.launcher.$$" "$HASH/launcher"; } ||
    exit "$MISSING"
printf '%s\n' "$PWD" "$HOME" "$PATH" "$(id -u):$(id -g)"
