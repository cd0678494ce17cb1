# shellcheck shell=sh
# Puts a static busybox of the helper image, with links of all its names, where task Pods can use
# it. After link-tools.sh. FOLDER: of the tools. BUSYBOX: a path in the helper image. CARRIED:
# whether the path of the busybox is needed again, for Pods with files of their own.

# Prints `ready` and the source of the tools, or the head of the program at BUSYBOX.
look() {
  if [ -x "$FOLDER/sh" ] && { [ -s "$FOLDER/.from" ] || [ -z "$CARRIED" ]; }; then
    echo ready
    cat "$FOLDER/.from"
    return
  fi
  [ -f "$BUSYBOX" ] && head -c 4096 "$BUSYBOX"
  return 0
}

install() {
  draft=$FOLDER.$$
  mkdir -p "$draft" && cp "$BUSYBOX" "$draft/busybox" && echo "$BUSYBOX" > "$draft/.from" &&
    chmod 755 "$draft" "$draft/busybox" || return
  link_tools "$draft" || return
  mv -T "$draft" "$FOLDER" 2> /dev/null || rm -rf "$draft"
  [ -x "$FOLDER/sh" ]
}
