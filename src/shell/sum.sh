# shellcheck shell=sh
# choose_sum: defines `sum`, which prints the SHA-256 of standard input in hexadecimal digits at the
# start of a line. OpenSSL, where it exists, uses the processor's own instructions (1,200 MiB/s
# against 290 of coreutils 9.1 on one machine).
# shellcheck disable=SC2317 # Other programs call it.
choose_sum() {
  case $(openssl dgst -sha256 -r < /dev/null 2> /dev/null) in
  e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855*) sum() { openssl dgst -sha256 -r; } ;;
  *) sum() { sha256sum; } ;;
  esac
}
