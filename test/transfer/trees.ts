import { execFileSync } from 'node:child_process'
import {
  mkdirSync,
  mkdtempSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  chmodSync,
  utimesSync,
} from 'node:fs'
import { randomFillSync } from 'node:crypto'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import { runFolder } from '../support/run-folder.ts'

/** A folder that is gone afterwards. */
export const scratch = (): { path: string } & Disposable => {
  const path = mkdtempSync(join(runFolder(), 'transfer-'))
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) }
}

/** Names, kinds, sizes, modes, whole seconds, links and SHA-256 of everything below a folder. */
export const fingerprint = (folder: string): string =>
  execFileSync(
    '/bin/bash',
    [
      '-c',
      `cd "$1"; export LC_ALL=C
find . -mindepth 1 \\( -type d -printf '%y %m %p\\0' \\) \\
  -o \\( -type l -printf '%y %p %l\\0' \\) -o -printf '%y %m %s %Ts %p\\0' |
  sort -z | tr '\\0\\n' '\\n?'
find . -type f -print0 | sort -z | xargs -0 -r sha256sum -z | tr '\\0\\n' '\\n?'`,
      'bash',
      folder,
    ],
    { encoding: 'latin1', maxBuffer: 64 * 1024 * 1024 },
  )

export const randomFile = (path: string | Buffer, bytes: number): void =>
  writeFileSync(path, randomFillSync(Buffer.allocUnsafe(bytes)))

/** Names as hostile as a file system takes them; some are no text. */
const name = fc.oneof(
  fc.string({ unit: 'grapheme', minLength: 1, maxLength: 20 }).map((text) => Buffer.from(text)),
  fc.uint8Array({ minLength: 1, maxLength: 12 }).map((bytes) => Buffer.from(bytes)),
  fc
    .constantFrom(
      '-rf',
      '--',
      "it's",
      '$(touch x)',
      '`id`',
      'a\nb',
      '\n',
      ' ',
      '*',
      '\\n',
      '\\',
      '@1',
      'end\n',
      '.hidden',
      '~',
    )
    .map((text) => Buffer.from(text)),
)
const usable = name
  .map((bytes) => Buffer.from(bytes.filter((byte) => byte !== 0 && byte !== 0x2f)))
  .filter(
    (bytes) =>
      bytes.length > 0 &&
      bytes.length < 200 &&
      bytes.toString('latin1') !== '.' &&
      bytes.toString('latin1') !== '..',
  )

export interface Planned {
  kind: 'file' | 'directory' | 'link' | 'hole'
  /** Index of an earlier directory, or the top. */
  parent: number
  name: Buffer
  size: number
  mode: number
}

export const plannedTree = fc.array(
  fc.record({
    kind: fc.constantFrom<Planned['kind']>('file', 'file', 'file', 'directory', 'link', 'hole'),
    parent: fc.nat(),
    name: usable,
    size: fc.oneof(
      { weight: 5, arbitrary: fc.nat(3_000) },
      { weight: 1, arbitrary: fc.constantFrom(0, 1, 65_536, 300_000, 5_000_000) },
    ),
    mode: fc.constantFrom(0o644, 0o600, 0o755, 0o444, 0o700, 0o640),
  }),
  { maxLength: 25 },
)

const inFolder = (folder: Buffer, file: Buffer): Buffer => Buffer.concat([folder, Buffer.from('/'), file])

/** Makes it below `top`; what has a taken name is left out. */
export const grow = (top: string, plan: readonly Planned[]): void => {
  const folders: Buffer[] = [Buffer.from(top)]
  const modes: [Buffer, number][] = []
  for (const { kind, parent, name: file, size, mode } of plan) {
    const path = inFolder(folders[parent % folders.length] as Buffer, file)
    try {
      if (kind === 'directory') {
        mkdirSync(path)
        folders.push(path)
        modes.push([path, mode | 0o700])
      } else if (kind === 'link') symlinkSync(Buffer.concat([Buffer.from('to '), file]), path)
      else {
        if (kind === 'file') randomFile(path, size)
        else {
          writeFileSync(path, '', { flag: 'wx' })
          truncateSync(path, size)
        }
        chmodSync(path, mode)
        utimesSync(path, 1_600_000_000 + size, 1_600_000_000.5 + size)
      }
    } catch (error) {
      if (!['EEXIST', 'EISDIR'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error
    }
  }
  for (const [path, mode] of modes.reverse()) chmodSync(path, mode)
}
