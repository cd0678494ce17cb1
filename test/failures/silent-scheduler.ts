import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { Intent, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { startSlurm, type SlurmCommand } from '../../sites/slurm.ts'
import { randomOf } from './rounds.ts'
import type { Failures } from '../../bench/tally.ts'

/**
 * Of the driver's own waits: 30 s for a command are a quarter of a second here, so that half a
 * minute is an hour.
 */
const compression = 120
const tasksOfCrew = 8
const commands = [
  'sbatch',
  'squeue',
  'sacct',
  'scancel',
  'sinfo',
  'scontrol',
] as const satisfies readonly SlurmCommand[]
const failures = [
  'echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1',
  'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1',
  'sleep 1000',
  'echo "17|0|orrery-of-somebody|RUN"; printf "\\001\\377|||"; exit 0',
  'exit 3',
  'kill -9 $$',
]

/**
 * A round: crews of eight tasks of a second, each with a work directory and drivers of its own,
 * while commands of the scheduler fail, hang or babble, each for its own time, for one to three
 * hours by the driver's clock; then all is well. Each case is a task: it must have run once and be
 * told to have ended well.
 *
 * @param crewCount crews under the same failures
 */
export async function openSilentScheduler(crewCount = 4): Promise<Failures> {
  const site = await startSlurm({ accounting: true, slurmConf: ['MaxJobCount=100000'] })
  const shell = openLocalShell({
    environment: { PATH: `${site.commands}:/usr/local/bin:/usr/bin:/bin`, SLURM_CONF: site.conf },
  })
  const configuration = {
    commandSeconds: 30 / compression,
    settleSeconds: 3600 / compression,
    claimSeconds: 60 / compression,
  }

  /**
   * A real command may take longer than a quarter of a second on a machine in use: after a while
   * without failures it may have more.
   */
  const open = (root: string, more = {}): RuntimeDriver =>
    openSlurmDriver({
      shell,
      root,
      runtime: 'c',
      taskVariable: 'ORRERY_TASK',
      pollMilliseconds: 300,
      configuration: { ...configuration, ...more },
    })

  /** @param silence resolves when all is well. @returns what is wrong. */
  const work = async (
    number: number,
    root: string,
    silentUntil: number,
    silence: Promise<void>,
  ): Promise<string[]> => {
    const random = randomOf(number + 1)
    const ledger = join(root, 'ledger')
    mkdirSync(root, { recursive: true })
    const tasks = Array.from({ length: tasksOfCrew }, (_, index): Intent => ({
      name: `silence-${number + index}`,
      directory: join(root, 'work', String(number), String(index), '1'),
      argv: ['/bin/sh', '-c', 'echo "$1" >> "$2"; sleep 1', 'sh', `silence-${number + index}`, ledger],
      ...{ environment: {}, stage: [], expectedOutputs: [], cores: 1, memoryBytes: 0, timeoutSeconds: 0 },
    }))
    const names = tasks.map(({ name }) => name)
    const bad: string[] = []
    let driver = open(root)
    try {
      const until = silentUntil + 240_000
      // As the engine does; the driver is another one now and then, as after the death of its
      // worker.
      const taken = new Set<string>()
      let calm = false
      while (taken.size < tasks.length) {
        const left = tasks.filter(({ name }) => !taken.has(name))
        for (const outcome of await driver.submit(left).catch(() => []))
          if (outcome.ok) taken.add(outcome.name)
          else if (outcome.error.trouble !== 'unknown' && outcome.error.trouble !== 'infrastructure') {
            bad.push(`${outcome.name} was refused: ${outcome.error.message}`)
            taken.add(outcome.name)
          }
        if (performance.now() > until)
          return [...bad, ...left.map(({ name }) => `${name} was not taken in time`)]
        if ((!calm && performance.now() > silentUntil) || random() < 0.2) {
          calm = performance.now() > silentUntil
          await driver.close()
          driver = open(root, calm ? { commandSeconds: 20 } : {})
        }
        await sleep(200)
      }
      await silence
      await driver.close()
      driver = open(root, { commandSeconds: 20 })
      for (;;) {
        const states = await driver.find(names).catch(() => undefined)
        const all = names.map((name) => states?.get(name))
        const lost = all.flatMap((state, index) =>
          state?.state === 'lost' ? [`${names[index]} is lost: ${state.cause}`] : [],
        )
        if (lost.length > 0 || all.every((state) => state?.state === 'ended')) {
          bad.push(...lost)
          for (const [index, state] of all.entries())
            if (state?.state === 'ended' && state.exitCode !== 0)
              bad.push(`${names[index]} is ${JSON.stringify(state)}`)
          break
        }
        if (performance.now() > until) {
          const open = names.filter((_, index) => all[index]?.state !== 'ended')
          return [
            ...bad,
            ...open.map((name) => `${name} did not end in time: ${JSON.stringify(states?.get(name))}`),
          ]
        }
        await sleep(300)
      }
      const lines = existsSync(ledger) ? readFileSync(ledger, 'utf8').split('\n') : []
      for (const name of names) {
        const times = lines.filter((line) => line === name).length
        if (times !== 1) bad.push(`${name} ran ${times} times`)
      }
      return bad
    } finally {
      await driver.close()
    }
  }

  return {
    what: `tasks of Slurm while its commands failed, hung or babbled for hours (time × ${compression})`,
    async play(number) {
      const random = randomOf(number + 1)
      const hours = 1 + Math.floor(random() * 3)
      const silentUntil = performance.now() + (hours * 3_600_000) / compression
      const silence = (async () => {
        while (performance.now() < silentUntil) {
          for (const command of commands)
            site.disturb(
              command,
              random() < 0.7 ? failures[Math.floor(random() * failures.length)] : undefined,
            )
          await sleep(500 + random() * 2500)
        }
        for (const command of commands) site.disturb(command, undefined)
      })()
      try {
        const crews = Array.from({ length: crewCount }, (_, crew) =>
          work(number + crew * tasksOfCrew, join(site.scratch, `crew-${crew}`), silentUntil, silence),
        )
        return { counted: crewCount * tasksOfCrew, violations: (await Promise.all(crews)).flat() }
      } finally {
        await silence
      }
    },
    close: async () => {
      await shell.close()
      await site.stop()
    },
  }
}
