import { constants } from 'node:fs'
import { open, realpath } from 'node:fs/promises'
import { isAbsolute, join, relative, sep } from 'node:path'
import type { Readable } from 'node:stream'
import { quote } from '../../drivers/quote.ts'
import type { SiteShell } from '../../drivers/shell.ts'
import { missing, Refusal } from '../../refusal.ts'

const outside = (path: string): Refusal =>
  new Refusal('unacceptable', `path ${JSON.stringify(path)} leaves the work directory; give a path below it`)

const leaves = (path: string): boolean => isAbsolute(path) || path.split('/').includes('..') || path.includes('\0')

/**
 * Opens a file of a work directory for reading. The path is the caller's: absolute ones, `..`, and links that leave the directory are
 * refused (422), what is not a regular file does not exist (404).
 */
export const openOutput = async (directory: string, path: string): Promise<{ stream: Readable; sizeBytes: number }> => {
  if (leaves(path)) throw outside(path)
  const base = await realpath(directory).catch(() => undefined)
  const file = await realpath(join(directory, path)).catch(() => undefined)
  if (base === undefined || file === undefined) throw missing('output', path)
  const inside = relative(base, file)
  if (inside === '' || inside === '..' || inside.startsWith(`..${sep}`) || isAbsolute(inside)) throw outside(path)
  // Links were resolved above; one put there meanwhile is not followed.
  const handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
  const facts = await handle.stat()
  if (!facts.isFile()) {
    await handle.close()
    throw missing('output', path)
  }
  return { stream: handle.createReadStream({ end: Math.max(0, facts.size - 1) }), sizeBytes: facts.size }
}

/** The same at another machine, through its shell; `directory` absolute there. */
export const openOutputAt = async (shell: SiteShell, directory: string, path: string): Promise<{ stream: Readable; sizeBytes: number }> => {
  if (leaves(path)) throw outside(path)
  const find = `cd ${quote(directory)} 2>/dev/null && base=$(pwd -P) && f=$(readlink -nf ./${quote(path)} && printf x) && f=\${f%x} && [ -f "$f" ] || exit 44
case $f in "$base"/*) ;; *) exit 45 ;; esac`
  const { code, stdout } = await shell.run(`${find}\nwc -c < "$f"`)
  if (code === 45) throw outside(path)
  if (code !== 0) throw missing('output', path)
  const sizeBytes = Number(stdout.toString())
  // A file that grows meanwhile is sent as long as it was said to be.
  const { stdout: stream } = await shell.open(`${find}\nexec head -c ${String(sizeBytes)} "$f"`)
  return { stream, sizeBytes }
}
