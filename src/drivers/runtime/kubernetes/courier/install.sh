# shellcheck shell=sh
# The script of a Pod's first container: it makes folders, and the tools that a task's image may
# lack. After link-tools.sh. ROOT: of the site's files. TOOLS: folder of tools, relative to it.
# BUSYBOX: a static one of the helper image, or nothing.
set -e
cd "$ROOT"
mkdir -p tasks arrays
[ -p .alive ] || mkfifo .alive
if [ -n "$BUSYBOX" ]; then
  mkdir -p "$TOOLS"
  cp "$BUSYBOX" "$TOOLS/busybox"
  chmod 755 bin "$TOOLS" "$TOOLS/busybox"
  link_tools "$TOOLS"
fi
