import { constants } from 'node:fs'
import { open, realpath } from 'node:fs/promises'
import { isAbsolute, join, relative, sep } from 'node:path'
import type { Readable } from 'node:stream'
import { missing, Refusal } from '../../refusal.ts'

/**
 * Opens a file of a work directory for reading. The path is the caller's: absolute ones, `..`, and links that leave the directory are
 * refused (422), what is not a regular file does not exist (404).
 */
export const openOutput = async (directory: string, path: string): Promise<{ stream: Readable; sizeBytes: number }> => {
  if (isAbsolute(path) || path.split('/').includes('..') || path.includes('\0'))
    throw new Refusal('unacceptable', `path ${JSON.stringify(path)} leaves the work directory; give a path below it`)
  const base = await realpath(directory).catch(() => undefined)
  const file = await realpath(join(directory, path)).catch(() => undefined)
  if (base === undefined || file === undefined) throw missing('output', path)
  const inside = relative(base, file)
  if (inside === '' || inside === '..' || inside.startsWith(`..${sep}`) || isAbsolute(inside))
    throw new Refusal('unacceptable', `path ${JSON.stringify(path)} leaves the work directory; give a path below it`)
  // Links were resolved above; one put there meanwhile is not followed.
  const handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
  const facts = await handle.stat()
  if (!facts.isFile()) {
    await handle.close()
    throw missing('output', path)
  }
  return { stream: handle.createReadStream({ end: Math.max(0, facts.size - 1) }), sizeBytes: facts.size }
}
