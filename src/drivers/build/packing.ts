import { once } from 'node:events'
import { PassThrough, Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Header, Pack } from 'tar-stream'

/** Writes one file into an archive as its bytes arrive. */
export const addContent = async (
  tar: Pack,
  header: Partial<Header> & { name: string; size: number },
  content: AsyncIterable<Buffer>,
): Promise<void> => {
  const { promise: done, resolve, reject } = Promise.withResolvers<undefined>()
  // It may fail before the code waits for it.
  done.catch(() => undefined)
  const sink = tar.entry(header, (error) => (error == null ? resolve(undefined) : reject(error)))
  sink.on('error', () => undefined)
  for await (const piece of content) if (!sink.write(piece)) await Promise.race([once(sink, 'drain'), done])
  // A streamx sink, which takes no last piece.
  sink.end(undefined)
  await done
}

/** The bytes of an archive as they are written. */
export const archiveBytes = (tar: Pack): Readable => Readable.from(tar as AsyncIterable<Buffer>)

/**
 * The bytes of an archive for one reader. Heads alone do not wait for it: their writer calls `room`,
 * which waits while the reader has enough, and lets other work go on. `gone`: the reader has ended.
 */
export const pacedArchive = (
  tar: Pack,
): { bytes: PassThrough; gone: Promise<void>; room: () => Promise<void> } => {
  const bytes = new PassThrough()
  // Who reads the archive gets its failure; nobody may read it yet.
  bytes.on('error', () => undefined)
  const gone = new Promise<void>((resolve) => bytes.once('close', () => resolve()))
  pipeline(archiveBytes(tar), bytes).catch(() => undefined)
  let heads = 0
  const room = async (): Promise<void> => {
    if ((heads += 1) % 256 === 0) await nextTurn()
    if (bytes.writableNeedDrain) await Promise.race([once(bytes, 'drain').catch(() => undefined), gone])
  }
  return { bytes, gone, room }
}
