import { once } from 'node:events'
import { Readable } from 'node:stream'
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
