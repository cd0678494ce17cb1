import { setTimeout as sleep } from 'node:timers/promises'
import { authored, checkOrder, type Dag } from './dag.ts'
import { environmentOf, watchRun, type Daemon } from './daemon.ts'
import { secondsOf } from './rounds.ts'

/** A workflow with a stored plan, for any number of runs. */
export interface Planned {
  dag: Dag
  planId: string
}

/**
 * Stores a workflow of this shape and an environment of one resource, and plans it with HEFT, all
 * over HTTP.
 */
export const plan = async (
  daemon: Daemon,
  given: {
    name: string
    dag: Dag
    command: (task: string) => Record<string, unknown>
    runtime: Record<string, unknown>
    lanes: number
  },
): Promise<Planned> => {
  const { name, dag, lanes } = given
  await daemon.ok('POST', '/workflow-definitions/', authored(name, dag, given.command))
  await daemon.ok(
    'POST',
    '/environments/',
    environmentOf(name, given.runtime, [{ id: `${name}-resource`, cpuCores: lanes, cpuCapacity: lanes }]),
  )
  await daemon.ok('POST', '/execution-scopes/', { id: name, name, environmentVersionIds: [`${name}-v1`] })
  await daemon.ok('POST', '/planning-sessions/', {
    id: name,
    workflowVersionId: `${name}-v1`,
    executionScopeId: name,
    networkTopologyId: '',
    algorithms: [{ id: 'heft' }],
  })
  for (;;) {
    const { session } = await daemon.ok('GET', `/planning-sessions/${name}/`)
    if (session.status === 'completed') break
    if (session.status === 'failed') throw new Error(`planning failed: ${String(session.failureReason)}`)
    await sleep(20)
  }
  const [candidate] = await daemon.ok('GET', `/planning-sessions/${name}/candidates/`)
  const { id } = await daemon.ok(
    'POST',
    `/planning-sessions/${name}/candidates/${encodeURIComponent(candidate.id)}/select/`,
  )
  return { dag, planId: id }
}

const bodyOf = (planned: Planned, runId: string) => ({
  id: runId,
  schedulePlanId: planned.planId,
  mode: 'real',
})

/**
 * Throws unless every activity of the run completed in its first attempt, was started once, and was
 * started after all its predecessors.
 */
export const checkStartedOnce = async (daemon: Daemon, runId: string, { dag }: Planned): Promise<void> => {
  const tasks = Object.keys(dag).length
  const { run, activities } = await daemon.ok('GET', `/execution-runs/${runId}/?attempts=all`)
  if (run.status !== 'completed')
    throw new Error(`${runId} is ${String(run.status)}: ${String(run.failureReason)}`)
  const odd = activities.find((activity: any) => activity.attempt !== 1 || activity.status !== 'completed')
  if (activities.length !== tasks || odd !== undefined)
    throw new Error(
      `${runId} has ${String(activities.length)} attempts of ${String(tasks)} activities; ${JSON.stringify(odd)}`,
    )
  // The clocks of a process and of the daemon have different resolutions: two milliseconds of
  // tolerance.
  checkOrder(
    runId,
    dag,
    new Map(
      (activities as { externalId: string; startedAt: number; finishedAt: number }[]).map(
        ({ externalId, startedAt, finishedAt }) => [externalId, [startedAt + 0.002, finishedAt]],
      ),
    ),
  )
  const started = new Map<string, number>()
  for (let page = 1; ; page++) {
    const { items, hasNext } = await daemon.ok(
      'GET',
      `/execution-runs/${runId}/events/?page=${String(page)}&pageSize=100`,
    )
    for (const event of items)
      if (event.eventType === 'activity.started')
        started.set(event.aggregateId, (started.get(event.aggregateId) ?? 0) + 1)
    if (hasNext !== true) break
  }
  const twice = [...started].filter(([, times]) => times !== 1)
  if (started.size !== tasks || twice.length > 0)
    throw new Error(
      `${runId}: ${String(started.size)} of ${String(tasks)} activities started, more than once: ` +
        JSON.stringify(twice.slice(0, 5)),
    )
}

/**
 * Seconds from the post of the run to its observed completion, polled every `everyMs`, and the
 * distinct counts that the poller saw.
 */
export const timedRun = async (
  daemon: Daemon,
  planned: Planned,
  runId: string,
  everyMs = 10,
  check: (daemon: Daemon, runId: string, planned: Planned) => Promise<void> = checkStartedOnce,
): Promise<{ seconds: number; counts: number }> => {
  let counts = 0
  const seconds = await secondsOf(async () => {
    await daemon.ok('POST', '/execution-runs/', bodyOf(planned, runId))
    counts = (await watchRun(daemon, runId, everyMs)).counts.size
  })
  await check(daemon, runId, planned)
  return { seconds, counts }
}

/**
 * Posts a run, kills the daemon (and with it its servers) after `seconds`, starts it again and
 * waits for the end of the run. The run is posted again only if the kill came before its
 * acceptance. Throws unless every attempt was started once.
 */
export const killedRun = async (
  daemon: Daemon,
  planned: Planned,
  runId: string,
  seconds: number,
): Promise<void> => {
  const posted = daemon
    .call('POST', '/execution-runs/', bodyOf(planned, runId))
    .catch((error: unknown) => error)
  await sleep(seconds * 1_000)
  await daemon.killAndRestart()
  await posted
  const { status } = await daemon.call('GET', `/execution-runs/${runId}/`)
  if (status === 404) await daemon.ok('POST', '/execution-runs/', bodyOf(planned, runId))
  await watchRun(daemon, runId, 10)
  await checkStartedOnce(daemon, runId, planned)
}

/**
 * One killed run, and one that warms the restarted daemon up again. The moment of the kill is drawn
 * from the duration of a run. Returns the line for the report once all rounds are over.
 */
export const killing = (daemon: Daemon, planned: Planned, random: () => number, runSeconds: () => number) => {
  const moments: number[] = []
  return {
    async round(): Promise<void> {
      const seconds = random() * runSeconds()
      const number = String(moments.push(seconds))
      process.stderr.write(`  killed run ${number}: after ${(seconds * 1_000).toFixed(0)} ms\n`)
      await killedRun(daemon, planned, `killed-${number}`, seconds)
      await timedRun(daemon, planned, `warm-${number}`)
    },
    note: (): string =>
      `killed runs: ${String(moments.length)}, at ` +
      `${moments.map((seconds) => `${(seconds * 1_000).toFixed(0)} ms`).join(', ')}; all completed, ` +
      'every attempt started once',
  }
}
