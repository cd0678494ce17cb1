import { randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { violationsOf } from '../execution-runs/checker.ts'
import { startKubernetes } from '../../sites/kubernetes.ts'
import { inCluster } from '../support/reach.ts'
import { dependenciesOf, makeWorld, recordOf, type WorldTask } from '../support/worlds.ts'
import { readLedger, withLedger } from './ledger.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, randomOf } from './rounds.ts'
import type { Failures } from '../../bench/tally.ts'

const atOnce = 10
const latestMs = 4_000
/** Where the tasks see the ledger, which is on the volume. */
const ledgerAt = '/orrery/ledger'

/** Each waits at its first attempt to be evicted. */
const tasksOf = (image: string): WorldTask[] =>
  Array.from({ length: atOnce }, (_, i) => ({
    name: `e${i}`,
    run: withLedger(ledgerAt, `[ "$AKOFLOW_ATTEMPT" -gt 1 ] || sleep 600; echo ${i} > result`),
    outputs: ['result'],
    lane: [0, i] as const,
    policy: { maxAttempts: 1 },
    memory: '64Mi',
    image,
  }))

/**
 * A round: a run of ten activities that may fail no more than once, each of whose first Pods is
 * evicted while it runs, at a moment of its own. Each case is an eviction: it is recorded as a
 * failure of the site in the cluster's words, and the next attempt completes the activity.
 */
export async function openEvictions(): Promise<Failures> {
  const dataDir = dataFolder()
  const keyFile = join(dataDir, 'key')
  writeFileSync(keyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  const programs = openPrograms(dataDir, { environment: { SERVICE_VAULT_KEY_FILE: keyFile } })
  const series = Date.now().toString(36)
  const site = await startKubernetes()
  const close = async (): Promise<void> => {
    await programs.stop()
    await site.stop()
    removeFolder(dataDir)
  }
  try {
    const ledger = join(site.volume.folder, 'ledger')
    writeFileSync(ledger, '')
    await programs.startDaemon()
    const { certificateAuthority, namespace } = site
    await programs.post('/kubernetes-tokens/', { id: 'pods', token: await site.token() })
    const service = {
      post: (path: string, body?: unknown) => programs.post(path, body),
      get: (path: string) => programs.get(path),
    }
    const world = await makeWorld(service, {
      name: 'evictions',
      tasks: tasksOf(site.images.gnu),
      cores: [atOnce],
      // More Pods than the machine has processors: their requests are a fiftieth of the plan's.
      places: [inCluster('pods', site, { overcommit: 50 })],
      connections: [
        {
          ...{
            id: 'pods',
            name: 'pods',
            type: 'kubernetes',
            endpoint: site.server,
            credentialRef: 'vault:kubernetes-token/pods',
          },
          configuration: { certificateAuthority, namespace },
        },
      ],
    })
    const runningPods = async (): Promise<string[]> => {
      const selected = ['-l', 'orrery.dev/part=task', '--field-selector=status.phase=Running']
      const text = await site.kubectl('get', 'pods', ...selected, '-o', 'jsonpath={.items[*].metadata.name}')
      return text.split(' ').filter((name) => name !== '')
    }
    const statusOf = async (run: string): Promise<string> =>
      (await programs.get(`/execution-runs/${run}/`)).run.status as string

    return {
      what:
        'evictions of running Pods with `maxAttempts: 1`: recorded as a failure of the site, and ' +
        'completed by the next attempt',
      async play(number) {
        const random = randomOf(number + 1)
        const run = `evictions-${series}-${number}`
        const violations: string[] = []
        const earlier = new Set(await runningPods())
        await programs.post('/execution-runs/', { id: run, schedulePlanId: world.planId, mode: 'real' })
        const own = () => readLedger(ledger).filter((line) => line.run === run)
        await until('all first attempts to have started', 180, () => own().length >= atOnce)
        const pods = await until('their Pods', 30, async () => {
          const now = (await runningPods()).filter((name) => !earlier.has(name))
          return now.length >= atOnce ? now : undefined
        })
        await Promise.all(
          pods.map(async (pod) => {
            await pause(random() * latestMs)
            await site.evict(pod)
          }),
        )
        const status = await until(`the end of ${run}`, 300, async () => {
          const now = await statusOf(run)
          return ['completed', 'failed', 'cancelled'].includes(now) ? now : undefined
        })
        if (status !== 'completed') violations.push(`${run} is ${status}`)
        const record = await recordOf(service, run)
        violations.push(...violationsOf(record, { dependencies: dependenciesOf(world) }))
        const lines = own()
        for (const { name } of world.tasks) {
          const id = world.activityId(name)
          const attempts = record.activities
            .filter(({ activityId }) => activityId === id)
            .toSorted((a, b) => a.attempt - b.attempt)
          const told = attempts.map((one) =>
            `${one.status} ${one.failureClass ?? ''} ${one.failureReason ?? ''}`.trim(),
          )
          if (
            !/^failed infrastructure .*Eviction/.test(told[0] ?? '') ||
            told[1] !== 'completed' ||
            told.length !== 2
          )
            violations.push(`${id} of ${run}: ${JSON.stringify(told)}`)
          const starts = lines
            .filter(({ kind, activity }) => kind === 'start' && activity === id)
            .map(({ attempt }) => attempt)
          if (starts.toSorted().join() !== '1,2')
            violations.push(`${id} of ${run} was started as attempts ${starts.join()}`)
        }
        return { counted: pods.length, violations }
      },
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}
