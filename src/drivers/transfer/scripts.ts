import { posix } from 'node:path'
import { bytesOfPath } from '../../outside-path.ts'
import { fieldsOf } from '../../shell/fields.ts'
import { assign, call, readProgram, sumProgram } from '../../shell/program.ts'
import { printedWords, quote } from '../../shell/quote.ts'
import { blockBytes, type FilePiece, type Unit } from './parcels.ts'
import type { PathsToList } from './tree.ts'

/**
 * The scripts at the two ends: POSIX `sh` with GNU find, tar and coreutils. Names of files are
 * NUL-separated lists on standard input wherever there may be many.
 */

/** Where a transfer to `directory` keeps its progress, and its manifest afterwards. */
export const pathsBeside = (directory: string): { arriving: string; manifest: string } => {
  const beside = (ending: string): string =>
    posix.join(posix.dirname(directory), `.${posix.basename(directory)}.${ending}`)
  return { arriving: beside('arriving'), manifest: beside('manifest') }
}

const names = [
  ...(['prepare', 'notes', 'finish', 'use', 'disuse', 'list', 'version', 'digest'] as const),
  ...(['next', 'setup', 'pack', 'unpack', 'give', 'take', 'settle'] as const),
]
const programs = Object.fromEntries(
  names.map((name) => [name, readProgram(import.meta.dirname, `${name}.sh`)]),
) as Record<(typeof names)[number], string>

const besideOf = (directory: string): string => {
  const { arriving, manifest } = pathsBeside(directory)
  return assign({ DIRECTORY: directory, ARRIVING: arriving, MANIFEST: manifest })
}

export const nulList = (paths: Iterable<string>): Buffer =>
  bytesOfPath([...paths].map((path) => `./${path}\0`).join(''))

/** Targets and paths of links, for `settleScript`. */
export const linkList = (links: Iterable<readonly [path: string, { target: string }]>): Buffer =>
  bytesOfPath([...links].map(([path, { target }]) => `${target}\0./${path}\0`).join(''))

const fileIs = (path: string): string => `FILE=${quote(`./${path}`)}`

/** Calls of a program's functions, one a line. */
const calls = (lines: readonly string[]): string => lines.map((line) => `${line}\n`).join('')

export const noDirectory = 44
export const closedDirectory = 45

/**
 * The program of `list.sh`: lists a directory, or some paths in it with their parents, for
 * `parseTree`. Ends with `noDirectory` where there is none, with
 * `closedDirectory` where it cannot be read.
 */
export const listScript = (directory: string, paths?: PathsToList): string => {
  const begin = `${assign({ DIRECTORY: directory })}${programs.list}`
  if (paths === undefined) return `${begin}whole`
  const list = (name: string, all: readonly string[]): string =>
    all.length === 0 ? ':' : `${printedWords(all.map((path) => `./${path}`))} | ${name}`
  return `${begin}${list('parents', paths.parents)} && ${list('below', paths.asked)}`
}

/** The program of `version.sh`. */
export const versionScript = (directory: string): string =>
  `${assign({ DIRECTORY: directory })}${programs.version}`

const digests = `${assign({ BLOCK: blockBytes })}${sumProgram}${programs.digest}`

/**
 * The program of `digest.sh`: SHA-256 of the files on standard input, and of neighbouring blocks of
 * large ones, for `parseDigests`.
 */
export const digestScript = (directory: string, runs: readonly FilePiece[]): string =>
  `export LC_ALL=C; cd ${quote(directory)} || exit 1\n${digests}${calls([
    'listed',
    ...runs.map(({ path, start, end }) => `${fileIs(path)}; blocks ${String(start)} ${String(end)}`),
  ])}`

/** Neighbouring blocks as one run. */
export const runsOf = (units: readonly Unit[]): FilePiece[] => {
  const runs: FilePiece[] = []
  for (const { path, offset, length } of units) {
    const last = runs.at(-1)
    if (last?.path === path && last.end === offset) last.end = offset + length
    else runs.push({ path, start: offset, end: offset + length })
  }
  return runs
}

/** Digests by `unitKey`. */
export const parseDigests = (output: Buffer, into: Map<string, string>): void => {
  for (const record of fieldsOf(output)) {
    const [, digest, offset, path] = /^([0-9a-f]{64}) (?:[ *]|(\d+) )\.\/([^]*)$/.exec(record) ?? []
    if (digest !== undefined && path !== undefined) into.set(`${offset ?? '0'} ${path}`, digest)
  }
}

/** The program of `prepare.sh`: prints the state of the target. */
export const prepareScript = (directory: string): string => `${besideOf(directory)}${programs.prepare}`

/** The program of `notes.sh`: the notes about large files, for `parseNotes`. */
export const notesScript = (directory: string): string => `${besideOf(directory)}${programs.notes}`

export const parseNotes = (output: Buffer): Map<string, string> => {
  const fields = output.toString('latin1').split('\0')
  const notes = new Map<string, string>()
  for (let at = 0; at + 1 < fields.length; at += 2) notes.set(fields[at] as string, fields[at + 1] as string)
  return notes
}

/**
 * The program of `setup.sh`: removes files that do not belong there, makes the directories and
 * writes a list for each pack. Standard input: the three, one after the other, with these lengths.
 */
export const setupScript = (
  directory: string,
  lengths: { strangers: number; directories: number; lists: readonly number[] },
): string =>
  `${besideOf(directory)}${programs.next}${programs.setup}${calls([
    ...(lengths.strangers === 0 ? [] : [`strangers ${String(lengths.strangers)}`]),
    ...(lengths.directories === 0 ? [] : [`directories ${String(lengths.directories)}`]),
    ...lengths.lists.map((bytes, list) => `list ${String(list)} ${String(bytes)}`),
  ])}`

/** Blocks of 64 KiB, the size of a pipe; small packs are not padded to it. */
const blocking = (bytes: number): number => (bytes < 1024 * 1024 ? 20 : 128)

/** The program of `pack.sh`. Standard input: the names. */
export const packScript = (directory: string, bytes: number): string =>
  `${assign({ DIRECTORY: directory, BLOCKING: blocking(bytes) })}${programs.pack}`

/** The program of `unpack.sh`: unpacks the files of a list, and prints their digests. */
export const unpackScript = (directory: string, list: number, bytes: number): string =>
  `${besideOf(directory)}${assign({ LIST: list, BLOCKING: blocking(bytes) })}${digests}${programs.unpack}`

/** The program of `give.sh`: prints pieces of files. */
export const readPiecesScript = (directory: string, pieces: readonly FilePiece[]): string =>
  `${assign({ DIRECTORY: directory })}${programs.give}${calls(
    pieces.map(({ path, start, end }) => `${fileIs(path)}; give ${String(start)} ${String(end)}`),
  )}`

/**
 * The program of `take.sh`: writes pieces at their offsets, and notes its progress. `sizeOf`: of the
 * whole files, where nothing of them has been written; zeros then become holes.
 */
export const writePiecesScript = (
  directory: string,
  pieces: readonly FilePiece[],
  { noteOf, sizeOf }: { noteOf: (path: string) => string; sizeOf?: ((path: string) => number) | undefined },
): string => {
  // A file of several pieces has its size first: dd ends a file with a hole by cutting it there,
  // beside another that writes behind it.
  const size = (path: string): string => {
    const bytes = sizeOf?.(path) ?? 0
    return bytes > blockBytes ? `; truncate -s '>${String(bytes)}' "$FILE"` : ''
  }
  const begin = `${besideOf(directory)}${assign({ HOLES: sizeOf === undefined ? '' : ',sparse' })}`
  return `${begin}${digests}${programs.take}${calls([
    ...pieces.map(
      ({ path, start, end }) =>
        `${fileIs(path)}${size(path)}; NOTE=${quote(noteOf(path))}; take ${String(start)} ${String(end)}`,
    ),
    'wait',
  ])}`
}

/**
 * The program of `settle.sh`: makes links, sets modes and times of files that did not come by tar;
 * then prints the list of all files. Standard input: a list of links, then directories, those of a
 * mode together, with these lengths.
 */
export const settleScript = (
  directory: string,
  { links, modes }: { links: number; modes: readonly { mode: number; length: number }[] },
  pieces: readonly { path: string; mode: number; modified: number }[],
): string =>
  `${besideOf(directory)}${programs.next}${programs.settle}${calls([
    ...(links === 0 ? [] : [`links ${String(links)}`]),
    ...modes.map(({ mode, length }) => `modes ${String(length)} ${mode.toString(8)}`),
    ...pieces.map(
      ({ path, mode, modified }) => `${fileIs(path)}; settle ${mode.toString(8)} ${String(modified)}`,
    ),
    'whole',
  ])}`

/** The program of `finish.sh`; standard input: the manifest. */
export const finishScript = (directory: string): string => `${besideOf(directory)}${programs.finish}`

/** The program of `use.sh`: the task `name` uses the files of these keys. */
export const markScript = (root: string, name: string, keys: readonly string[]): string =>
  `${assign({ ROOT: root, NAME: name })}${programs.use}${call('use', ...keys)}`

/** The program of `disuse.sh`, for files with the names of `pathsBeside`. */
export const unmarkScript = (root: string, name: string): string =>
  `${assign({ ROOT: root, NAME: name })}${programs.disuse}`
