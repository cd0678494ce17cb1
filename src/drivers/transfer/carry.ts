import { setTimeout as delay } from 'node:timers/promises'
import { DriverError } from '../runtime/contract/driver.ts'
import { LinkError, type SiteShell, type ShellStream } from '../shell.ts'

/** How the streams of one transfer run, and what all of them share. */
export interface Traffic {
  signal: AbortSignal | undefined
  /** No byte for so long, and the link counts as lost. */
  stallMs: number
  /** Counts what came from the source. */
  moved: (bytes: number) => void
}

export interface Answer {
  code: number | null
  stdout: Buffer
  stderr: string
}

/** What a site that cannot be reached means for whoever waits for it. */
export const asDriverError = (site: string, error: unknown): unknown =>
  error instanceof LinkError
    ? new DriverError(error.permanent ? 'refused' : 'unknown', `${site}: ${error.message}`, { cause: error })
    : error

/** So long may the far end take to write down how far it came, once its input has ended. */
const farewellMs = 3_000

/** Fails when nothing was heard for `stallMs`, or when asked to; `heard` puts it off. */
const watchdog = ({ signal, stallMs }: Traffic, fail: (error: Error) => void): { heard: () => void; stop: () => void } => {
  const timer = setTimeout(() => fail(new LinkError('link', `no byte for ${String(stallMs / 1_000)} s`)), stallMs)
  const abort = (): void => fail(signal?.reason instanceof Error ? signal.reason : new Error('the transfer was given up'))
  signal?.addEventListener('abort', abort, { once: true })
  if (signal?.aborted === true) abort()
  let stopped = false
  return {
    heard: () => {
      if (!stopped) timer.refresh()
    },
    stop: () => {
      stopped = true
      clearTimeout(timer)
      signal?.removeEventListener('abort', abort)
    },
  }
}

/** A script with its input, whose output may be large and take long: what counts is that it goes on. */
export const converse = async (shell: SiteShell, script: string, input: Uint8Array, traffic: Traffic): Promise<Answer> => {
  const stream = await shell.open(script)
  const chunks: Buffer[] = []
  let dog: ReturnType<typeof watchdog> | undefined
  try {
    return await new Promise<Answer>((resolve, reject) => {
      dog = watchdog(traffic, reject)
      stream.stdin.on('error', () => undefined)
      stream.stdin.on('drain', dog.heard)
      stream.stdin.end(input)
      stream.stdout.on('error', () => undefined)
      stream.stdout.on('data', (chunk: Buffer) => {
        dog?.heard()
        chunks.push(chunk)
      })
      stream.done.then(({ code, stderr }) => resolve({ code, stderr, stdout: Buffer.concat(chunks) }), reject)
    })
  } catch (error) {
    stream.kill()
    throw error
  } finally {
    dog?.stop()
  }
}

/**
 * Pumps one stream from site to site. What the target says comes back, with what the source complained of. When anything breaks, the
 * target's input ends, so that it writes down how far it came.
 */
export const pump = async (
  from: { shell: SiteShell; site: string; script: string; input: Uint8Array },
  to: { shell: SiteShell; site: string; script: string },
  traffic: Traffic,
): Promise<Answer> => {
  const open = async (end: { shell: SiteShell; site: string; script: string }): Promise<ShellStream> => {
    try {
      return await end.shell.open(end.script)
    } catch (error) {
      throw asDriverError(end.site, error)
    }
  }
  const opened = await Promise.allSettled([open(from), open(to)])
  const failed = opened.find((one) => one.status === 'rejected')
  if (failed !== undefined || opened[0].status === 'rejected' || opened[1].status === 'rejected') {
    for (const one of opened) if (one.status === 'fulfilled') one.value.kill()
    throw failed?.reason
  }
  const [source, target] = [opened[0].value, opened[1].value]
  const chunks: Buffer[] = []
  let dog: ReturnType<typeof watchdog> | undefined
  try {
    return await new Promise<Answer>((resolve, reject) => {
      dog = watchdog(traffic, reject)
      const { heard } = dog
      for (const stream of [source.stdin, target.stdin, source.stdout, target.stdout]) stream.on('error', () => undefined)
      source.stdin.end(from.input)
      source.stdout.on('data', (chunk: Buffer) => {
        heard()
        traffic.moved(chunk.length)
      })
      source.stdout.pipe(target.stdin)
      target.stdin.on('drain', heard)
      target.stdout.on('data', (chunk: Buffer) => {
        heard()
        chunks.push(chunk)
      })
      const given = source.done.catch((error: unknown) => {
        throw asDriverError(from.site, error)
      })
      given.catch((error: unknown) => reject(error as Error))
      target.done.then(
        async ({ code, stderr }) => {
          // A target that ended before its input did has a reason of its own; the source would wait for ever.
          if (!source.stdout.readableEnded) source.kill()
          const said = await given.catch(() => ({ code: null, stderr: '' }))
          resolve({ code: code === 0 ? said.code : code, stdout: Buffer.concat(chunks), stderr: `${stderr}${said.stderr}`.trim() })
        },
        (error: unknown) => reject(asDriverError(to.site, error) as Error),
      )
    })
  } catch (error) {
    source.kill()
    source.stdout.unpipe(target.stdin)
    target.stdin.end()
    await Promise.race([target.done.catch(() => undefined), delay(farewellMs, undefined, { ref: false })])
    target.kill()
    throw asDriverError(`${from.site} to ${to.site}`, error)
  } finally {
    dog?.stop()
  }
}

/** At most so many streams at one site, over all transfers: the session has 8 channels for everything, and a file server one disk. */
const streamsPerSite = 4

interface Gate {
  order: number
  busy: number
  waiting: (() => void)[]
}
const gates = new WeakMap<SiteShell, Gate>()
let lastOrder = 0

const gateOf = (shell: SiteShell): Gate => {
  const gate = gates.get(shell) ?? { order: ++lastOrder, busy: 0, waiting: [] }
  gates.set(shell, gate)
  return gate
}

const enter = async (gate: Gate): Promise<void> => {
  if (gate.busy < streamsPerSite) gate.busy++
  else await new Promise<void>((resolve) => gate.waiting.push(resolve))
}

const leave = (gate: Gate): void => {
  const next = gate.waiting.shift()
  if (next === undefined) gate.busy--
  else next()
}

/** Waits for a place at every site, always in the same order of sites, so that two transfers in opposite directions never wait for each other. */
export const withPlaces = async <T>(shells: readonly SiteShell[], work: () => Promise<T>): Promise<T> => {
  const entered: Gate[] = []
  try {
    for (const gate of [...new Set(shells.map(gateOf))].sort((a, b) => a.order - b.order)) {
      await enter(gate)
      entered.push(gate)
    }
    return await work()
  } finally {
    for (const gate of entered) leave(gate)
  }
}
