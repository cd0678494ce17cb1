import { readFileSync, readdirSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { run } from '../../sites/ground.ts'
import { sshMissing } from '../../sites/ssh.ts'
import { rootMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio, secondsOf } from '../rounds.ts'
import { openConsoleSite, openSshTerminal, sessionOf, type BenchTerminal } from './console-site.ts'

const missing = async (): Promise<string | undefined> => rootMissing() ?? (await sshMissing())
const versions = async (): Promise<Record<string, string>> => ({
  OpenSSH: (await run('ssh', ['-V'], { mayFail: true })).stderr.trim().split(',')[0] ?? '',
})

/** Milliseconds from a key to its echo, the median of `count` keys. */
const echoMs = async (terminal: BenchTerminal, count: number): Promise<number> => {
  terminal.write('stty -echo; PS1=; echo re""ady; cat\n')
  await terminal.shows('ready')
  const times: number[] = []
  for (let i = 0; i < count; i++) {
    const text = `<${String(i)}>`
    const began = performance.now()
    terminal.write(`${text}\n`)
    await terminal.shows(text)
    times.push(performance.now() - began)
    await sleep(10)
  }
  terminal.write('\x04')
  return median(times)
}

export const consoleKeys: Benchmark = {
  about: 'a line typed in a terminal on an SSH host until it is back, against `ssh -tt`',
  missing,
  async run({ rounds, tiny }) {
    await using site = await openConsoleSite()
    const count = tiny ? 10 : 200
    const [ours, theirs] = [await sessionOf(site, 'there'), await openSshTerminal(site)]
    const { cold, warm } = await interleaved(rounds, {
      Orrery: () => echoMs(ours, count),
      'ssh -tt': () => echoMs(theirs, count),
    })
    await Promise.all([ours.end(), theirs.end()])
    const more = warm.Orrery.map((ms, i) => ms - (warm['ssh -tt'][i] ?? 0))
    return {
      sides: (['Orrery', 'ssh -tt'] as const).map((name) => ({
        ...{ name: `${name}, median of ${String(count)} keys`, unit: 'ms' },
        ...{ cold: cold[name], warm: warm[name] },
      })),
      goals: [{ what: 'p50 above ssh -tt', unit: ' ms', measured: median(more), sense: 'most', goal: 5 }],
      notes: ['Every line is recorded at the host and in the database; the echo does not wait for either.'],
      versions: await versions(),
    }
  },
}

const mib = 1024 * 1024

export const consoleOutput: Benchmark = {
  about:
    '100 MiB of output of a terminal on an SSH host, in two sessions after each other, against `ssh -tt`',
  missing,
  async run({ rounds, tiny }) {
    await using site = await openConsoleSite()
    // A recording ends at 64 MiB.
    const perSession = (tiny ? 1 : 50) * mib
    const both = async (open: () => Promise<BenchTerminal>): Promise<number> => {
      let seconds = 0
      for (let session = 0; session < 2; session++) {
        const terminal = await open()
        terminal.write('stty -echo -onlcr; PS1=; echo re""ady\n')
        await terminal.shows('ready')
        const before = terminal.bytes()
        seconds += await secondsOf(async () => {
          terminal.write(`head -c ${String(perSession)} /dev/zero | tr '\\0' x; echo o""ver\n`)
          await terminal.shows('over')
        })
        const lost = perSession - (terminal.bytes() - before)
        if (lost > 0) throw new Error(`${String(lost)} bytes did not arrive`)
        await terminal.end()
      }
      return (2 * perSession) / mib / seconds
    }
    const { cold, warm } = await interleaved(rounds, {
      Orrery: () => both(() => sessionOf(site, 'there')),
      'ssh -tt': () => both(() => openSshTerminal(site)),
    })
    return {
      sides: (['Orrery', 'ssh -tt'] as const).map((name) => ({
        ...{ name, unit: 'MiB/s', cold: cold[name], warm: warm[name] },
      })),
      goals: [
        {
          ...{ what: 'share of the rate of ssh -tt', unit: '', sense: 'least', goal: 0.5 },
          measured: medianRatio(warm.Orrery, warm['ssh -tt']),
        },
      ],
      notes: ['The reader gets every byte, and every byte is in the record in the database.'],
      versions: await versions(),
    }
  },
}

/** Proportional memory of processes in MiB. */
const memoryOf = (pids: Iterable<number>): number => {
  let kib = 0
  for (const pid of pids)
    try {
      kib += Number(
        /^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${String(pid)}/smaps_rollup`, 'utf8'))?.[1] ?? 0,
      )
    } catch {
      // It has ended.
    }
  return kib / 1024
}
/** Processes of the console's holders, and those that read them. */
const holders = (): number[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${String(pid)}/cmdline`, 'utf8').includes('console-holder-')
      } catch {
        return false
      }
    })

export const consoleMemory: Benchmark = {
  about: '50 terminals on this machine at once, each with a reader: memory of the daemon and of the holders',
  missing,
  async run({ rounds, tiny }) {
    await using site = await openConsoleSite()
    const count = tiny ? 3 : 50
    const daemonMiB = (): number => memoryOf([site.daemon.facts().pids.daemon])
    // Code and caches of a daemon that has had one session are not those of the fifty.
    await (await sessionOf(site, 'here')).end()
    const before = daemonMiB()
    const measure = async (): Promise<number> => {
      const terminals: BenchTerminal[] = []
      for (let i = 0; i < count; i++) terminals.push(await sessionOf(site, 'here'))
      await Promise.all(
        terminals.map(async (terminal) => {
          terminal.write('seq 1 20000; echo o""ver\n')
          await terminal.shows('over')
        }),
      )
      await sleep(2_000)
      const used = daemonMiB() - before + memoryOf(holders())
      for (const terminal of terminals) await terminal.end()
      return used
    }
    const { cold, warm } = await interleaved(rounds, { Orrery: measure })
    return {
      sides: [{ name: `${String(count)} sessions`, unit: 'MiB', cold: cold.Orrery, warm: warm.Orrery }],
      goals: [{ what: 'memory', unit: ' MiB', measured: median(warm.Orrery), sense: 'most', goal: 200 }],
      notes: [
        'Proportional set size: growth of the daemon since its first session, and holders with the ' +
          'processes that read them; the shells of the users are not counted.',
      ],
      versions: {},
    }
  },
}

export const consoleCommands: Benchmark = {
  about: 'the command `true` on an SSH host, against `ssh host true` over a ControlMaster connection',
  missing,
  async run({ rounds, tiny }) {
    await using site = await openConsoleSite()
    const count = tiny ? 3 : 30
    const master = [
      ...['-o', 'ControlMaster=auto', '-o', 'ControlPersist=60', '-o', `ControlPath=${site.ssh.folder}/cm`],
      ...site.arguments,
    ]
    const each = async (one: () => Promise<unknown>): Promise<number> => {
      const times: number[] = []
      for (let i = 0; i < count; i++) times.push((await secondsOf(one)) * 1_000)
      return median(times)
    }
    const { cold, warm } = await interleaved(rounds, {
      Orrery: () =>
        each(async () => {
          const { status, failure } = await site.daemon.ok('POST', '/console-commands/', {
            ...{ resourceId: 'there', command: 'true' },
          })
          if (status !== 'completed') throw new Error(failure)
        }),
      ssh: () => each(() => run('ssh', [...master, 'true'])),
    })
    return {
      sides: [
        { name: 'Orrery, recorded', unit: 'ms', cold: cold.Orrery, warm: warm.Orrery },
        { name: 'ssh over ControlMaster', unit: 'ms', cold: cold.ssh, warm: warm.ssh },
      ],
      goals: [
        {
          ...{ what: 'ratio to ssh over ControlMaster', unit: '', sense: 'most', goal: 1.5 },
          measured: medianRatio(warm.Orrery, warm.ssh),
        },
      ],
      notes: [
        'A command of the console is a durable operation: its record, its workflow, the script with its ' +
          'limits, its output and its end are each stored before the answer.',
        'Timed alone on a quiet machine, the calls at the host take 40 ms, medians of 20: submit 14, until the end ' +
          'is known 8, both logs 3, removal of the folder 15; a bare script there takes 1.2. The rest is the ' +
          'workflow and its records.',
      ],
      versions: await versions(),
    }
  },
}
