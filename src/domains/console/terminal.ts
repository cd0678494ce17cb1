import { readFile } from 'node:fs/promises'
import { posix } from 'node:path'
import { TerminalLost, type TerminalHost } from '../../drivers/runtime/contract/terminal.ts'
import { nodeTerminal, nodeTerminalEnd, removeNodeTerminal } from '../../drivers/runtime/slurm/terminal.ts'
import type { HolderPrograms } from '../../embedded/holder-program.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { quoteAll } from '../../shell/quote.ts'
import { LinkError, type ShellStream } from '../../shell/site-shell.ts'
import { openPlainTerminal } from './plain-terminal.ts'
import type { ConsoleSessionRow } from './sessions.ts'

export interface TerminalParts {
  sites: Pick<SiteDrivers, 'terminalAt'>
  holderPrograms: HolderPrograms
  hostId: string
}

/** A terminal at its place. */
export interface Terminal {
  place: TerminalHost
  externalId: string
  /** A plain pseudo terminal, which ends with its connection and has no recording of its own. */
  plain: boolean
  /** The recording from a byte on, as it grows; what is written are frames for the terminal. */
  attach: (offset: number) => Promise<ShellStream>
}

const usualSize = { rows: 24, columns: 80 }
/** External id of a terminal without a holder. */
const plainId = 'pty'

/** No holder runs at the place, for this reason. */
class Unheld extends Error {}

/** Neither a holder nor a plain terminal can be had at a place whose link runs scripts. */
export class NoTerminal extends LinkError {
  constructor(unheld: string, cause: LinkError) {
    const { stage, permanent, message } = cause
    super(stage, `a pseudo terminal cannot be had: ${message}; nor can a holder: ${unheld}`, {
      ...{ permanent, cause },
    })
  }
}

const placeOf = ({ sites, hostId }: TerminalParts, row: ConsoleSessionRow): TerminalHost =>
  sites.terminalAt(row.place, { hostId, runtimes: [], resources: [], runtimeBindings: [] }, row.id)

const foldersOf = async (place: TerminalHost, row: ConsoleSessionRow) => {
  const folder = posix.join(await place.root(), 'console')
  return { folder, directory: posix.join(folder, `session-${row.id}`) }
}

/** Copies the holder to a place, once per digest. @returns its path there @throws Unheld */
const putHolder = async (
  { holderPrograms }: TerminalParts,
  { shell }: TerminalHost,
  { folder, id }: { folder: string; id: string },
): Promise<string> => {
  const machine = (await shell.run('uname -m')).stdout.toString().trim()
  const { path, name } = await holderPrograms(machine).catch((error: unknown) => {
    throw new Unheld(error instanceof Error ? error.message : String(error))
  })
  const program = posix.join(folder, name)
  const there = await shell.run(`mkdir -p -m 700 ${quoteAll([folder])} && test -x ${quoteAll([program])}`)
  if (there.code === 0) return program
  const part = `${program}.${id}`
  const [whole, cut] = [quoteAll([part, program]), quoteAll([part])]
  const put = await shell.run(
    `{ cat > ${cut} && chmod 700 ${cut} && mv -f ${whole}; } || { rm -f ${cut}; exit 1; }`,
    { input: await readFile(path) },
  )
  if (put.code !== 0)
    throw new Unheld(`the holder of terminals cannot be put to the resource: ${put.stderr.trim()}`)
  return program
}

/** Starts the holder of a session's terminal, once. @throws Unheld, LinkError */
const startHeld = async (
  parts: TerminalParts,
  place: TerminalHost,
  row: ConsoleSessionRow,
  via: readonly string[],
): Promise<Terminal> => {
  const { folder, directory } = await foldersOf(place, row)
  const program = await putHolder(parts, place, { folder, id: row.id })
  const { rows, columns } = usualSize
  const start = quoteAll([program, 'start', directory, String(rows), String(columns), ...via])
  const started = await place.shell.run(
    `${place.ownEnvironment ? 'ORRERY_CONSOLE_ENVIRONMENT=own ' : ''}${start}`,
  )
  if (started.code !== 0) throw new Unheld(`the terminal cannot be opened: ${started.stderr.trim()}`)
  return {
    place,
    externalId: directory,
    plain: false,
    attach: (offset) =>
      place.shell.open(quoteAll([program, 'attach', directory, String(offset)]), { lasting: true }),
  }
}

/**
 * A plain terminal, for a place without a holder. @throws TerminalLost where the place has none at all,
 *   NoTerminal where none comes, LinkError where the link is full or waits for a person
 */
const startPlain = async (place: TerminalHost, via: readonly string[], reason: string): Promise<Terminal> => {
  const stream = await openPlainTerminal(place.shell, usualSize, via).catch((error: unknown) => {
    if (error instanceof LinkError && !error.full && !error.waitsForPerson)
      throw new NoTerminal(reason, error)
    throw error
  })
  if (stream === undefined) throw new TerminalLost(reason)
  return { place, externalId: plainId, plain: true, attach: () => Promise.resolve(stream) }
}

/**
 * Starts a session's terminal at its place, once. `first`: no terminal was seen there before.
 * @throws LinkError where the place cannot be reached, NoTerminal where it gives none now, TerminalLost
 *   where the terminal cannot be had, or is gone
 */
export const startTerminal = async (
  parts: TerminalParts,
  row: ConsoleSessionRow,
  first: boolean,
): Promise<Terminal> => {
  if (row.externalId === plainId)
    throw new TerminalLost(
      'the connection that held the terminal is over, and the terminal with it; no holder runs at the resource',
    )
  const place = placeOf(parts, row)
  const via = row.place.onNode === true ? nodeTerminal(row.id, row.place.configuration) : []
  try {
    await place.ready(first)
    try {
      return await startHeld(parts, place, row, via)
    } catch (error) {
      if (!(error instanceof Unheld)) throw error
      if (!first) throw new TerminalLost(error.message)
      return await startPlain(place, via, error.message)
    }
  } catch (error) {
    await place.close().catch(() => undefined)
    throw error
  }
}

/**
 * Why the place of a terminal ended it; undefined where its shell ended by itself, and where the place
 * does not tell.
 */
export const takenAway = async (
  { place }: Pick<Terminal, 'place'>,
  row: Pick<ConsoleSessionRow, 'id' | 'place'>,
  stopped: AbortSignal,
): Promise<string | undefined> => {
  const end = row.place.onNode === true ? await nodeTerminalEnd(place.shell, row.id, stopped) : undefined
  return end && `the cluster ended the job of the terminal: ${end}`
}

/**
 * Ends a session's terminal where it still runs, and removes its files, or the place that was made
 * for it alone. May be repeated. @throws LinkError where the place cannot be reached
 */
export const clearTerminal = async (parts: TerminalParts, row: ConsoleSessionRow): Promise<void> => {
  const place = placeOf(parts, row)
  try {
    if (place.ownEnvironment) return await place.remove()
    const { folder, directory } = await foldersOf(place, row)
    const [programs, gone] = [`${quoteAll([folder])}/console-holder-*`, quoteAll([directory])]
    // Every version of the holder ends terminals of all others.
    const { code, stderr } = await place.shell.run(
      `[ -e ${gone} ] || exit 0; for p in ${programs}; do "$p" end ${gone} && break; done; rm -rf -- ${gone}`,
    )
    if (code !== 0) throw new Error(`the files of the terminal cannot be removed: ${stderr.trim()}`)
    // A job outlives a login node that ends without a signal.
    if (row.place.onNode === true) await removeNodeTerminal(place.shell, row.id)
  } finally {
    await place.close().catch(() => undefined)
  }
}
