import { performance } from 'node:perf_hooks'
import { sshMissing } from '../../sites/ssh.ts'
import { watchRun } from '../daemon.ts'
import { allMissing, rootMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { median } from '../rounds.ts'
import { addEnvironment, addTarget, awaitOperations, environmentId, openProvider } from './provider.ts'

type Provider = Awaited<ReturnType<typeof openProvider>>

/** When the next request of an action comes, in milliseconds since the epoch. */
const nextCall = async ({ site }: Provider, action: string, after: number): Promise<number> => {
  for (;;) {
    const found = site.changes.find((one) => one.action === action && one.at >= after)
    if (found !== undefined) return found.at
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

const epoch = (): number => performance.timeOrigin + performance.now()

/** Milliseconds from the 202 to the request that makes the machine; the machine is ended afterwards. */
const untilCreate = async (provider: Provider, name: string): Promise<number> => {
  const asked = Date.now()
  const { id } = await provider.daemon.ok('POST', `/environments/${environmentId}/cloud-instances/`, {
    ...{ capacityTargetId: 'workers', name, instanceId: name },
  })
  const answered = epoch()
  const milliseconds = (await nextCall(provider, 'RunInstances', asked)) - answered
  await awaitOperations(provider.daemon, [id])
  const destroy = await provider.daemon.ok('POST', `/cloud-instances/${name}/destroy/`)
  await awaitOperations(provider.daemon, [destroy.id])
  return Math.max(0, milliseconds)
}

const prepareRuns = async ({ daemon }: Provider): Promise<void> => {
  await daemon.ok('POST', '/execution-scopes/', {
    ...{ id: 'scope', name: 'scope', networkTopologyId: '', environmentVersionIds: [`${environmentId}-v1`] },
  })
  await daemon.ok('POST', '/workflow-definitions/', {
    name: 'two',
    spec: {
      ...{ namespace: 'bench', image: 'busybox:1.36' },
      activities: ['a', 'b'].map((name) => ({
        ...{ name, run: `sleep 0.3; echo ${name} > ${name}`, cpuLimit: '1', memoryLimit: '64Mi' },
      })),
    },
  })
  await daemon.ok('POST', '/schedule-plans/import/', {
    plan: {
      ...{ id: 'two', workflowVersionId: 'two-v1', executionScopeId: 'scope', algorithm: 'by-hand' },
      assignments: ['a', 'b'].map((activityId, k) => ({
        ...{ activityId, resourceId: 'workers', coreId: `core-${String(k)}`, orderOnResource: k },
      })),
    },
  })
}

/** Seconds from the end of the last task to the request that ends the machine. */
const untilDestroy = async (provider: Provider, run: string): Promise<number> => {
  const asked = Date.now()
  await provider.daemon.ok('POST', '/execution-runs/', { id: run, schedulePlanId: 'two', mode: 'real' })
  const { run: ended } = await watchRun(provider.daemon, run, 50)
  if (ended.status !== 'completed') throw new Error(`${run}: ${String(ended.failureReason)}`)
  const destroyed = await nextCall(provider, 'TerminateInstances', asked)
  const { activities } = await provider.daemon.ok('GET', `/execution-runs/${run}/`)
  const last = Math.max(...activities.map(({ finishedAt }: any) => Number(finishedAt)))
  for (;;) {
    const { final } = await provider.daemon.ok('GET', `/execution-runs/${run}/receipt/`)
    if (final === true) break
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  return destroyed / 1_000 - last
}

export const cloudReactions: Benchmark = {
  about:
    'from the 202 to the request that makes a machine, and from the end of the last task of a run to ' +
    'the request that ends it',
  missing: async () => rootMissing() ?? allMissing(await sshMissing()),
  async run({ rounds, tiny }) {
    await using provider = await openProvider()
    await addEnvironment(provider.daemon, provider.site)
    await addTarget(provider.daemon, 'workers')
    await prepareRuns(provider)
    const each = tiny ? 1 : 4
    const made: number[] = []
    const ended: number[] = []
    for (let round = 0; round <= rounds; round++) {
      for (let k = 0; k < each; k++)
        made.push(await untilCreate(provider, `made-${String(round)}-${String(k)}`))
      ended.push(await untilDestroy(provider, `run-${String(round)}`))
      process.stderr.write(
        `  round ${String(round)}: create ${made.slice(-each).map(Math.round).join(', ')} ms, ` +
          `destroy ${ended.at(-1)!.toFixed(2)} s\n`,
      )
    }
    return {
      sides: [
        { name: '202 → create', unit: 'ms', cold: made[0]!, warm: made.slice(each) },
        { name: 'last task → destroy', unit: 's', cold: ended[0]!, warm: ended.slice(1) },
      ],
      goals: [
        {
          ...{ what: '202 to the create request, p50', unit: ' ms', sense: 'most', goal: 150 },
          measured: median(made.slice(each)),
        },
        {
          ...{ what: 'last task to the destroy request, worst', unit: ' s', sense: 'most', goal: 1 },
          measured: Math.max(...ended.slice(1)),
        },
      ],
      notes: ['The provider notes the time of each request; there is no opponent.'],
      versions: {},
    }
  },
}
