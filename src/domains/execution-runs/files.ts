import { constants } from 'node:fs'
import { open, realpath } from 'node:fs/promises'
import { isAbsolute, join } from 'node:path'
import { Readable } from 'node:stream'
import { liesIn, pathOfShown, systemPath } from '../../outside-path.ts'
import { quote } from '../../shell/quote.ts'
import type { SiteShell } from '../../shell/site-shell.ts'
import { isErrno } from '../../drivers/runtime/contract/errno.ts'
import { missing, Refusal } from '../../refusal.ts'

export interface OpenedFile {
  stream: Readable
  sizeBytes: number
}

const outside = (path: string): Refusal =>
  new Refusal('unacceptable', `path ${JSON.stringify(path)} leaves the work directory; give a path below it`)

const leaves = (path: string): boolean =>
  isAbsolute(path) || path.split('/').includes('..') || path.includes('\0')

/**
 * Opens a file of a work directory for reading. The caller chose the path, as it is listed: absolute
 * paths, `..`, and links that leave the directory are refused (422). Anything but a regular file counts as
 * missing (404). Errors that may pass, as of a disk or of too many open files, are thrown as they are.
 */
export const openOutput = async (directory: string, path: string): Promise<OpenedFile> => {
  if (leaves(path)) throw outside(path)
  const real = (name: string | Buffer) =>
    realpath(name, 'buffer').catch((error: unknown) => {
      if (isErrno(error, 'ENOENT', 'ENOTDIR', 'ELOOP', 'ENAMETOOLONG', 'EACCES', 'EPERM')) return undefined
      throw error
    })
  const base = await real(directory)
  const file = await real(systemPath(join(directory, pathOfShown(path))))
  if (base === undefined || file === undefined) throw missing('output', path)
  if (base.equals(file) || !liesIn(base.toString('latin1'), file.toString('latin1'))) throw outside(path)
  // Links were resolved above. A link that was created since is not followed.
  const handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
  const facts = await handle.stat()
  if (!facts.isFile()) {
    await handle.close()
    throw missing('output', path)
  }
  // Of a growing file only the announced number of bytes is sent, also where that is none.
  if (facts.size === 0) {
    await handle.close()
    return { stream: Readable.from([]), sizeBytes: 0 }
  }
  return { stream: handle.createReadStream({ end: facts.size - 1 }), sizeBytes: facts.size }
}

/** The same on another machine, through its shell; `directory` is absolute there. */
export const openOutputAt = async (
  shell: SiteShell,
  directory: string,
  path: string,
): Promise<OpenedFile> => {
  if (leaves(path)) throw outside(path)
  const find = `cd ${quote(directory)} 2>/dev/null && base=$(pwd -P) &&
  f=$(readlink -nf ./${quote(pathOfShown(path))} && printf x) && f=\${f%x} && [ -f "$f" ] || exit 44
case $f in "$base"/*) ;; *) exit 45 ;; esac`
  const { code, stdout } = await shell.run(`${find}\nwc -c < "$f"`)
  if (code === 45) throw outside(path)
  if (code !== 0) throw missing('output', path)
  const sizeBytes = Number(stdout.toString())
  // Of a growing file only the announced number of bytes is sent.
  const { stdout: stream } = await shell.open(`${find}\nexec head -c ${String(sizeBytes)} "$f"`)
  return { stream, sizeBytes }
}
