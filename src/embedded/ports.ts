import { randomInt } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { z } from 'zod'
import { writeWhole } from '../whole-file.ts'

const remembered = z
  .object({ postgres: z.int(), temporal: z.int(), temporalUi: z.int(), temporalMetrics: z.int() })
  .partial()
export type PortName = keyof z.output<typeof remembered>

/**
 * Loopback ports of the embedded servers, kept in a file so that a restart uses the same ones:
 * clients reconnect, and a written-down database address stays valid. A remembered port that
 * another program has taken is replaced.
 */
export const choosePorts = async <Name extends PortName>(
  file: string,
  names: readonly Name[],
): Promise<Record<Name, number>> => {
  const known = existsSync(file)
    ? (remembered.safeParse(parseOrNothing(readFileSync(file, 'utf8'))).data ?? {})
    : {}
  const chosen: { [name in PortName]?: number | undefined } = { ...known }
  for (const name of names) {
    const before = known[name]
    const others = Object.entries(chosen).flatMap(([other, port]) =>
      other === name || port === undefined ? [] : [port],
    )
    chosen[name] =
      before !== undefined && !others.includes(before) && (await isFree(before))
        ? before
        : await freePort(others)
  }
  writeWhole(file, `${JSON.stringify(chosen)}\n`, 0o644)
  return chosen as Record<Name, number>
}

/**
 * A loopback port without a listener, below the range from which the kernel serves outgoing
 * connections (32768 and up).
 */
export const freePort = async (except: readonly number[] = []): Promise<number> => {
  for (;;) {
    const port = randomInt(15_000, 32_000)
    if (!except.includes(port) && (await isFree(port))) return port
  }
}

const isFree = (port: number): Promise<boolean> =>
  new Promise((resolve, reject) => {
    const probe = createServer()
    probe.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(false)
      else reject(error)
    })
    probe.listen({ port, host: '127.0.0.1', exclusive: true }, () => {
      probe.close(() => {
        resolve(true)
      })
    })
  })

/** A file that a crash cut short counts as missing. */
const parseOrNothing = (text: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
