# shellcheck shell=sh
# What the task's container runs first. Until all is delivered nothing has started, and whoever stops it finds it gone at once. ROOT: of the site's files.
# TOOLS: folder of tools. SHELL_THERE runs SCRIPT, that of the Job, afterwards.
cd "$ROOT" || exit 97
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:$TOOLS
trap 'exit 143' TERM
# The courier sees the end of this container, however it comes, as the end of this.
exec 9<> .alive || exit 97
while ! [ -e .go ]; do sleep 0.2; done
trap - TERM
exec "$SHELL_THERE" "$SCRIPT"
