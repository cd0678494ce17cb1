# shellcheck shell=sh
# In a Pod: all has been carried back, the courier may leave. ROOT: of the site's files.
: > "$ROOT/.fetched"
