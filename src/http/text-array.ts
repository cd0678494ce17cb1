import { AsyncLocalStorage } from 'node:async_hooks'
import { Readable } from 'node:stream'

/** Characters of an array that are held together; a longer one is streamed. */
const heldCharacters = 16 * 1024 * 1024

/** A few texts at a time: the fewer, the longer they are. */
async function* inBatches(
  ids: readonly string[],
  read: (ids: readonly string[]) => Promise<string[]>,
): AsyncGenerator<string> {
  let size = 4
  for (let at = 0; at < ids.length;) {
    const texts = await read(ids.slice(at, at + size))
    at += size
    const batch = texts.join(',')
    size = batch.length > heldCharacters / 4 ? Math.max(1, size >> 1) : size * 2
    if (batch !== '') yield batch
  }
}

async function* arrayText(held: readonly string[], rest: AsyncIterable<string>): AsyncGenerator<string> {
  yield `[${held.join(',')}`
  for await (const batch of rest) yield `,${batch}`
  yield ']'
}

/**
 * Documents as a JSON array: one body of up to 16 Mi characters, or a stream that has a few documents
 * in memory. `read` gives the JSON texts of some of the ids, without those that are gone.
 */
export const textArray = async (
  ids: readonly string[],
  read: (ids: readonly string[]) => Promise<string[]>,
): Promise<{ body: string } | { stream: Readable }> => {
  // What a stream reads later belongs to the request too: the instance that it selects.
  const within = AsyncLocalStorage.snapshot()
  const batches = inBatches(ids, (some) => within(() => read(some)))
  const held: string[] = []
  let length = 0
  for (;;) {
    const next = await batches.next()
    if (next.done === true) return { body: `[${held.join(',')}]` }
    held.push(next.value)
    length += next.value.length
    if (length > heldCharacters)
      return { stream: Readable.from(arrayText(held, batches), { objectMode: false }) }
  }
}
