import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals'
import { MockActivityEnvironment } from '@temporalio/testing'
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { executionRunActivities } from '../../activities/execution-run.ts'
import type { TransferFacts } from '../../src/executor/attempt.ts'
import { claimSite, commitSite, waitKinds, type LoadedTask } from '../../src/executor/journal.ts'
import { sitesWithLeftovers, stopLeftovers } from '../../src/executor/leftovers.ts'
import { intentName } from '../../src/executor/names.ts'
import type { SitePlan } from '../../src/executor/intents.ts'
import { runSite, type SiteOutcome } from '../../src/executor/loop.ts'
import { emptyEntry } from '../../src/executor/scheduling-state.ts'
import type { SiteParts } from '../../src/executor/site-parts.ts'
import { openRunWakeUps } from '../../src/executor/wake-ups.ts'
import { sql } from '../../src/db/sql.ts'
import { closeRun, openRun, runKind } from '../../src/domains/execution-runs/operation.ts'
import { abandonUnheldSites } from '../../src/domains/execution-runs/unheld-sites.ts'
import {
  DriverError,
  type Collected,
  type Intent,
  type RuntimeDriver,
  type TaskState,
} from '../../src/drivers/runtime/contract/driver.ts'
import { openLocalDriver } from '../../src/drivers/runtime/local/driver.ts'
import { openNoneDriver } from '../../src/drivers/runtime/none/driver.ts'
import { LinkError } from '../../src/shell/site-shell.ts'
import { openLog } from '../../src/observability/log.ts'
import { openMetrics } from '../../src/observability/metrics.ts'
import { openReports } from '../../src/observability/reports.ts'
import { requestCancel } from '../../src/operations/records.ts'
import { until } from '../failures/programs.ts'
import { quietReports } from '../support/quiet-reports.ts'
import { runnerProgram } from '../support/runner-program.ts'
import { openService, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { makeWorld, recordOf, type World, type WorldTask } from '../support/worlds.ts'

let service: TestService
let local: RuntimeDriver
beforeAll(async () => {
  // Without an engine the executors are the test's own.
  service = await openService({ temporalAddress: '127.0.0.1:9' })
  local = openLocalDriver({ controlDirectory: join(service.dataDir, 'site-tasks'), runnerProgram })
})
afterAll(async () => {
  await local.close()
  await service[Symbol.asyncDispose]()
})

const site = 'ssh/far'

/** A site behind a link that can be cut: real processes, and no answer while it is down. */
const behindLink = (driver: RuntimeDriver) => {
  const link = { down: false, words: 'connection reset by peer', hangs: false, person: false, lost: 0 }
  const pass = async <T>(work: () => Promise<T>): Promise<T> => {
    for (const before of [true, false]) {
      if (link.down) {
        link.lost += 1
        if (link.hangs) await new Promise(() => undefined)
        throw new DriverError('unknown', link.words, {
          cause: new LinkError('link', link.words, { waitsForPerson: link.person }),
        })
      }
      // The answer is lost when the link is cut after the work was done.
      if (!before) break
      const answer = await work()
      if (!link.down) return answer
    }
    throw new Error('unreachable')
  }
  const far: RuntimeDriver = {
    ...driver,
    submit: (intents) => pass(() => driver.submit(intents)),
    find: (names) => pass(() => driver.find(names)),
    cancel: (names, grace) => pass(() => driver.cancel(names, grace)),
    collect: (name) => pass(() => driver.collect(name)),
  }
  return { far, link }
}

let worlds = 0
const started: { stop: AbortController; done: Promise<unknown> }[] = []
afterEach(async () => {
  for (const { stop } of started) stop.abort(new Error('the test is over'))
  await Promise.allSettled(started.splice(0).map(({ done }) => done))
})

/** A run whose executor the test holds; each `execute` is one more holder of its site. */
const makeRun = async (tasks: readonly WorldTask[], cores = [4], siteOf: SitePlan['siteOf'] = () => site) => {
  const name = `failures${String(++worlds)}`
  const world: World = await makeWorld(service, { name, tasks, cores })
  const runId = `${name}-run`
  await service.post('/execution-runs/', { id: runId, schedulePlanId: world.planId, mode: 'real' })
  await openRun(service.db, { id: runId, generation: 1 })
  const folder = mkdtempSync(join(service.dataDir, 'far-'))
  const directoryOf = (task: LoadedTask): string =>
    join(folder, `${String(task.position)}-${String(task.attempt)}`)
  const taskOf = (task: LoadedTask): WorldTask =>
    world.tasks.find(({ name: own }) => world.activityId(own) === task.activity_id) as WorldTask
  const intents: Intent[] = []
  const plan: SitePlan = {
    contentVersionId: world.workflowVersionId,
    onFailure: 'stop',
    siteOf,
    effectKey: runId,
    schedulesItself: () => false,
    pricePerSecond: new Map(),
    commandsOf: async (positions) =>
      new Map(
        positions.map((position) => [
          position,
          {
            ...{ argv: [], environment: {}, cpu: 1, memoryBytes: 2 ** 30, expectedOutputs: [] },
            ...{ timeoutSeconds: 0, maxAttempts: 1, retryDelaySeconds: 0 },
          },
        ]),
      ),
    intentOf: (task, _command, intended, predecessors) => {
      const intent: Intent = {
        name: intended,
        directory: directoryOf(task),
        argv: ['sh', '-c', taskOf(task).run ?? 'true'],
        environment: { FOLDER: folder, ATTEMPT: String(task.attempt) },
        stage: predecessors.map((predecessor) => ({
          from: directoryOf(predecessor),
          label: predecessor.external_id,
        })),
        expectedOutputs: [],
        cores: 1,
        memoryBytes: 2 ** 30,
        timeoutSeconds: 0,
      }
      return intent
    },
    routeOf: () => ({ links: ['wan'], pricePerByte: 0.5 }),
    copiedFor: () => [],
  }
  const execute = (
    driver: RuntimeDriver,
    parts: Partial<SiteParts> = {},
    holder = 'test',
  ): { done: Promise<SiteOutcome>; stop: AbortController } => {
    const stop = new AbortController()
    const watched: RuntimeDriver = {
      ...driver,
      submit: (given) => {
        intents.push(...given)
        return driver.submit(given)
      },
    }
    const all: SiteParts = {
      db: service.db,
      driver: watched,
      hostId: 'far',
      cores: undefined,
      clock: () => Date.now() / 1_000,
      failpoint: () => undefined,
      ...parts,
    }
    const done = runSite(all, { runId, site, plan, holder, signal: stop.signal }, () => undefined)
    started.push({ stop, done })
    done.catch(() => undefined)
    return { done, stop }
  }
  const task = async (activity: string): Promise<any> => {
    const { activities } = await recordOf(service, runId)
    return activities.filter(({ activityId }: any) => activityId === world.activityId(activity)).at(-1)
  }
  const position = async (activity: string): Promise<number> => {
    const [row] = await service.db.prepared<{ position: number }>(
      'position_of',
      'select activity_position as position from task_executions where execution_run_id = $1 and activity_id = $2',
      [runId, world.activityId(activity)],
    )
    return (row as { position: number }).position
  }
  return {
    world,
    runId,
    folder,
    intents,
    execute,
    task,
    position,
    lines: (file: string): string[] =>
      existsSync(join(folder, file)) ? readFileSync(join(folder, file), 'utf8').trim().split('\n') : [],
  }
}

test('a site that cannot be reached is asked again under the same names: nothing fails, nothing is started twice, no attempt is spent', async () => {
  const run = await makeRun([
    {
      name: 'first',
      run: 'echo first >> $FOLDER/ledger; while [ ! -e $FOLDER/go ]; do sleep 0.05; done; echo data > made',
    },
    { name: 'second', run: 'echo second >> $FOLDER/ledger; cat made', after: ['first'] },
    { name: 'beside', run: 'echo beside >> $FOLDER/ledger' },
  ])
  const { far, link } = behindLink(local)
  // Submitting: the answer is lost, then the site is away.
  link.down = true
  const before = run.execute(far)
  await until(
    'the row says for what it waits',
    120,
    async () => (await run.task('first')).metadata?.queueReason !== undefined,
  )
  expect(await run.task('first')).toMatchObject({
    status: 'queued',
    attempt: 1,
    metadata: { queueReason: 'waiting for ssh/far: connection reset by peer', waitsFor: 'site' },
  })
  link.down = false
  await until('both started', 120, () => run.lines('ledger').length === 2)
  await until('the row says that it runs', 120, async () => (await run.task('first')).status === 'running')
  expect((await run.task('first')).metadata).toBeUndefined()
  // Another holder takes over while the site is away, and its end falls into the outage.
  link.down = true
  before.stop.abort(new Error('drained'))
  await before.done.catch(() => undefined)
  const after = run.execute(far)
  writeFileSync(join(run.folder, 'go'), '')
  await until('the new holder waits', 120, async () =>
    /^waiting for ssh\/far/.test((await run.task('first')).metadata?.queueReason ?? ''),
  )
  link.person = true
  link.words = 'a one-time code is asked for'
  await until(
    'a login is waited for',
    120,
    async () =>
      (await run.task('first')).metadata?.queueReason ===
      'waiting for login to ssh/far: a one-time code is asked for',
  )
  link.down = false
  expect(await after.done).toEqual({ settled: true, completed: 3, failed: 0 })
  expect(run.lines('ledger').sort()).toEqual(['beside', 'first', 'second'])
  for (const name of ['first', 'second', 'beside'])
    expect(await run.task(name)).toMatchObject({ status: 'completed', attempt: 1 })
  expect(link.lost).toBeGreaterThanOrEqual(3)
})

test('a submit without an answer is what its tasks wait for: the files that are on their way, or the site', async () => {
  const run = await makeRun([{ name: 'first' }, { name: 'second', after: ['first'] }])
  let answer: () => void = () => undefined
  const held = (): Promise<void> => new Promise((resolve) => (answer = resolve))
  const { done } = run.execute({ ...local, submit: (intents) => held().then(() => local.submit(intents)) })
  await until('the first waits', 120, async () => (await run.task('first')).metadata?.waitsFor === 'site')
  expect(await run.task('first')).toMatchObject({
    status: 'queued',
    metadata: { queueReason: 'waiting for ssh/far: it has not answered yet' },
  })
  answer()
  await until('the second waits', 120, async () => (await run.task('second')).metadata?.waitsFor === 'data')
  expect(await run.task('second')).toMatchObject({
    status: 'preparing',
    metadata: { queueReason: 'waiting for data: first' },
  })
  answer()
  expect(await done).toEqual({ settled: true, completed: 2, failed: 0 })
  for (const name of ['first', 'second']) expect((await run.task(name)).metadata?.queueReason).toBeUndefined()
})

test('a site that is left while another one opens its task asks for its next executor at once', async () => {
  const other = 'ssh/other'
  const run = await makeRun(
    [
      { name: 'there', lane: [0, 0] },
      { name: 'here', lane: [1, 0], after: ['there'] },
    ],
    [1, 1],
    ({ resource_id: id }) => (id.endsWith('-host-1') ? other : site),
  )
  const wakeUps = openRunWakeUps()
  const rests = { settled: false, completed: 0, failed: 0 }
  for (const [opened, outcome] of [
    [other, rests],
    [site, { ...rests, woken: true }],
  ] as const) {
    // The commit after the last look at the ends elsewhere is the one with which the site is left.
    const failpoint = (name: string): void => {
      if (name === 'committed') wakeUps.notify(run.runId, other, new Set([opened]))
    }
    expect(await run.execute(local, { wakeUps, failpoint }).done).toEqual(outcome)
  }
  expect(wakeUps.notify(run.runId, other, new Set([site]))).toBe(false)
})

proved(
  'a site whose run is paused is left once nothing is in flight there, and goes on after the pause',
  async () => {
    const run = await makeRun([
      { name: 'first', run: 'while [ ! -e $FOLDER/go ]; do sleep 0.05; done' },
      { name: 'second', after: ['first'] },
    ])
    const { done } = run.execute(local)
    await until('the first runs', 120, async () => (await run.task('first')).status === 'running')
    expect((await service.call('POST', `/execution-runs/${run.runId}/pause/`)).status).toBe(202)
    writeFileSync(join(run.folder, 'go'), '')
    const paused = { settled: false, completed: 1, failed: 0, paused: true }
    expect(await done).toEqual(paused)
    expect(await run.execute(local).done).toEqual(paused)
    expect((await service.call('POST', `/execution-runs/${run.runId}/resume/`)).status).toBe(202)
    expect(await run.execute(local).done).toEqual({ settled: true, completed: 2, failed: 0 })
  },
)

test('a site of a cancelled run that a worker takes while others are abandoned stays with it', async () => {
  const runs = [(await makeRun([{ name: 'a' }])).runId, (await makeRun([{ name: 'a' }])).runId]
  const abandoned: string[] = []
  const failed = (error: unknown): never => {
    throw error
  }
  // Not committed before they are closed, so that the service does not abandon them.
  await service.db.transaction(async (db) => {
    await db.run(sql`update execution_runs set cancel_requested_at = now() - interval '1 hour'
      where id = any(${runs}::text[])`)
    let commits = (): Promise<unknown> => Promise.resolve()
    const signal = async (_kind: unknown, id: string, _of: number, _name: string, place: string) => {
      abandoned.push(id)
      const other = runs.find((run) => run !== id) ?? ''
      const { epoch } = await claimSite(db, other, place, 'worker')
      commits = () => commitSite(db, other, place, epoch, emptyEntry())
    }
    await abandonUnheldSites({ db, engine: { signal } as never }, failed, new AbortController().signal)
    expect(abandoned).toHaveLength(1)
    expect(await commits()).toMatchObject({ cancelled: true })
    for (const id of runs) await closeRun(db, { id, generation: 1 })
  })
})

test('a cancelled run all of whose sites are held is not read', async () => {
  const { runId } = await makeRun([{ name: 'a' }, { name: 'b' }])
  const failures: unknown[] = []
  // Not committed before it is closed, so that the service does not abandon it.
  await service.db.transaction(async (db) => {
    const look = () =>
      abandonUnheldSites(
        { db, engine: { signal: () => Promise.resolve() } as never },
        (error) => void failures.push(error),
        new AbortController().signal,
      )
    await db.run(
      sql`update execution_runs set cancel_requested_at = now() - interval '1 hour' where id = ${runId}`,
    )
    const sites = await db.many(
      z.object({ site: z.string() }),
      sql`select distinct site from task_executions where execution_run_id = ${runId}`,
    )
    expect(sites).toHaveLength(1)
    for (const { site: held } of sites) await claimSite(db, runId, held, 'worker')
    // A read of this snapshot fails.
    await db.run(sql`update run_snapshots set runtimes = '"none"' where execution_run_id = ${runId}`)
    await look()
    expect(failures).toEqual([])
    await db.run(
      sql`update site_leases set renewed_at = now() - interval '1 hour' where execution_run_id = ${runId}`,
    )
    await look()
    expect(failures).toHaveLength(1)
    await closeRun(db, { id: runId, generation: 1 })
  })
})

test('silence and take-overs are told to those who watch, once each', async () => {
  const run = await makeRun([
    { name: 'a', run: 'while [ ! -e $FOLDER/go ]; do sleep 0.05; done; exit 3', policy: { maxAttempts: 1 } },
    { name: 'b', run: 'while [ ! -e $FOLDER/go ]; do sleep 0.05; done' },
  ])
  const lines: any[] = []
  const { measures, registry } = openMetrics(undefined)
  const log = openLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
  const of = { runId: run.runId, site, connectionId: 'far-c' }
  const reports = openReports(log, measures).site({ ...of, driver: 'ssh' })
  const told = (msg: string): any[] => lines.filter((line) => line.msg === msg)
  const { far, link } = behindLink(local)
  link.down = true
  const frozen = run.execute(far, { reports })
  await until('the silence is told', 120, () => told('a site does not answer').length > 0)
  expect(told('a site does not answer')).toMatchObject([
    { level: 'info', ...of, reason: 'connection reset by peer' },
  ])
  link.down = false
  await until('the answer is told', 120, () => told('a site answers again').length > 0)
  expect(told('a site answers again')).toMatchObject([
    { site, connectionId: 'far-c', seconds: expect.any(Number) },
  ])
  await until(
    'both run',
    120,
    async () => (await run.task('b')).status === 'running' && (await run.task('a')).status === 'running',
  )
  const { done } = run.execute(far, { reports }, 'another')
  await expect(frozen.done).rejects.toThrow('another worker has taken this site of the run over')
  expect(told('a lease was taken over')).toMatchObject([{ runId: run.runId, site, from: 'test' }])
  writeFileSync(join(run.folder, 'go'), '')
  await done
  expect(told('an attempt failed')).toMatchObject([
    { runId: run.runId, site, activityId: run.world.activityId('a'), attempt: 1, exitCode: 3 },
  ])
  const text = await registry.metrics()
  expect(text).toMatch(/^orrery_lease_takeovers_total 1$/m)
  expect(text).toMatch(/^orrery_task_wait_seconds_count\{driver="ssh",cause="site"\} 2$/m)
  const help = /^# HELP orrery_task_wait_seconds (.*)$/m.exec(text)?.[1]?.match(/\w+/g)
  const page = readFileSync(new URL('../../docs/operations.md', import.meta.url), 'utf8')
  const row = /^\| `orrery_task_wait_seconds.*$/m.exec(page)?.[0].match(/(?<=`)\w+(?=`)/g)
  for (const kind of waitKinds)
    expect([kind, help?.includes(kind), row?.includes(kind)]).toEqual([kind, true, true])
  // One that has left the site in order is followed, not taken over from.
  await run.execute(far, { reports }, 'a third').done
  expect(told('a lease was taken over')).toHaveLength(1)
  expect(told('a site does not answer')).toHaveLength(1)
})

test('what waits for its own answer keeps nothing else waiting', async () => {
  const run = await makeRun([
    { name: 'mute' },
    { name: 'a' },
    { name: 'b', after: ['a'] },
    { name: 'c', after: ['b'] },
  ])
  const mute = intentName(run.runId, await run.position('mute'), 1)
  let silent = true
  const driver: RuntimeDriver = {
    ...local,
    collect: (name) =>
      name === mute && silent ? Promise.reject(new DriverError('unknown', 'no answer')) : local.collect(name),
  }
  const { done } = run.execute(driver)
  await until('the others are done', 120, async () => (await run.task('c')).status === 'completed')
  expect((await run.task('mute')).metadata.queueReason).toBe('waiting for ssh/far: no answer')
  silent = false
  expect(await done).toEqual({ settled: true, completed: 4, failed: 0 })
})

test('a site that is silent for longer than it is waited for costs an attempt of its own kind, and what it may still run is stopped later', async () => {
  const run = await makeRun([
    {
      name: 'only',
      run: 'echo $ATTEMPT $$ >> $FOLDER/ledger; [ $ATTEMPT -gt 1 ] || exec sleep 600',
      policy: { maxAttempts: 1 },
    },
  ])
  const first = intentName(run.runId, await run.position('only'), 1)
  // It is started, and nothing is heard of it any more, not even that.
  const { far, link } = behindLink({
    ...local,
    submit: (intents) =>
      local.submit(intents).finally(() => {
        link.down = intents.some(({ name }) => name === first)
      }),
  })
  const { done } = run.execute(far, { patience: { silentSeconds: 1.5, firstPauseSeconds: 0.1 } })
  await until('it was given up', 120, async () => (await run.task('only')).attempt === 2)
  link.down = false
  expect(await done).toEqual({ settled: true, completed: 1, failed: 0 })
  const attempts = (await recordOf(service, run.runId)).activities
  expect(attempts).toMatchObject([
    {
      attempt: 1,
      status: 'failed',
      failureClass: 'infrastructure',
      failureReason: expect.stringMatching(/has not answered for 2 s: connection reset by peer/),
    },
    { attempt: 2, status: 'completed' },
  ])
  // It was ended before the second attempt began, and nothing of it is left to end.
  expect(
    (await sitesWithLeftovers(service.db)).some((left) => left.site === site && left.runId === run.runId),
  ).toBe(false)
  expect((await local.find([first])).get(first)).toMatchObject({ state: 'ended', reason: 'cancelled' })
})

proved(
  'what a silent site never had does not start in a pause, whoever holds the site, and starts when the run goes on',
  async () => {
    const run = await makeRun([{ name: 'only', run: 'echo only >> $FOLDER/ledger' }])
    const { far, link } = behindLink(local)
    const renewals = async (count: number): Promise<void> => {
      const seen = new Set<string>()
      await until('the pause is seen', 120, async () => {
        const [row] = await service.db.prepared<{ at: string }>(
          'renewed',
          'select renewed_at::text as at from site_leases where execution_run_id = $1',
          [run.runId],
        )
        return seen.add((row as { at: string }).at).size > count
      })
    }
    const finds: string[] = []
    const asked: RuntimeDriver = {
      ...far,
      find: (names) => far.find(names).finally(() => finds.push(...names)),
    }
    link.down = true
    const first = run.execute(asked)
    await until(
      'it waits for its site',
      120,
      async () => (await run.task('only')).metadata?.waitsFor === 'site',
    )
    expect((await service.call('POST', `/execution-runs/${run.runId}/pause/`)).status).toBe(202)
    await renewals(2)
    const submits = run.intents.length
    link.down = false
    await until(
      'the site has answered',
      120,
      async () => (await run.task('only')).metadata?.waitsFor === undefined,
    )
    expect(run.intents.length).toBe(submits)
    await renewals(2)
    expect([run.intents.length - submits, run.lines('ledger')]).toEqual([0, []])
    first.stop.abort(new Error('drained'))
    await first.done.catch(() => undefined)
    finds.length = 0
    const { done } = run.execute(asked)
    await until('the next holder asks', 120, () => finds.length > 0)
    await renewals(2)
    expect([run.intents.length - submits, run.lines('ledger')]).toEqual([0, []])
    expect((await service.call('POST', `/execution-runs/${run.runId}/resume/`)).status).toBe(202)
    expect(await done).toEqual({ settled: true, completed: 1, failed: 0 })
    expect(run.lines('ledger')).toEqual(['only'])
  },
)

test('what a silent site never had ends as cancelled where the run stops after a failure', async () => {
  const run = await makeRun([
    {
      name: 'fails',
      run: 'until [ -e $FOLDER/go ]; do sleep 0.05; done; exit 3',
      policy: { maxAttempts: 1 },
    },
    { name: 'never', run: 'echo never >> $FOLDER/ledger' },
  ])
  const never = intentName(run.runId, await run.position('never'), 1)
  let away = true
  const driver: RuntimeDriver = {
    ...local,
    submit: async (intents) => {
      const lost = intents.filter(({ name }) => away && name === never)
      return [
        ...(await local.submit(intents.filter((intent) => !lost.includes(intent)))),
        ...lost.map(({ name }) => ({
          name,
          ok: false as const,
          error: new DriverError('unknown', 'link cut'),
        })),
      ]
    },
  }
  const { done } = run.execute(driver)
  await until(
    'it waits for its site',
    120,
    async () => (await run.task('never')).metadata?.waitsFor === 'site',
  )
  writeFileSync(join(run.folder, 'go'), '')
  await until('the failure', 120, async () => (await run.task('fails')).status === 'failed')
  away = false
  expect(await done).toEqual({ settled: true, completed: 0, failed: 1 })
  expect(await run.task('never')).toMatchObject({
    ...{ attempt: 1, status: 'cancelled', failureReason: 'not run: the run failed before' },
  })
  expect(run.lines('ledger')).toEqual([])
  // Nor does a submit that arrives late start it.
  expect((await local.find([never])).get(never)).toMatchObject({ state: 'ended', reason: 'cancelled' })
})

test('an error of the database before another attempt is no trouble of the site: the activity repeats it', async () => {
  const run = await makeRun([{ name: 'only' }])
  const first = intentName(run.runId, await run.position('only'), 1)
  const driver: RuntimeDriver = {
    ...local,
    submit: (intents) =>
      intents.some(({ name }) => name === first)
        ? Promise.reject(new DriverError('infrastructure', 'the node is gone'))
        : local.submit(intents),
  }
  const patience = { firstPauseSeconds: 0.1 }
  const broken = Object.assign(new Error('value out of range: overflow'), { code: '22003' })
  const db = new Proxy(service.db, {
    get: (target, key) =>
      key === 'many' || key === 'values'
        ? () => Promise.reject(broken)
        : Reflect.get(target, key).bind(target),
  })
  await expect(run.execute(driver, { db, patience }).done).rejects.toBe(broken)
  const { attempt, status, metadata } = await run.task('only')
  expect([attempt, status, metadata?.waitsFor]).toEqual([2, 'preparing', undefined])
  expect(await run.execute(driver).done).toEqual({ settled: true, completed: 1, failed: 0 })
})

test.each([false, true])(
  'cancel with the site away ends the run, says what could not be stopped, and stops it later (no answer at all: %s)',
  async (hangs) => {
    const run = await makeRun([
      { name: 'runs', run: 'echo $$ >> $FOLDER/ledger; exec sleep 600' },
      { name: 'waits', after: ['runs'] },
    ])
    const { far, link } = behindLink(local)
    let [isAsked, passedSeconds] = [false, 0]
    const asked: RuntimeDriver = {
      ...far,
      cancel: (...of) => {
        isAsked = true
        return far.cancel(...of)
      },
    }
    const { done } = run.execute(asked, { monotonic: () => performance.now() / 1_000 + passedSeconds })
    await until('it runs', 120, () => run.lines('ledger').length === 1)
    Object.assign(link, { down: true, hangs })
    expect((await service.call('POST', `/execution-runs/${run.runId}/cancel/`)).status).toBe(202)
    await until('the site is asked to stop it', 120, () => isAsked)
    // The time for a site that answers nothing, or that is out of reach.
    passedSeconds = hangs ? 15 : 5
    expect(await done).toMatchObject({ settled: true, completed: 0 })
    expect(await run.task('runs')).toMatchObject({
      status: 'cancelled',
      failureReason: expect.stringMatching(
        hangs
          ? /could not be stopped at ssh\/far.*did not confirm it/
          : /could not be stopped at ssh\/far.*connection reset by peer/,
      ),
    })
    const [pid] = run.lines('ledger') as [string]
    expect(existsSync(`/proc/${pid}`)).toBe(true)
    link.hangs = false
    expect(await stopLeftovers(service.db, { site, runId: run.runId }, far)).toBe(1)
    const [left] = await service.db.prepared<{ name: string; last_error: string; tries: number }>(
      'leftover',
      'select name, last_error, tries from site_leftovers',
      [],
    )
    expect(left).toMatchObject({ last_error: 'connection reset by peer', tries: 1 })
    link.down = false
    await service.db.prepared('due', 'update site_leftovers set next_try_at = now()', [])
    expect(await stopLeftovers(service.db, { site, runId: run.runId }, far)).toBe(0)
    expect(existsSync(`/proc/${pid}`)).toBe(false)
  },
)

test.each([false, true])(
  'what lives at a site that is given up ends before the next try of the run takes its place (the site was opened: %s)',
  async (opened) => {
    const run = await makeRun([
      {
        name: 'only',
        run: `[ $ATTEMPT -gt 1 ] || { echo $$ > $FOLDER/first; exec sleep 600; }
          ! kill -0 "$(cat $FOLDER/first)"`,
      },
    ])
    await service.db.prepared('own_names', 'update execution_runs set effect_key = id where id = $1', [
      run.runId,
    ])
    await service.db.prepared('at_far', 'update task_executions set site = $2 where execution_run_id = $1', [
      run.runId,
      site,
    ])
    await service.db.prepared(
      'way_to_far',
      `update run_snapshots set runtimes = (select jsonb_agg(runtime ||
        '{"driver": "ssh", "configuration": {"connectionId": "far"}}') from jsonb_array_elements(runtimes) runtime)
       where execution_run_id = $1`,
      [run.runId],
    )
    const { far, link } = behindLink(local)
    const { done, stop } = run.execute(far)
    await until('it runs', 120, () => existsSync(join(run.folder, 'first')))
    stop.abort(new Error('drained'))
    await expect(done).rejects.toThrow('drained')
    link.down = true
    const fault = (): never => {
      throw new TypeError('broken')
    }
    const { runSite: activity } = executionRunActivities({
      ...{ db: service.db, reports: quietReports(), draining: new AbortController().signal, hostId: 'far' },
      sites: { of: opened ? () => ({ driver: far, hostId: 'far' }) : fault },
      clock: fault,
    } as never)
    const call = () => new MockActivityEnvironment().run(() => activity(run.runId, 1, site))
    for (let failures = 0; failures < 29; failures++) await expect(call()).rejects.toThrow('broken')
    await expect(call()).rejects.toThrow('site ssh/far was given up')
    expect(await closeRun(service.db, { id: run.runId, generation: 1 })).toMatchObject({ status: 'failed' })
    link.down = false
    await service.call('POST', `/execution-runs/${run.runId}/retry/`)
    await openRun(service.db, { id: run.runId, generation: 2 })
    expect(await run.execute(far).done).toEqual({ settled: true, completed: 1, failed: 0 })
    expect(await run.task('only')).toMatchObject({ attempt: 2, status: 'completed' })
    const left = await service.db.prepared(
      'left',
      'select name from site_leftovers where execution_run_id = $1',
      [run.runId],
    )
    expect(left).toEqual([])
  },
)

test('what is left of a deleted run does not end the next run of its id before it is opened', async () => {
  const world = await makeWorld(service, { name: 'anew', tasks: [{ name: 'only' }] })
  await service.post('/execution-runs/', {
    ...{ id: 'anew', schedulePlanId: world.planId, mode: 'real' },
    // It stays as it was accepted.
    ...{ budget: 0, onBudget: 'ask' },
  })
  const unused = (): never => {
    throw new Error('a site was opened')
  }
  const { runSite: activity } = executionRunActivities({
    ...{ db: service.db, reports: quietReports(), draining: new AbortController().signal, hostId: 'far' },
    ...{ sites: { of: unused }, clock: unused },
  } as never)
  const outcome = await new MockActivityEnvironment().run(() => activity('anew', 1, 'local@far'))
  expect(outcome).toMatchObject({ completed: 0 })
  expect((await service.get('/execution-runs/anew/')).run.status).toBe('created')
})

test('waiting in the queue of the site is shown with its cause, and counted apart; so is where it ran and what was brought', async () => {
  const run = await makeRun([{ name: 'made' }, { name: 'also' }, { name: 'job', after: ['made', 'also'] }])
  await service.db.prepared(
    'namesakes',
    `update task_executions set external_id = 'made' where execution_run_id = $1 and activity_id = $2`,
    [run.runId, run.world.activityId('also')],
  )
  const job = intentName(run.runId, await run.position('job'), 1)
  const submittedAt = Date.now() / 1_000
  let queued: string | undefined = 'Priority'
  const none = openNoneDriver()
  const driver: RuntimeDriver = {
    ...none,
    find: async (names) => {
      const states = await none.find(names)
      if (names.includes(job))
        states.set(
          job,
          queued === undefined
            ? { state: 'running', externalId: '4711', startedAt: 1 }
            : { state: 'queued', externalId: '4711', submittedAt, cause: queued },
        )
      return states
    },
    watch: (names, onEnd) =>
      none.watch(
        names.filter((name) => name !== job || queued === 'over'),
        onEnd,
      ),
    collect: async (name): Promise<Collected> => {
      const collected = await none.collect(name)
      if (name !== job) return collected
      const finishedAt = Date.now() / 1_000
      const state: TaskState = {
        state: 'ended',
        externalId: '4711',
        startedAt: finishedAt - 0.1,
        finishedAt,
        exitCode: 0,
        signal: null,
        reason: 'exited',
      }
      return { ...collected, state, queueSeconds: 0.5, node: 'n1' }
    },
  }
  const facts = {
    producer: await run.position('also'),
    fromSite: 'local@here',
    toSite: site,
    strategy: 'gateway' as const,
    reason: 'no other way',
    bytes: 5,
    networkBytes: 7,
    files: 1,
    startedAt: submittedAt,
    finishedAt: submittedAt + 1,
  }
  let tell: (name: string, facts: TransferFacts) => Promise<void> = () => Promise.resolve()
  const onTransfer = (listener: typeof tell): void => void (tell = listener)
  const bringing: RuntimeDriver = {
    ...driver,
    submit: async (intents) => {
      for (const { name } of intents) if (name === job) await tell(name, facts)
      return driver.submit(intents)
    },
  }
  const first = run.execute(bringing, { onTransfer })
  await until('it is queued', 120, async () => (await run.task('job')).status === 'queued')
  expect(await run.task('job')).toMatchObject({
    metadata: { queueReason: 'at the site: Priority', waitsFor: 'queue' },
  })
  queued = 'Resources'
  await until(
    'the cause changes',
    120,
    async () => (await run.task('job')).metadata?.queueReason === 'at the site: Resources',
  )
  queued = undefined
  await until('it runs', 120, async () => (await run.task('job')).status === 'running')
  expect((await run.task('job')).metadata).toBeUndefined()
  first.stop.abort(new Error('drained'))
  await first.done.catch(() => undefined)
  queued = 'over'
  const { done } = run.execute({ ...driver, find: none.find }, { onTransfer })
  expect(await done).toMatchObject({ settled: true, completed: 3 })
  const [row] = await service.db.prepared<Record<string, unknown>>(
    'job_row',
    'select site_queue_seconds, external_id_at_site, metadata, transfer_seconds, transfer_bytes ' +
      'from task_executions where handle_name = $1',
    [job],
  )
  expect(row).toEqual({
    site_queue_seconds: 0.5,
    external_id_at_site: '4711',
    metadata: { node: 'n1' },
    transfer_seconds: 1,
    transfer_bytes: 5,
  })
  const { items } = await service.get(`/execution-runs/${run.runId}/data-transfers/`)
  expect(items).toMatchObject([
    {
      producerActivityId: run.world.activityId('also'),
      strategy: 'gateway' as const,
      bytes: 5,
      networkBytes: 7,
      filesTransferred: 1,
      cost: 2.5,
      route: { links: ['wan'], strategy: 'gateway', reason: 'no other way', from: 'local@here', to: site },
    },
  ])
})

test('what is on its way to a site when its executor leaves is given up, and its task is not passed on', async () => {
  const run = await makeRun([{ name: 'also' }, { name: 'job', after: ['also'] }])
  const job = intentName(run.runId, await run.position('job'), 1)
  const producer = await run.position('also')
  let tell: (name: string, facts: TransferFacts) => Promise<void> = () => Promise.resolve()
  const left = Promise.withResolvers<undefined>()
  let arrived: Promise<void> | undefined
  const bringing: RuntimeDriver = {
    ...local,
    submit: async (intents) => {
      if (intents.some(({ name }) => name === job)) {
        arrived = left.promise.then(() =>
          tell(job, {
            ...{
              producer,
              fromSite: 'local@here',
              toSite: site,
              strategy: 'gateway',
              reason: 'no other way',
            },
            ...{ bytes: 5, networkBytes: 7, files: 1, startedAt: 0, finishedAt: 1 },
          }),
        )
        await arrived
      }
      return local.submit(intents)
    },
  }
  const first = run.execute(bringing, {
    onTransfer: (listener) => void (tell = listener),
    leave: () => left.resolve(undefined),
  })
  await until('its files are on their way', 120, () => arrived !== undefined)
  first.stop.abort(new Error('drained'))
  await first.done.catch(() => undefined)
  await expect(arrived).rejects.toMatchObject({ trouble: 'unknown' })
  expect((await local.find([job])).get(job)).toEqual({ state: 'unknown' })
})

proved(
  '50 failures of the site under one activity that may fail once: it completes, and each attempt keeps the words of the site',
  async () => {
    const run = await makeRun([{ name: 'unlucky', policy: { maxAttempts: 1 } }])
    const none = openNoneDriver()
    const causes = ['NODE_FAIL', 'PREEMPTED', 'BOOT_FAIL', 'walltime']
    const position = await run.position('unlucky')
    const number = new Map(
      Array.from({ length: 60 }, (_, k) => [intentName(run.runId, position, k + 1), k + 1]),
    )
    const extensions: number[] = []
    const driver: RuntimeDriver = {
      ...none,
      submit: (intents) => {
        for (const { walltimeExtensions } of intents) extensions.push(walltimeExtensions ?? 0)
        return none.submit(intents)
      },
      collect: async (name) => {
        const attempt = number.get(name) as number
        const collected = await none.collect(name)
        const cause = causes[attempt % causes.length] as string
        if (attempt > 50) return collected
        if (cause === 'walltime')
          return {
            ...collected,
            state: {
              ...(collected.state as Extract<TaskState, { state: 'ended' }>),
              exitCode: null,
              reason: 'walltime',
            },
          }
        throw new DriverError('unknown', 'it is lost')
      },
      find: async (names) =>
        new Map(
          names.map((name) => [
            name,
            {
              state: 'lost',
              externalId: '1',
              startedAt: 1,
              cause: causes[(number.get(name) as number) % causes.length] as string,
            },
          ]),
        ),
    }
    expect(
      await run.execute(driver, { patience: { firstPauseSeconds: 0.001, longestPauseSeconds: 0.001 } }).done,
    ).toEqual({
      settled: true,
      completed: 1,
      failed: 0,
    })
    const { activities } = await recordOf(service, run.runId)
    expect(activities).toHaveLength(51)
    expect(activities.at(-1)).toMatchObject({ status: 'completed', attempt: 51 })
    expect(
      activities.filter((task: any) =>
        /NODE_FAIL|PREEMPTED|BOOT_FAIL|own time limit/.test(task.failureReason),
      ),
    ).toHaveLength(50)
    expect(extensions.at(-1)).toBe(12)
  },
)

proved(
  'a holder that dies among tasks that follow each other at once: the next one finds what had begun without a record, and starts the rest once',
  async () => {
    const names = Array.from({ length: 40 }, (_, i) => `t${String(i)}`)
    const run = await makeRun(
      names.map((name) => ({ name, run: `echo ${name} >> $FOLDER/ledger; sleep 0.02` })),
      [1],
    )
    const dead = new Error('killed')
    let deaths = 0
    let unrecorded = 0
    for (let turn = 0; ; turn++) {
      const from = run.lines('ledger').length
      // Dies before a commit in which starts and ends would have been recorded.
      const failpoint = (place: string): void => {
        if (turn < 4 && place === 'before-commit' && run.lines('ledger').length >= from + 6) throw dead
      }
      const outcome = await run
        .execute(local, { aheadPerLane: 16, failpoint })
        .done.catch((error: unknown) => error)
      if (outcome !== dead) {
        expect(outcome).toEqual({ settled: true, completed: 40, failed: 0 })
        break
      }
      deaths += 1
      const [row] = await service.db.prepared<{ begun: number }>(
        'begun',
        'select count(*) as begun from task_executions where execution_run_id = $1 and handle_started_at is not null',
        [run.runId],
      )
      if (run.lines('ledger').length > Number(row?.begun)) unrecorded += 1
    }
    expect(deaths).toBe(4)
    expect(unrecorded).toBeGreaterThan(0)
    expect(run.lines('ledger')).toEqual(names)
    expect(
      (await recordOf(service, run.runId)).activities.map(({ attempt, status }) => [attempt, status]),
    ).toEqual(names.map(() => [1, 'completed']))
    const [left] = await service.db.prepared<{ n: number }>(
      'lanes_left',
      'select count(*) as n from lane_leases where execution_run_id = $1',
      [run.runId],
    )
    expect(Number(left?.n)).toBe(0)
  },
)

test('a holder that dies before it starts what it has committed: after a cancel the next one starts nothing', async () => {
  const run = await makeRun([{ name: 'never', run: 'echo never >> $FOLDER/ledger' }])
  const dead = new Error('killed')
  const failpoint = (place: string): void => {
    if (place === 'committed') throw dead
  }
  await expect(run.execute(local, { failpoint }).done).rejects.toBe(dead)
  await requestCancel(service.db, runKind, { id: run.runId }, { actorId: 'test' })
  expect(await run.execute(local).done).toEqual({ settled: true, completed: 0, failed: 0 })
  expect(run.intents).toEqual([])
  expect(await run.task('never')).toMatchObject({ attempt: 1, status: 'cancelled' })
})
