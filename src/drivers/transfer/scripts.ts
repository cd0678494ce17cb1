import { posix } from 'node:path'
import { quote, quoteAll } from '../quote.ts'
import { blockBytes, type Piece, type Unit } from './parcels.ts'
import { bytesOf, textOf } from './tree.ts'

/**
 * What runs at the ends: POSIX `sh` with GNU find, tar and coreutils. Names of files go in as NUL-separated lists on standard input
 * wherever there may be many.
 */

/** Where a transfer to `directory` keeps what it has so far, and what it says about it afterwards. */
export const placesOf = (directory: string): { arriving: string; manifest: string } => {
  const beside = (ending: string): string => posix.join(posix.dirname(directory), `.${posix.basename(directory)}.${ending}`)
  return { arriving: beside('arriving'), manifest: beside('manifest') }
}

export const nulList = (paths: Iterable<string>): Buffer => Buffer.from([...paths].map((path) => `./${path}\0`).join(''), 'latin1')

/** `f` is the file of these bytes. Octal digits where the name is not text: what takes scripts takes text. */
const fileIs = (path: string): string => {
  const text = textOf(path)
  if (bytesOf(text) === path) return `f=${quote(`./${text}`)}`
  const octal = [...Buffer.from(`./${path}x`, 'latin1')].map((byte) => `\\${byte.toString(8).padStart(3, '0')}`).join('')
  return `f=$(printf ${quote(octal)}); f=\${f%x}`
}

const format = quote('%y %m %s %T@\\0%p\\0%l\\0')
export const noDirectory = 44

/** Lists a directory, or some paths in it with their parents, for `parseTree`. Ends with `noDirectory` where there is none. */
export const listScript = (directory: string, paths?: { asked: readonly string[]; parents: readonly string[] }): string => {
  const enter = `export LC_ALL=C; [ -d ${quote(directory)} ] && [ ! -L ${quote(directory)} ] || exit ${String(noDirectory)}; cd ${quote(directory)} || exit 1`
  if (paths === undefined) return `${enter}\nexec find . -printf ${format}`
  const list = (names: readonly string[], depth: string): string =>
    names.length === 0
      ? ':'
      : `printf '%s\\0' ${quoteAll(names.map((name) => `./${name}`))} | xargs -0 sh -c 'exec find "$@" ${depth} -printf "$F"' sh`
  return `${enter}\nexport F=${format}\n${list(paths.parents, '-maxdepth 0')} && ${list(paths.asked, '')}`
}

/** OpenSSL has the processor's own instructions (1,200 MiB/s against 290 of coreutils 9.1 on one machine), where it is there. */
const sum = `case $(openssl dgst -sha256 -r </dev/null 2>/dev/null) in
e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855*) sum() { openssl dgst -sha256 -r; } ;;
*) sum() { sha256sum; } ;;
esac
B=${String(blockBytes)}
digest() { h=$(dd if="$1" bs=262144 iflag=skip_bytes,count_bytes skip="$2" count="$3" status=none | sum); printf '%s %s %s\\0' "\${h%% *}" "$2" "$f"; }`

const sumListed = 'xargs -0 -r sha256sum -z --'

/** SHA-256 of the files on standard input, and of neighbouring blocks of large ones, for `parseDigests`. */
export const digestScript = (directory: string, runs: readonly Piece[]): string =>
  [
    `export LC_ALL=C; cd ${quote(directory)} || exit 1`,
    sumListed,
    ...(runs.length === 0 ? [] : [sum]),
    'blocks() { o=$1; while [ "$o" -lt "$2" ]; do e=$((o + B)); [ "$e" -le "$2" ] || e=$2; digest "$f" "$o" $((e - o)); o=$e; done; }',
    ...runs.map(({ path, start, end }) => `${fileIs(path)}; blocks ${String(start)} ${String(end)}`),
  ].join('\n')

/** Neighbouring blocks as one run. */
export const runsOf = (units: readonly Unit[]): Piece[] => {
  const runs: Piece[] = []
  for (const { path, offset, length } of units) {
    const last = runs.at(-1)
    if (last?.path === path && last.end === offset) last.end = offset + length
    else runs.push({ path, start: offset, end: offset + length })
  }
  return runs
}

/** Digests by `unitKey`. */
export const parseDigests = (output: Buffer, into: Map<string, string>): void => {
  for (const record of output.toString('latin1').split('\0')) {
    const [, digest, offset, path] = /^([0-9a-f]{64}) (?:[ *]|(\d+) )\.\/([^]*)$/.exec(record) ?? []
    if (digest !== undefined && path !== undefined) into.set(`${offset ?? '0'} ${path}`, digest)
  }
}

/**
 * Says what is at the target: `existing` with its manifest, `occupied`, `partial` or `fresh`, on the first line; then free KiB and the
 * words of `df`. What an earlier transfer left running is ended first: asked (dd then says how far it came), after a second by force.
 */
export const prepareScript = (directory: string): string => {
  const { arriving, manifest } = placesOf(directory)
  return `export LC_ALL=C; umask 077
D=${quote(directory)}; A=${quote(arriving)}; M=${quote(manifest)}
if [ -d "$D" ] && [ -f "$M" ]; then echo existing; exec cat "$M"; fi
if [ -d "$D" ] && [ -n "$(ls -A "$D" | head -n 1)" ]; then echo occupied; exit 0; fi
state=fresh
if [ -d "$A/files" ]; then
  state=partial; tries=0
  while :; do
    signal=INT; [ "$tries" -lt 20 ] || signal=KILL; left=
    for c in /proc/[0-9]*/cwd; do
      if [ "$c" -ef "$A" ] || [ "$c" -ef "$A/files" ]; then p=\${c#/proc/}; kill -s "$signal" "\${p%/cwd}" 2>/dev/null && left=1; fi
    done
    [ -n "$left" ] && [ "$tries" -lt 40 ] || break
    tries=$((tries + 1)); sleep 0.05
  done
fi
mkdir -p "$A/files" "$A/notes" "$A/lists" || exit 1
echo "$state"; df -Pk "$A" | tail -n 1`
}

/** What was noted of large files, for `parseNotes`: name NUL text NUL. */
export const notesScript = (directory: string): string =>
  `cd ${quote(placesOf(directory).arriving)}/notes || exit 1
for n in *; do [ -f "$n" ] || continue; printf '%s\\0' "$n"; cat "$n"; printf '\\0'; done`

export const parseNotes = (output: Buffer): Map<string, string> => {
  const fields = output.toString('latin1').split('\0')
  const notes = new Map<string, string>()
  for (let at = 0; at + 1 < fields.length; at += 2) notes.set(fields[at] as string, fields[at + 1] as string)
  return notes
}

/** Cuts standard input at known places: `dd` takes exactly so many bytes from a pipe, which `head` does not promise. */
const next = (bytes: number): string => `dd bs=${String(bytes)} count=1 iflag=fullblock status=none`

/**
 * Takes away what does not belong there, makes the directories and leaves a list for each pack. Standard input: the three, one after
 * the other, with these lengths.
 */
export const setupScript = (directory: string, lengths: { strangers: number; directories: number; lists: readonly number[] }): string =>
  [
    `export LC_ALL=C; umask 077; cd ${quote(placesOf(directory).arriving)}/files || exit 1`,
    ...(lengths.strangers === 0 ? [] : [`${next(lengths.strangers)} | xargs -0 rm -rf -- || exit 1`]),
    ...(lengths.directories === 0 ? [] : [`${next(lengths.directories)} | xargs -0 mkdir -p -- || exit 1`]),
    ...lengths.lists.map((bytes, list) =>
      bytes === 0 ? `: > ../lists/${String(list)}` : `${next(bytes)} > ../lists/${String(list)} || exit 1`,
    ),
  ].join('\n')

/** Blocks of 64 KiB, the size of a pipe; small packs are not padded to it. */
const blocking = (bytes: number): string => (bytes < 1024 * 1024 ? '20' : '128')

/** Standard input: the names. */
export const packScript = (directory: string, bytes: number): string =>
  `export LC_ALL=C; cd ${quote(directory)} && exec tar -c -f - -b ${blocking(bytes)} --format=gnu --no-recursion --hard-dereference --owner=0 --group=0 --numeric-owner --null --no-unquote --verbatim-files-from -T -`

export const unpackScript = (directory: string, list: number, bytes: number): string =>
  `export LC_ALL=C; umask 077; cd ${quote(placesOf(directory).arriving)}/files && tar -x -p -f - -b ${blocking(bytes)} --no-same-owner && ${sumListed} < ../lists/${String(list)}`

export const readPiecesScript = (directory: string, pieces: readonly Piece[]): string =>
  [
    `export LC_ALL=C; cd ${quote(directory)} || exit 1`,
    'give() { dd if="$f" bs=262144 iflag=skip_bytes,count_bytes skip="$1" count=$(($2 - $1)) status=none || exit 1; }',
    ...pieces.map(({ path, start, end }) => `${fileIs(path)}; give ${String(start)} ${String(end)}`),
  ].join('\n')

/**
 * Writes pieces where they belong. Behind every block it notes how far it came, also when the stream ends early, and reads the block
 * back for its digest while the next one comes.
 */
export const writePiecesScript = (directory: string, pieces: readonly Piece[], noteOf: (path: string) => string): string =>
  [
    `export LC_ALL=C; umask 077; cd ${quote(placesOf(directory).arriving)}/files || exit 1; trap : INT`,
    sum,
    `N='
'
take() {
  o=$1
  while [ "$o" -lt "$2" ]; do
    b=$((o - o % B)); e=$((b + B)); [ "$e" -le "$2" ] || e=$2
    r=$(dd of="$f" bs=262144 iflag=fullblock,count_bytes oflag=seek_bytes conv=notrunc seek="$o" count=$((e - o)) 2>&1); s=$?
    n=\${r##*"$N"}; n=\${n%% *}
    case $n in '' | *[!0-9]*) n=0 ;; esac
    printf '%s %s\\n' "$o" "$n" >> "../notes/$t"
    if [ "$s" != 0 ] || [ "$n" != $((e - o)) ]; then printf '%s\\n' "$r" >&2; wait; exit 1; fi
    wait
    digest "$f" "$b" $((e - b)) &
    o=$e
  done
}`,
    ...pieces.map(({ path, start, end }) => `${fileIs(path)}; t=${quote(noteOf(path))}; take ${String(start)} ${String(end)}`),
    'wait',
  ].join('\n')

/** Modes and times of what did not come by tar; then the list of all that is there. Standard input: directories, those of a mode together. */
export const settleScript = (
  directory: string,
  modes: readonly { mode: number; length: number }[],
  pieces: readonly { path: string; mode: number; modified: number }[],
): string =>
  [
    `export LC_ALL=C; cd ${quote(placesOf(directory).arriving)}/files || exit 1`,
    ...modes.map(({ mode, length }) => `${next(length)} | xargs -0 chmod ${mode.toString(8)} -- || exit 1`),
    ...pieces.map(
      ({ path, mode, modified }) => `${fileIs(path)}; chmod ${mode.toString(8)} "$f" && touch -d @${String(modified)} "$f" || exit 1`,
    ),
    `exec find . -printf ${format}`,
  ].join('\n')

/** Standard input: the manifest. The rename is the moment in which the files are there. */
export const finishScript = (directory: string): string => {
  const { arriving, manifest } = placesOf(directory)
  return `export LC_ALL=C; umask 077
D=${quote(directory)}; A=${quote(arriving)}; M=${quote(manifest)}
cat > "$A/manifest" && mv -f "$A/manifest" "$M" && mv -T "$A/files" "$D" && rm -rf "$A"`
}

/** Leaves a mark that the task `name` uses what comes under these keys, before it comes, and says which are there. */
export const markScript = (root: string, name: string, keys: readonly string[]): string =>
  `umask 077; mkdir -p ${quote(root)} && cd ${quote(root)} || exit 1
for k in ${quoteAll(keys)}; do
  i=0; until mkdir -p "$k.uses" && : > "$k.uses/"${quote(name)}; do i=$((i + 1)); [ "$i" -lt 9 ] || exit 1; done
  [ ! -d "$k" ] || echo "$k"
done`

/** Takes the task's marks away, and with the last mark what came (with the names of `placesOf`); says what went. */
export const unmarkScript = (root: string, name: string): string =>
  `cd ${quote(root)} 2>/dev/null || exit 0
for u in *.uses/${quote(name)}; do
  [ -e "$u" ] || continue
  rm -f "$u"; d=\${u%/*}; k=\${d%.uses}
  if rmdir "$d" 2>/dev/null; then rm -f ".$k.manifest"; rm -rf "$k" ".$k.arriving"; echo "$k"; fi
done`
