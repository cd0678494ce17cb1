# shellcheck shell=sh
# Packs files of DIRECTORY in blocks of BLOCKING; standard input: their names.
export LC_ALL=C; cd "$DIRECTORY" && exec tar -c -S -f - -b "$BLOCKING" --format=gnu --no-recursion \
  --hard-dereference --owner=0 --group=0 --numeric-owner --null --no-unquote --verbatim-files-from -T -
