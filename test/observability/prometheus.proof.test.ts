import { expect } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'
import { sql } from '../../src/db/sql.ts'
import { version } from '../../src/version.ts'
import { openAdmin, type Admin } from '../../src/programs/admin.ts'
import { needs } from '../support/needs.ts'
import { startPrometheus, type Prometheus } from '../support/prometheus.ts'
import { eventually, makeVaultKeyFile } from '../support/reach.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { startSshServer, type SshServer } from '../support/ssh-server.ts'
import { makeWorld } from '../support/worlds.ts'

// What operators have: Prometheus scrapes the real service, judges the rules of deploy/, and
// answers the dashboard's queries.

const { afterAll, beforeAll, describe, test } = needs('prometheus')

type Json = any

const root = join(import.meta.dirname, '../..')
const read = (path: string): string => readFileSync(join(root, path), 'utf8')
const rules: Json[] = parse(read('deploy/prometheus/rules.yml')).groups.flatMap((group: Json) => group.rules)
const dashboard: Json = JSON.parse(read('deploy/grafana/orrery.json'))
const queries: string[] = dashboard.panels.flatMap((panel: Json) =>
  (panel.targets ?? []).map(({ expr }: Json) => expr),
)

let service: TestService
let admin: Admin
let prometheus: Prometheus
let ssh: SshServer
const logged: Json[] = []

beforeAll(async () => {
  service = await openService({
    environment: {
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_LOG_LEVEL: 'info',
    },
    log: { write: (line) => void logged.push(JSON.parse(line)) },
  })
  admin = await openAdmin({
    address: { host: '127.0.0.1', port: 0 },
    metrics: service.metrics,
    checks: () => service.service.checks,
  })
  prometheus = await startPrometheus(new URL(admin.url).host)
  await eventually(
    'the first scrape',
    30,
    async () => (await prometheus.query('up == 1').catch(() => [])).length === 1,
  )
}, 240_000)
afterAll(async () => {
  await prometheus?.close()
  await ssh?.close()
  await admin?.close()
  await service?.[Symbol.asyncDispose]()
}, 120_000)

const valueOf = async (query: string): Promise<number | undefined> => {
  const [first] = await prometheus.query(query)
  return first === undefined ? undefined : Number(first.value[1])
}
const reaches = (query: string, value: number): Promise<unknown> =>
  eventually(`${query} is ${String(value)}`, 30, async () => (await valueOf(query)) === value)
const fires = (alertname: string, labels: Record<string, string> = {}): Promise<unknown> =>
  eventually(`${alertname} fires`, 60, async () =>
    (await prometheus.firing()).some((alert) =>
      Object.entries({ alertname, ...labels }).every(([name, value]) => alert[name] === value),
    ),
  )
const start = (id: string, planId: string, mode = 'real'): Promise<Json> =>
  service.post('/execution-runs/', { id, schedulePlanId: planId, mode })
const lineOf = (msg: string, members: Json): Json =>
  logged.find((line) => line.msg === msg && expect.objectContaining(members).asymmetricMatch(line))

test('promtool takes the rules, and each alert is quiet without its cause and fires with it', () => {
  const folder = join(root, 'deploy/prometheus')
  execFileSync('/usr/bin/promtool', ['check', 'config', 'prometheus.yml'], { cwd: folder })
  execFileSync('/usr/bin/promtool', ['test', 'rules', 'rules.test.yml'], { cwd: folder })
  const tested = parse(read('deploy/prometheus/rules.test.yml')).tests.flatMap(
    ({ alert_rule_test }: Json) => alert_rule_test,
  )
  for (const { alert } of rules) {
    const outcomes = tested
      .filter(({ alertname }: Json) => alertname === alert)
      .map(({ exp_alerts }: Json) => exp_alerts.length)
    expect([alert, outcomes]).toEqual([alert, expect.arrayContaining([0, 1])])
  }
})

describe('runs are counted, and are lines of the log', () => {
  test('one that completes, with its figures', async () => {
    const world = await makeWorld(service, {
      name: 'fine',
      tasks: [
        { name: 'a', run: 'echo x > f' },
        { name: 'b', after: ['a'] },
      ],
    })
    await start('fine-run', world.planId)
    const { run } = await service.finished('fine-run')
    expect(run.status).toBe('completed')
    await reaches('orrery_runs_ended_total{status="completed",mode="real"}', 1)
    await reaches('orrery_task_attempts_ended_total{driver="local",status="completed"}', 2)
    await reaches('orrery_run_seconds_count', 1)
    await reaches('orrery_plan_error_ratio_count', 1)
    expect(await valueOf('orrery_commit_seconds_count')).toBeGreaterThan(0)
    expect(run.cost).toBeGreaterThan(0)
    await reaches('orrery_cost_total', run.cost)
    expect(await valueOf('sum(orrery_db_pool{state=~"used|idle|unopened"})')).toBeGreaterThan(0)
    expect(await valueOf(`count(orrery_build_info{version="${version}"} == 1)`)).toBe(1)
    expect(await valueOf('orrery_ready{part="database"}')).toBe(1)
    expect(
      await prometheus.query('{__name__=~"orrery_.+",run!=""} or {__name__=~"orrery_.+",run_id!=""}'),
    ).toEqual([])
    expect(
      lineOf('a run was accepted', { runId: 'fine-run', mode: 'real', planId: world.planId, activities: 2 }),
    ).toBeDefined()
    expect(lineOf('a run started', { runId: 'fine-run' })).toBeDefined()
    expect(lineOf('a run ended', { runId: 'fine-run' })).toMatchObject({
      ...{ level: 'info', status: 'completed', activities: 2, completed: 2, failed: 0, cost: run.cost },
      seconds: expect.any(Number),
      planError: expect.any(Number),
    })
  }, 120_000)

  test('one that fails: its attempts by class, and RunsFail fires', async () => {
    const task = { name: 'a', run: 'echo no luck >&2; exit 3', policy: { maxAttempts: 2 } }
    const world = await makeWorld(service, { name: 'broken', tasks: [task] })
    await start('broken-run', world.planId)
    await service.finished('broken-run')
    await reaches('orrery_task_attempts_ended_total{driver="local",status="failed",failure_class="user"}', 2)
    await fires('RunsFail')
    for (const attempt of [1, 2])
      expect(lineOf('an attempt failed', { runId: 'broken-run', attempt })).toMatchObject({
        ...{
          level: 'info',
          activityId: 'broken-a',
          failureClass: 'user',
          exitCode: 3,
          site: expect.stringContaining('local@'),
        },
        reason: expect.stringContaining('no luck'),
      })
    expect(lineOf('a run ended', { runId: 'broken-run' })).toMatchObject({
      status: 'failed',
      reason: expect.stringContaining('no luck'),
    })
  }, 120_000)

  test('a simulation is counted by its mode and costs nothing', async () => {
    await start('simulated', 'fine-plan', 'simulation')
    await service.finished('simulated')
    await reaches('orrery_runs_ended_total{status="completed",mode="simulation"}', 1)
    expect(await valueOf('orrery_run_seconds_count')).toBe(2)
  }, 120_000)

  test('runs that take longer than planned fire PlanErrorHigh', async () => {
    const world = await makeWorld(service, {
      name: 'late',
      tasks: [{ name: 'a', run: 'sleep 0.5', seconds: 0.05 }],
    })
    for (const id of ['late-1', 'late-2', 'late-3']) {
      await start(id, world.planId)
      await service.finished(id)
    }
    await fires('PlanErrorHigh')
  }, 120_000)
})

test('a planning session: the time of its algorithm, and a line at its end', async () => {
  const world = await makeWorld(service, { name: 'plan', tasks: [{ name: 'a' }] })
  const of = {
    workflowVersionId: world.workflowVersionId,
    executionScopeId: 'plan-scope',
    networkTopologyId: 'plan-network',
  }
  await service.post('/planning-sessions/', { id: 'session-1', ...of, algorithms: [{ id: 'heft' }] })
  await reaches('orrery_planning_seconds_count{algorithm="heft"}', 1)
  await eventually(
    'the end is told',
    20,
    async () => lineOf('a session ended', { sessionId: 'session-1', status: 'completed' }) !== undefined,
  )
}, 60_000)

test('open runs and their tasks are gauges of the record, and a terminated workflow fires WorkflowRestarted', async () => {
  const world = await makeWorld(service, {
    name: 'long',
    cores: [1],
    tasks: [
      { name: 'a', run: 'sleep 300' },
      { name: 'b', after: ['a'] },
    ],
  })
  await start('long-run', world.planId)
  await reaches('orrery_runs{state="running",mode="real"}', 1)
  await reaches('sum(orrery_tasks{site=~"local@.+",state="running"})', 1)
  await reaches('sum(orrery_tasks{site=~"local@.+",state="blocked"})', 1)
  const stream = new AbortController()
  const events = await fetch(`${service.baseUrl}/execution-runs/long-run/events/`, {
    headers: { accept: 'text/event-stream' },
    signal: stream.signal,
  })
  await reaches('orrery_event_streams', 1)
  stream.abort()
  await events.text().catch(() => '')
  await reaches('orrery_event_streams', 0)

  const connection = await Connection.connect({ address: temporalAddress() })
  await new Client({ connection, namespace: service.namespace }).workflow
    .getHandle('execution-run/long-run/1')
    .terminate()
  await connection.close()
  await fires('WorkflowRestarted', { kind: 'execution-run' })
  expect(lineOf('the workflow of an open record was started again', { runId: 'long-run' })).toBeDefined()
  await service.post('/execution-runs/long-run/cancel/')
  await service.finished('long-run')
  await reaches('orrery_runs{state="running",mode="real"}', 0)
  await reaches('orrery_runs_ended_total{status="cancelled",mode="real"}', 1)
}, 200_000)

test('a site whose lease other processes take again and again fires LeaseFlaps', async () => {
  const world = await makeWorld(service, { name: 'flaps', tasks: [{ name: 'a', run: 'sleep 86400' }] })
  await start('flaps', world.planId)
  await reaches('orrery_runs{state="running",mode="real"}', 1)
  const taken = (): number =>
    logged.filter(({ msg, runId }) => msg === 'a lease was taken over' && runId === 'flaps').length
  for (let times = 1; times <= 7; times++) {
    await service.db.run(
      sql`update site_leases set holder = 'another', epoch = epoch + 1 where execution_run_id = 'flaps'`,
    )
    await eventually('the lease is taken back', 120, async () => taken() === times)
  }
  await fires('LeaseFlaps')
  await service.post('/execution-runs/flaps/cancel/')
  expect((await service.finished('flaps')).run.status).toBe('cancelled')
})

test('a connection that waits for a person fires LoginNeeded until somebody has logged in', async () => {
  ssh = await startSshServer({
    second: {
      rounds: [{ prompts: [{ prompt: 'Code: ', echo: false }], judge: ([given]) => given === '12' }],
    },
  })
  await service.post('/ssh-keys/import/', { id: 'person', privateKey: ssh.privateKey })
  const environmentId = 'far'
  await service.post('/environments/', {
    environment: { id: environmentId, name: 'far' },
    version: { id: 'far-v1', version: 1 },
  })
  await service.ok('PUT', '/environment-connections/far-c/', {
    ...{
      id: 'far-c',
      name: 'far-c',
      environmentId,
      type: 'ssh',
      endpoint: `127.0.0.1:${String(ssh.port)}`,
      username: 'root',
    },
    credentialRef: 'vault:ssh-key/person',
    configuration: { knownHosts: `[127.0.0.1]:${String(ssh.port)} ${ssh.hostKey}` },
  })
  await service.post('/environment-connections/far-c/health/')
  await fires('LoginNeeded', { connection: 'far-c' })
  await reaches('orrery_connection_up{connection="far-c"}', 0)
  expect(
    logged.filter(({ msg, connectionId }) => msg === 'a login is needed' && connectionId === 'far-c'),
  ).toHaveLength(1)
  expect((await service.post('/environment-connections/far-c/login/', { answers: ['12'] })).state).toBe(
    'connected',
  )
  await service.post('/environment-connections/far-c/health/')
  await reaches('orrery_connection_up{connection="far-c"}', 1)
  await reaches('orrery_connection_waits_for_login{connection="far-c"}', 0)
  expect(
    lineOf('a connection changed', { connectionId: 'far-c', status: 'online', before: 'offline' }),
  ).toBeDefined()
}, 120_000)

test('the dashboard asks for what the service has, and Prometheus answers each of its queries', async () => {
  expect(queries.length).toBeGreaterThan(20)
  for (const query of queries) await prometheus.query(query)
  const served = new Set(
    [...(await (await fetch(`${admin.url}/metrics`)).text()).matchAll(/^# TYPE (\S+)/gm)].map(
      ([, name]) => name,
    ),
  )
  const named = (texts: readonly string[]): string[] =>
    texts
      .flatMap((text) => text.match(/\b(?:orrery|nodejs|process)_[a-z0-9_]+/g) ?? [])
      .map((name) => name.replace(/_(bucket|sum|count)$/, ''))
  const unknown = named([...queries, ...rules.map(({ expr }) => expr)]).filter((name) => !served.has(name))
  expect(unknown).toEqual([])
  // Each figure of ours is shown by the dashboard, and is in the documents.
  const ours = [...served].filter((name) => name?.startsWith('orrery_'))
  const shown = named(queries)
  const beside = ['orrery_site_leftovers_oldest_seconds']
  expect(ours.filter((name) => !shown.includes(name as string) && !beside.includes(name as string))).toEqual(
    [],
  )
  const operations = read('docs/operations.md')
  expect(
    [...ours, ...rules.map(({ alert }) => alert)].filter(
      (name) => !operations.includes(`\`${name as string}`),
    ),
  ).toEqual([])
}, 60_000)
