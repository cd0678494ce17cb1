import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { WebSocket } from 'ws'
import { sshMissing } from '../../sites/ssh.ts'
import { startDaemon, environmentOf, type Daemon } from '../daemon.ts'
import { rootMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median } from '../rounds.ts'
import { sessionOf } from './console-site.ts'

const mib = 1024 * 1024
const pieceBytes = 65_536
/** More than the kernel holds for a connection that takes nothing (6 MiB), and the 1 MiB of the service. */
const pieces = 192

/** Resident memory of a process in MiB. */
const residentMiB = (pid: number): number =>
  Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${String(pid)}/status`, 'utf8'))?.[1] ?? 0) / 1024

interface Reader {
  bytes: number
  closed: boolean
  /** Takes from now on: the end of a connection is seen behind what its socket holds. */
  wake: () => void
}

/** A connection that watches a session; an idle one takes nothing from its socket. */
const watch = async (daemon: Daemon, id: string, idle: boolean): Promise<Reader> => {
  const { baseUrl } = daemon.facts()
  const ws = new WebSocket(`${baseUrl.replace('http', 'ws')}/console-sessions/${id}/stream/?mode=watch`)
  const reader: Reader = { bytes: 0, closed: false, wake: () => undefined }
  ws.on('error', () => undefined)
  ws.on('close', () => (reader.closed = true))
  ws.on('message', (data: Buffer, isBinary: boolean) => {
    if (isBinary) reader.bytes += data.length
  })
  await once(ws, 'open')
  if (idle) {
    const { _socket: socket } = ws as unknown as { _socket: Socket }
    socket.pause()
    reader.wake = () => void socket.resume()
  }
  return reader
}

/** One terminal with many readers: growth of the daemon's memory in MiB, and what readers received. */
const measure = async (daemon: Daemon, count: number) => {
  const terminal = await sessionOf({ daemon }, 'here')
  const [session] = (await daemon.ok('GET', '/console-sessions/')) as { id: string }[]
  const id = session!.id
  const pid = daemon.facts().pids.daemon
  const before = residentMiB(pid)
  const readers: Reader[] = []
  for (let from = 0; from < count; from += 50)
    readers.push(
      ...(await Promise.all(
        Array.from({ length: Math.min(50, count - from) }, (_, i) =>
          watch(daemon, id, (from + i) % 10 === 0),
        ),
      )),
    )
  let most = residentMiB(pid)
  const looks = setInterval(() => (most = Math.max(most, residentMiB(pid))), 100)
  try {
    terminal.write(
      `stty -echo; for i in $(seq ${String(pieces)}); do head -c ${String(pieceBytes)} /dev/zero | tr '\\0' x; ` +
        'sleep 0.5; done; echo o""ver\n',
    )
    await terminal.shows('over')
    const wanted = pieces * pieceBytes
    const awake = readers.filter((_, i) => i % 10 !== 0)
    const asleep = readers.filter((_, i) => i % 10 === 0)
    for (let tries = 0; tries < 300 && awake.some(({ bytes }) => bytes < wanted); tries++) await sleep(100)
    const grownMiB = most - before
    for (const { wake } of asleep) wake()
    for (let tries = 0; tries < 300 && asleep.some(({ closed }) => !closed); tries++) await sleep(100)
    return {
      grownMiB,
      short: awake.filter(({ bytes }) => bytes < wanted).length,
      uncut: asleep.filter(({ closed, bytes }) => !closed || bytes >= wanted).length,
    }
  } finally {
    clearInterval(looks)
    await terminal.end()
  }
}

export const consoleReaders: Benchmark = {
  about:
    '1,000 readers of a terminal, a tenth of which take nothing: memory of the daemon, and what readers get',
  missing: async () => rootMissing() ?? (await sshMissing()),
  async run({ rounds, tiny }) {
    const daemon = await startDaemon({ SERVICE_CONSOLE_ENABLED: 'true' })
    try {
      await daemon.ok(
        'POST',
        '/environments/',
        environmentOf('here', {}, [{ id: 'here', cpuCores: 1, cpuCapacity: 1 }]),
      )
      const count = tiny ? 20 : 1_000
      const found: Awaited<ReturnType<typeof measure>>[] = []
      const { cold, warm } = await interleaved(rounds, {
        Orrery: async () => {
          const one = await measure(daemon, count)
          found.push(one)
          return one.grownMiB
        },
      })
      const sum = (of: 'short' | 'uncut'): number => found.reduce((total, one) => total + one[of], 0)
      return {
        sides: [{ name: `${String(count)} readers`, unit: 'MiB', cold: cold.Orrery, warm: warm.Orrery }],
        goals: [
          { what: 'growth of memory', unit: ' MiB', measured: median(warm.Orrery), sense: 'most', goal: 512 },
          { what: 'readers that lack bytes', unit: '', measured: sum('short'), sense: 'most', goal: 0 },
          {
            what: 'idle readers that were not cut',
            unit: '',
            measured: sum('uncut'),
            sense: 'most',
            goal: 0,
          },
        ],
        notes: [
          `${String((pieces * pieceBytes) / mib)} MiB of output, 128 KiB a second, to each reader. ` +
            'The readers are one process beside the daemon. A reader is cut when more than 1 MiB waits for it.',
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
