import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { violationsOf } from '../execution-runs/checker.ts'
import { dependenciesOf, makeWorld, recordOf, type WorldTask } from '../support/worlds.ts'
import { readLedger, withLedger } from './ledger.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, randomOf } from './rounds.ts'
import type { Failures } from '../../bench/tally.ts'

const atOnce = 10
const latestMs = 2_500

/** Two chains with a branch; some fail at first and wait for their next attempt. */
const tasksOf = (ledger: string): WorldTask[] =>
  Array.from({ length: 8 }, (_, i) => ({
    name: `c${i}`,
    run: withLedger(ledger, i % 3 === 2 ? '[ "$AKOFLOW_ATTEMPT" -gt 1 ]' : 'sleep 0.1'),
    ...(i < 2 ? {} : { after: [`c${i - 2}`] }),
    policy: { maxAttempts: 3, retryDelaySeconds: 0.3 },
  }))

/**
 * A round: ten runs, each cancelled at a moment of its own between its acceptance and its end; in
 * every fourth the worker dies meanwhile. Each case is a run: once it is seen to be over it stays
 * what it is, and nothing of it starts or ends any more.
 */
export async function openCancelRaces(): Promise<Failures> {
  const dataDir = dataFolder()
  const ledger = join(dataDir, 'ledger')
  writeFileSync(ledger, '')
  const programs = openPrograms(dataDir, {})
  const series = Date.now().toString(36)
  const close = async (): Promise<void> => {
    await programs.stop()
    removeFolder(dataDir)
  }
  try {
    await programs.startDaemon()
    await programs.startWorker()
    const service = {
      post: (path: string, body?: unknown) => programs.post(path, body),
      get: (path: string) => programs.get(path),
    }
    const world = await makeWorld(service, { name: 'races', cores: [2, 2], tasks: tasksOf(ledger) })
    let rounds = 0

    const race = async (
      run: string,
      afterMs: number,
    ): Promise<{ run: string; status: string; seenAt: number }> => {
      await programs.post('/execution-runs/', { id: run, schedulePlanId: world.planId, mode: 'real' })
      await pause(afterMs)
      const answer = await programs.call('POST', `/execution-runs/${run}/cancel/`)
      // It was over already.
      if (answer.status >= 300 && answer.status !== 409)
        throw new Error(`cancel of ${run} answered ${answer.status}`)
      return until(`the end of ${run}`, 120, async () => {
        const { status } = (await programs.get(`/execution-runs/${run}/`)).run as { status: string }
        return ['completed', 'failed', 'cancelled'].includes(status)
          ? { run, status, seenAt: Date.now() / 1000 }
          : undefined
      })
    }

    return {
      what: 'runs cancelled at any moment, against ends, waits for the next attempt and the death of the worker',
      async play(number) {
        const random = randomOf(number + 1)
        const violations: string[] = []
        const all = Promise.all(
          Array.from({ length: atOnce }, (_, index) =>
            race(`race-${series}-${number + index}`, Math.floor(random() * latestMs)),
          ),
        )
        all.catch(() => undefined)
        if (rounds++ % 4 === 3) {
          await pause(random() * latestMs)
          await programs.killWorker()
          await programs.startWorker()
        }
        const ends = await all
        // What would still start does so within the lease of starts, 200 ms.
        await pause(500)
        const lines = readLedger(ledger)
        for (const { run, status, seenAt } of ends) {
          const own = lines.filter((line) => line.run === run)
          for (const line of own)
            if (line.at > seenAt)
              violations.push(`${run}: ${line.kind} of ${line.activity} after it was seen ${status}`)
          const starts = own
            .filter(({ kind }) => kind === 'start')
            .map(({ activity, attempt }) => `${activity}, attempt ${attempt}`)
          if (new Set(starts).size < starts.length)
            violations.push(`${run}: an attempt was started twice: ${starts.join('; ')}`)
          const record = await recordOf(service, run)
          if (record.run.status !== status)
            violations.push(`${run} was ${status} and is ${String(record.run.status)}`)
          violations.push(
            ...violationsOf(record, { dependencies: dependenciesOf(world), maxAttempts: () => 3 }),
          )
        }
        return { counted: atOnce, violations }
      },
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}
