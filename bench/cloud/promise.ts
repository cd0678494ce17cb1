import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { atCloud, readDocuments, withSuffix, type Documents } from '../../examples/demo/documents.ts'
import { mosaicWorkflow, smallShape } from '../../examples/mosaic/generate-workflow.ts'
import { measureMosaic } from '../../examples/mosaic/measure.ts'
import { sshMissing } from '../../sites/ssh.ts'
import { watchRun, type Daemon } from '../daemon.ts'
import { allMissing, rootMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { examples, openProvider } from './provider.ts'

type Provider = Awaited<ReturnType<typeof openProvider>>

/** Posts the mosaic with its targets; its activities have the durations that were measured here. */
const postMosaic = async ({ daemon, site }: Provider, tiny: boolean, suffix: string): Promise<Documents> => {
  const read = readDocuments(join(examples, 'mosaic'), 'cloud')
  const documents = withSuffix(tiny ? { ...read, workflow: mosaicWorkflow(smallShape) } : read, suffix)
  const times = await measureMosaic(documents.workflow, examples, Math.min(2, availableParallelism()))
  const seconds = new Map(times.map(({ activityType, runtimeSeconds }) => [activityType, runtimeSeconds]))
  const { workflow } = documents
  const activities = workflow.spec.activities.map((activity) => ({
    ...activity,
    simulation: { durationSeconds: seconds.get(activity.activityType) ?? 1 },
  }))
  await daemon.ok('POST', '/workflow-definitions/import/', {
    ...workflow,
    spec: { ...workflow.spec, activities },
  })
  const id = `mosaic-${suffix}`
  const { credentialRef } = await daemon.ok('POST', '/cloud-credentials/', {
    ...{ id, provider: 'aws', credential: site.accessKey },
  })
  const environment = atCloud(documents.environment, { endpoint: site.endpoint, credentialRef })
  await daemon.ok('POST', '/environments/', environment)
  for (const target of documents.targets)
    await daemon.ok('POST', `/environments/${environment.environment.id}/cloud-capacity-targets/`, target)
  await daemon.ok('POST', '/execution-scopes/', documents.scope)
  await daemon.ok('POST', '/network-topologies/', documents.topology)
  return documents
}

const planned = async (daemon: Daemon, documents: Documents, id: string): Promise<any> => {
  await daemon.ok('POST', '/planning-sessions/', {
    ...{ id, workflowVersionId: `${documents.workflow.name}-v1`, executionScopeId: documents.scope.id },
    ...{ networkTopologyId: documents.topology.id, algorithms: [{ id: 'heft' }] },
  })
  for (;;) {
    const session = await daemon.ok('GET', `/planning-sessions/${id}/`)
    const { status } = session.session ?? session
    if (['completed', 'partial'].includes(status as string)) break
    if (['failed', 'cancelled'].includes(status as string)) throw new Error(JSON.stringify(session))
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  const [candidate] = await daemon.ok('GET', `/planning-sessions/${id}/candidates/`)
  return daemon.ok('POST', `/planning-sessions/${id}/candidates/${String(candidate.id)}/select/`)
}

interface Outcome {
  predicted: number
  actual: number
  predictedMoney: number
  money: number
  /** The largest difference of a machine's seconds in the receipt from those of the provider. */
  billDifference: number
}

const execute = async ({ daemon, site }: Provider, plan: any, id: string): Promise<Outcome> => {
  const before = new Set(site.machines.keys())
  await daemon.ok('POST', '/execution-runs/', { id, schedulePlanId: plan.id, mode: 'real' })
  const { run } = await watchRun(daemon, id, 100)
  if (run.status !== 'completed') throw new Error(`${id}: ${String(run.failureReason)}`)
  let receipt = await daemon.ok('GET', `/execution-runs/${id}/receipt/`)
  for (; receipt.final !== true; receipt = await daemon.ok('GET', `/execution-runs/${id}/receipt/`))
    await new Promise((resolve) => setTimeout(resolve, 200))
  const differences: number[] = []
  for (const { instanceId, actual } of receipt.instances) {
    const { providerId } = await daemon.ok('GET', `/cloud-instances/${String(instanceId)}/`)
    const machine = site.machines.get(providerId as string)
    if (machine === undefined || before.has(machine.id)) throw new Error(`${id}: no machine ${providerId}`)
    differences.push(Math.abs(actual.seconds - machine.ranMs / 1_000))
  }
  return {
    predicted: Math.max(...plan.assignments.map(({ predictedFinishAt }: any) => Number(predictedFinishAt))),
    actual: (Date.parse(run.finishedAt) - Date.parse(run.startedAt)) / 1_000,
    predictedMoney: receipt.run.planned,
    money: receipt.run.actual,
    billDifference: Math.max(...differences),
  }
}

const errorOf = ({ predicted, actual }: Outcome): number => Math.abs(predicted - actual) / actual

export const cloudPromise: Benchmark = {
  about:
    'the mosaic on machines of a cloud: predicted against measured wall time in the third run of the ' +
    "same targets, and the receipt against the provider's bill",
  missing: async () => rootMissing() ?? allMissing(await sshMissing()),
  async run({ rounds, tiny }) {
    await using provider = await openProvider()
    const all: Outcome[][] = []
    // Each round has targets of its own, of which nothing is known in the first run.
    for (let round = 0; round < rounds; round++) {
      const documents = await postMosaic(provider, tiny, String(round))
      const outcomes: Outcome[] = []
      for (const turn of [1, 2, 3]) {
        const id = `mosaic-${String(round)}-${String(turn)}`
        const plan = await planned(provider.daemon, documents, id)
        const outcome = await execute(provider, plan, id)
        outcomes.push(outcome)
        process.stderr.write(
          `  ${id}: predicted ${outcome.predicted.toFixed(2)} s, took ${outcome.actual.toFixed(2)} s, ` +
            `bill off by ${outcome.billDifference.toFixed(3)} s\n`,
        )
      }
      all.push(outcomes)
    }
    const third = all.map((outcomes) => outcomes[2]!)
    const of = (turn: number, pick: (outcome: Outcome) => number) => all.map((each) => pick(each[turn]!))
    return {
      sides: [
        ...[0, 1, 2].flatMap((turn) => [
          {
            ...{ name: `run ${String(turn + 1)}, predicted`, unit: 's' },
            warm: of(turn, ({ predicted }) => predicted),
          },
          { name: `run ${String(turn + 1)}, measured`, unit: 's', warm: of(turn, ({ actual }) => actual) },
        ]),
        { name: 'run 3, predicted', unit: 'money', warm: of(2, ({ predictedMoney }) => predictedMoney) },
        { name: 'run 3, receipt', unit: 'money', warm: of(2, ({ money }) => money) },
      ],
      goals: [
        {
          ...{ what: 'error of the predicted wall time in the third run, worst', unit: ' %' },
          ...{ sense: 'most', goal: 15, measured: Math.max(...third.map(errorOf)) * 100 },
        },
        {
          ...{ what: 'seconds of a machine, receipt against the bill, worst', unit: ' s', sense: 'most' },
          ...{ goal: 1, measured: Math.max(...all.flat().map(({ billDifference }) => billDifference)) },
        },
      ],
      notes: [
        'Wall time: from the start of the run to its end, with the making of the machines.',
        'The durations of the activities are measured on this machine before the first run of a round.',
      ],
      versions: {},
    }
  },
}
