import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { runKind } from '../../src/domains/execution-runs/operation.ts'
import { requestCancel } from '../../src/operations/records.ts'
import { until } from '../failures/programs.ts'
import { eventually, makeVaultKeyFile, onHost } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { startSshServer } from '../support/ssh-server.ts'
import { makeWorld, type World } from '../support/worlds.ts'
import { environmentOf, localStorage } from '../storages/world.ts'

/** Runs that are over are deleted, with their records and their files. */

const root = join(runFolder(), 'deletion-storages')
let service: TestService
beforeAll(async () => {
  mkdirSync(join(root, 'kept'), { recursive: true })
  service = await openService({
    environment: {
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_LOCAL_STORAGE_ROOT: root,
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
})
afterAll(() => service?.[Symbol.asyncDispose]())

const start = (id: string, { planId }: World, mode = 'real') =>
  service.post('/execution-runs/', { id, schedulePlanId: planId, mode })
const remove = (id: string) => service.call('DELETE', `/execution-runs/${id}/`)
const run = async (id: string, world: World, mode = 'real') => {
  await start(id, world, mode)
  return service.finished(id)
}
const directoriesOf = async (id: string): Promise<string[]> => {
  const rows = await service.db.prepared<{ directory: string }>(
    'directories',
    'select directory from task_executions where execution_run_id = $1 and directory is not null',
    [id],
  )
  return rows.map(({ directory }) => directory)
}

/** The tables in whose rows an id begins a value. */
const tablesWith = async (id: string): Promise<string[]> => {
  const tables = await service.db.prepared<{ name: string }>(
    'tables',
    `select relname as name from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace
      order by 1`,
    [],
  )
  const found: string[] = []
  for (const { name } of tables) {
    const rows = await service.db.prepared(
      `rows of ${name}`,
      `select 1 from "${name}" t where strpos(to_jsonb(t)::text, $1) > 0 limit 1`,
      [`"${id}`],
    )
    if (rows.length > 0) found.push(name)
  }
  return found
}
const onlyAudit = async (id: string): Promise<void> => {
  let tables: string[] = []
  await eventually('only the audit knows it', 30, async () => {
    tables = await tablesWith(id)
    return tables.length === 1
  }).catch(() => undefined)
  expect(tables).toEqual(['audit_events'])
}

test('a run that is over goes with its rows and files; another run of its plan, and the audit, stay', async () => {
  const world = await makeWorld(service, {
    name: 'gone',
    tasks: [
      { name: 'first', run: 'echo 1 > out.txt; mkdir closed; touch closed/x; chmod 500 closed' },
      { name: 'second', after: ['first'], run: 'cat out.txt' },
    ],
  })
  await run('stays', world)
  await start('gone-run', world)
  const open = await remove('gone-run')
  expect([open.status, open.body.code]).toEqual([409, 'conflict'])
  expect(['created', 'running']).toContain(open.body.state)
  expect((await service.finished('gone-run')).run.status).toBe('completed')
  const directories = await directoriesOf('gone-run')
  expect(directories).toHaveLength(2)
  expect(directories.every((each) => existsSync(each))).toBe(true)
  expect(await tablesWith('gone-run')).toEqual(expect.arrayContaining(['execution_runs', 'task_executions']))

  expect((await remove('gone-run')).status).toBe(204)
  for (const path of ['', 'summary/', 'activities/', 'events/', 'activities/gone-first/logs/'])
    expect((await service.call('GET', `/execution-runs/gone-run/${path}`)).status).toBe(404)
  expect((await remove('gone-run')).status).toBe(404)
  expect((await service.call('POST', '/execution-runs/gone-run/retry/')).status).toBe(404)
  const scope = dirname(dirname(directories[0] ?? ''))
  await eventually('the files are gone', 20, () => Promise.resolve(!existsSync(scope)))
  await onlyAudit('gone-run')
  const items = await service.get('/audit-events/?executionId=gone-run')
  const types = items.map(({ eventType }: { eventType: string }) => eventType)
  expect(types).toEqual(expect.arrayContaining(['execution.run.completed', 'execution.run.deleted']))
  expect((await service.get('/audit-events/verify/')).first).toBeUndefined()

  expect((await service.get('/execution-runs/stays/')).run.status).toBe('completed')
  for (const directory of await directoriesOf('stays')) expect(existsSync(directory)).toBe(true)
  // The id is free again, and the plan belongs to its last run.
  expect((await run('gone-run', world, 'simulation')).run.status).toBe('completed')
  const verdict = await until('the seals of its records', 120, async () => {
    const found = await service.get('/audit-events/verify/')
    return found.unsealed === 0 ? found : undefined
  })
  // Both ends are on the trail, and only the later one has events to compare.
  expect(verdict.first).toBeUndefined()
  for (const id of ['gone-run', 'stays']) {
    expect((await service.call('DELETE', `/schedule-plans/${world.planId}/`)).status).toBe(422)
    expect((await remove(id)).status).toBe(204)
  }
  expect((await service.call('DELETE', `/schedule-plans/${world.planId}/`)).status).toBe(204)
})

test('the copy of a workflow goes with the last run that uses it', async () => {
  const world = await makeWorld(service, { name: 'copied', tasks: [{ name: 'only' }] })
  const { version } = await service.get('/workflow-definitions/copied/')
  const workflow = {
    ...version,
    activities: version.activities.map((activity: object) => ({ ...activity, priority: 7 })),
  }
  const copies = () =>
    service.db.prepared('copies', "select 1 from workflow_versions where id like 'copied-v1#%'", [])
  for (const id of ['copied-1', 'copied-2']) {
    const made = { id, schedulePlanId: world.planId, mode: 'simulation' }
    await service.post('/execution-runs/', { run: made, workflow })
    await service.finished(id)
  }
  expect(await copies()).toHaveLength(1)
  expect([(await remove('copied-1')).status, await copies()]).toMatchObject([204, [{}]])
  expect([(await remove('copied-2')).status, await copies()]).toEqual([204, []])
})

test('the end of a deleted run does not reach the next run of its id', async () => {
  const world = await makeWorld(service, { name: 'anew', tasks: [{ name: 'only' }] })
  await start('anew', world)
  await eventually('it is over', 120, async () => (await remove('anew')).status === 204)
  const { run: next } = await run('anew', world)
  expect([next.status, next.failureReason]).toEqual(['completed', undefined])
})

test('a late cancel of a deleted run that waited for approval does not reach the next run of its id', async () => {
  const world = await makeWorld(service, { name: 'asked', launch: 'none', tasks: [{ name: 'only' }] })
  const ask = { id: 'asked', schedulePlanId: world.planId, mode: 'real', budget: 1e-9, onBudget: 'ask' }
  await service.post('/execution-runs/', ask)
  const waits = async () => (await service.get('/execution-runs/asked/')).live?.waitingFor === 'approval'
  await eventually('it waits', 120, waits)
  // As the API leaves a run that it cancels while Temporal is away.
  await requestCancel(service.db, runKind, { id: 'asked' }, { actorId: 'test' })
  expect((await remove('asked')).status).toBe(204)
  await service.post('/execution-runs/', ask)
  const connection = await Connection.connect({ address: temporalAddress() })
  const handle = new Client({ connection, namespace: service.namespace }).workflow.getHandle(
    'execution-run/asked/1',
  )
  const { runId } = await handle.describe()
  await handle.cancel()
  await eventually('the workflow of the next one', 120, async () => (await handle.describe()).runId !== runId)
  await connection.close()
  await eventually('the next one waits', 120, waits)
  await service.post('/execution-runs/asked/approve/')
  expect((await service.finished('asked')).run.status).toBe('completed')
})

test('promoted data that names the run is named, and stands in its way until its file is deleted', async () => {
  writeFileSync(join(root, 'kept', 'table.csv'), 'a,b\n')
  await service.post('/environments/', environmentOf('keeps', [localStorage('kept', join(root, 'kept'))]))
  const world = await makeWorld(service, { name: 'origin', tasks: [{ name: 'only', run: 'true' }] })
  await run('origin-run', world)
  const promoted = { path: 'table.csv', id: 'table', runId: 'origin-run', activityId: 'origin-only' }
  await service.post('/storages/kept/promote-data/', promoted)
  const { dataLocations } = await service.get('/execution-runs/origin-run/')
  expect(dataLocations).toContainEqual(
    expect.objectContaining({ storageResourceId: 'kept', uri: 'storage://kept/table.csv' }),
  )
  const refused = await remove('origin-run')
  expect([refused.status, refused.body.details]).toEqual([
    422,
    [{ path: 'runId', message: expect.stringMatching(/promoted data object "table"; delete that first$/) }],
  ])
  expect((await service.get('/execution-runs/origin-run/')).run.status).toBe('completed')
  expect((await service.call('DELETE', '/storages/kept/entries/?path=table.csv')).status).toBe(204)
  expect((await remove('origin-run')).status).toBe(204)
})

test('what a site has sent to this host for a run goes with the run', async () => {
  const server = await startSshServer()
  try {
    await service.post('/ssh-keys/import/', { id: 'sender', privateKey: server.privateKey })
    const world = await makeWorld(service, {
      name: 'sent',
      cores: [1, 1],
      tasks: [
        { name: 'made', run: 'echo there > there.txt', lane: [0, 0] },
        { name: 'used', after: ['made'], run: 'cat there.txt', lane: [1, 0] },
      ],
      places: [onHost('sender-c', { workDirectory: join(service.dataDir, 'sender') }), undefined],
      connections: [
        {
          ...{ id: 'sender-c', name: 'sender-c', type: 'ssh', endpoint: `127.0.0.1:${String(server.port)}` },
          ...{ username: 'root', credentialRef: 'vault:ssh-key/sender' },
          configuration: { knownHosts: `[127.0.0.1]:${String(server.port)} ${server.hostKey}` },
        },
      ],
    })
    expect((await run('sent-run', world)).run.status).toBe('completed')
    const log = await service.call('GET', '/execution-runs/sent-run/activities/sent-used/logs/')
    expect(log.text).toBe('there\n')
    const incoming = join(service.dataDir, 'work', 'incoming')
    expect(readdirSync(incoming)).not.toEqual([])
    expect((await remove('sent-run')).status).toBe(204)
    await onlyAudit('sent-run')
    expect(readdirSync(incoming)).toEqual([])
  } finally {
    await server.close()
  }
})

proved(
  'the files at a site that is away go when it answers, and what still runs there is ended first',
  async () => {
    const server = await startSshServer()
    const folder = join(service.dataDir, 'site')
    const pidFile = join(service.dataDir, 'pid')
    try {
      await service.post('/ssh-keys/import/', { id: 'site', privateKey: server.privateKey })
      const connection = (port: number) => ({
        ...{ id: 'site-c', name: 'site-c', type: 'ssh', endpoint: `127.0.0.1:${String(port)}` },
        ...{ username: 'root', credentialRef: 'vault:ssh-key/site' },
        configuration: { knownHosts: `[127.0.0.1]:${String(server.port)} ${server.hostKey}` },
      })
      const world = await makeWorld(service, {
        name: 'far',
        cores: [1, 1],
        tasks: [
          { name: 'made', run: 'echo here > here.txt', lane: [0, 0] },
          {
            name: 'brought',
            after: ['made'],
            run: `cat here.txt; echo $$ > ${pidFile}; exec sleep 600`,
            lane: [1, 0],
          },
          { name: 'intended', after: ['brought'], run: 'true', lane: [1, 0] },
        ],
        places: [undefined, onHost('site-c', { workDirectory: folder })],
        connections: [connection(server.port)],
      })
      await start('far-run', world)
      const pid = await eventually('it runs', 60, () =>
        Promise.resolve(existsSync(pidFile) && readFileSync(pidFile, 'utf8').trim()),
      )
      const { environmentId } = await service.get('/environment-connections/site-c/')
      const move = (port: number) =>
        service.ok('PUT', '/environment-connections/site-c/', { ...connection(port), environmentId })
      // Nothing listens on the discard port of this machine.
      await move(9)
      server.cut()
      await service.post('/execution-runs/far-run/cancel/')
      expect((await service.finished('far-run')).run.status).toBe('cancelled')
      expect(existsSync(`/proc/${pid}`)).toBe(true)
      // As where the engine gave the run up: what was intended ahead of its turn may have been started.
      await service.db.prepared(
        'intended-ahead',
        "update task_executions set ahead = true where execution_run_id = 'far-run' and handle_name is null",
        [],
      )
      expect((await remove('far-run')).status).toBe(204)
      await eventually('the site was asked', 60, async () => {
        const rows = await service.db.prepared<{ site: string; names: string[]; last_error: string | null }>(
          'removals',
          'select site, names, last_error from site_removals',
          [],
        )
        if (rows.length !== 1 || rows[0]?.last_error === null) return false
        expect([rows[0]?.site, rows[0]?.names.length]).toEqual(['ssh/site-c', 2])
        return true
      })
      await move(server.port)
      await service.db.prepared('due', 'update site_removals set next_try_at = now()', [])
      await onlyAudit('far-run')
      expect(existsSync(`/proc/${pid}`)).toBe(false)
      const work = join(folder, 'work')
      expect(readdirSync(work).filter((name) => /^[0-9a-f]{24}$/.test(name))).toEqual([])
    } finally {
      await server.close()
    }
  },
)
