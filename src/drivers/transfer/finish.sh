# shellcheck shell=sh
# Standard input: the manifest, for MANIFEST. The rename of ARRIVING is the moment in which the
# files are at DIRECTORY.
export LC_ALL=C; umask 077
cat > "$ARRIVING/manifest" && mv -f "$ARRIVING/manifest" "$MANIFEST" && mv -T "$ARRIVING/files" "$DIRECTORY" &&
  rm -rf "$ARRIVING"
