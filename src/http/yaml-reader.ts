import { fileURLToPath } from 'node:url'
import { Worker } from 'node:worker_threads'
import { Refusal } from '../refusal.ts'
import { parseYaml, type ParsedYaml } from './yaml.ts'

/** `lines`: also the line of each key and item. */
export type YamlReader = (text: string, options?: { lines?: boolean }) => Promise<ParsedYaml>

/**
 * From this size on a document is read in a thread of its own: 256 KiB take some 150 ms, in which
 * the process could serve no other request.
 */
const asideFrom = 262_144
/** Heap of that thread. The permitted documents need less. */
const heapMegabytes = 1_024

const aside = (text: string, options: { lines?: boolean }): Promise<ParsedYaml> =>
  new Promise((resolve, reject) => {
    const file = fileURLToPath(
      new URL(import.meta.url.endsWith('.ts') ? './yaml-thread.ts' : './yaml-thread.js', import.meta.url),
    )
    const thread = new Worker(file, {
      workerData: { text, options },
      execArgv: ['--disable-warning=ExperimentalWarning'],
      resourceLimits: { maxOldGenerationSizeMb: heapMegabytes },
    })
    thread.once('message', resolve)
    thread.once('error', (error: NodeJS.ErrnoException) =>
      reject(
        error.code === 'ERR_WORKER_OUT_OF_MEMORY'
          ? new Refusal('too_large', 'the YAML document takes too much memory to read; send it as JSON')
          : error,
      ),
    )
    thread.once('exit', () => reject(new Error('the thread that reads YAML ended without a result')))
  })

/**
 * Reads small documents at once and large ones in a thread, one after the other, so that their
 * memory does not add up.
 */
export const createYamlReader = (): YamlReader => {
  let queue: Promise<unknown> = Promise.resolve()
  return async (text, options = {}) => {
    if (text.length < asideFrom) return parseYaml(text, options)
    const turn = queue.then(() => aside(text, options))
    queue = turn.then(
      () => undefined,
      () => undefined,
    )
    return turn
  }
}
