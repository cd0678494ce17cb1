import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { MockActivityEnvironment } from '@temporalio/testing'
import { hash } from 'node:crypto'
import { existsSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { availableParallelism, hostname } from 'node:os'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { json, text } from 'node:stream/consumers'
import { executionRunActivities, type FilesAtEnd } from '../../activities/execution-run.ts'
import { raw, sql, type Db } from '../../src/db/sql.ts'
import { deliverOutputs } from '../../src/domains/execution-runs/deliver.ts'
import { StorageError } from '../../src/drivers/storage/contract.ts'
import { quietReports } from '../support/quiet-reports.ts'
import { openService, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { makeWorld, type World, type WorldTask } from '../support/worlds.ts'
import { until } from '../failures/programs.ts'
import { activityOf, checked, runToEnd } from './checked.ts'

let service: TestService
beforeAll(async () => {
  service = await openService({ environment: { SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' } })
})
afterAll(() => service[Symbol.asyncDispose]())

const latin = `"$(printf 'caf\\351.txt')"`

/** What programs do that no one expects, and what is to be on record of each. */
const odd: Record<string, { task: Omit<WorldTask, 'name'>; wanted: Record<string, unknown> }> = {
  nul: {
    task: { run: `printf 'cannot read \\000 header\\n' >&2; exit 3` },
    wanted: { exitCode: 3, failureReason: expect.stringMatching(/code 3: cannot read \ufffd header$/) },
  },
  cut: {
    task: { run: `printf 'caf\\351 \\360\\237\\224' >&2; exit 4` },
    wanted: { exitCode: 4, failureReason: expect.stringMatching(/code 4: caf\ufffd \ufffd$/) },
  },
  bar: {
    task: { run: `printf ' 10%%\\r100%%\\n\\033[31mno luck\\033[0m\\n' >&2; exit 5` },
    wanted: { exitCode: 5, failureReason: expect.stringMatching(/code 5: 100%\nno luck$/) },
  },
  missing: {
    task: { run: `printf '\\000' >&2`, outputs: ['x'] },
    wanted: { exitCode: 0, failureReason: expect.stringMatching(/did not make x: \ufffd$/) },
  },
  late: {
    task: { run: `printf '\\000' >&2; exec sleep 600`, policy: { timeoutSeconds: 1 } },
    wanted: { failureReason: expect.stringMatching(/timeoutSeconds of 1: \ufffd$/) },
  },
  removed: {
    task: { run: 'rm -rf "$PWD"; exit 7' },
    wanted: {
      exitCode: 7,
      metadata: { warnings: [expect.stringMatching(/work directory is gone/)] },
    },
  },
  moved: {
    task: { run: 'echo > a; mv "$PWD" "$PWD.x"', outputs: ['a'] },
    wanted: { exitCode: 0, failureReason: expect.stringMatching(/did not make a$/) },
  },
  replaced: {
    task: { run: 'd=$PWD; cd /; rm -rf "$d"; echo > "$d"; exit 8' },
    wanted: { exitCode: 8, metadata: { warnings: [expect.stringMatching(/no folder any more/)] } },
  },
  stray: {
    task: { run: 'ln -s /usr/bin/env tool; ln -s none gone', outputs: ['tool', 'gone', 'x'] },
    wanted: {
      exitCode: 0,
      failureReason: expect.stringMatching(
        /not make x, and made tool: .* "\/usr\/bin\/env", outside of .*, gone: .* "none", .*; put cop/,
      ),
    },
  },
  both: {
    task: { run: 'true', after: ['first', 'second'] },
    wanted: {
      failureClass: 'user',
      failureReason: expect.stringMatching(/first and .*second both leave "named", with different content/),
    },
  },
  runnerless: {
    task: { run: 'kill -9 $PPID; exec sleep 600', policy: { maxAttempts: 1 } },
    wanted: { attempt: 2, failureReason: expect.stringMatching(/its runner was ended/) },
  },
}

test('an activity that ends oddly fails by itself, with its reason; its neighbours complete', async () => {
  const fine: WorldTask[] = [
    { name: 'good', run: 'echo good > good.txt', outputs: ['good.txt'] },
    {
      name: 'latin',
      run: `echo content > ${latin}; mkdir "$(printf '\\377')"; echo x > "$(printf '\\377')/a"; echo y > '\\xe9'`,
    },
    { name: 'reader', run: `cat ${latin} "$(printf '\\377')/a" '\\xe9'`, after: ['latin'] },
    {
      name: 'maker',
      run: `echo two > v2.txt; ln -s "$PWD/v2.txt" latest.txt; mkdir -p env/bin; ln -s /usr/bin/env env/bin/python
        echo maker > "$HOME/cache"; mkdir .cache; echo maker > .cache/x; echo same > .cache/same`,
      outputs: ['latest.txt'],
    },
    {
      name: 'other',
      run: 'echo other > "$HOME/cache"; mkdir .cache; echo other > .cache/x; echo same > .cache/same',
    },
    {
      name: 'taker',
      run: 'cat latest.txt .cache/x; ls -A env/bin; ls -A "$HOME"; [ "$HOME" = "$PWD.home" ]',
      after: ['other', 'maker'],
    },
    { name: 'first', run: 'echo 1 > named', outputs: ['named'] },
    { name: 'second', run: 'echo 2 > named' },
    {
      name: 'deep',
      run: `k=0; while [ $k -lt 30 ]; do mkdir ${'d'.repeat(200)}; cd -P ${'d'.repeat(200)}; k=$((k+1)); done`,
    },
  ]
  const world: World = await makeWorld(service, {
    name: 'odd',
    tasks: [...Object.entries(odd).map(([name, { task }]) => ({ name, ...task })), ...fine],
    cores: [2],
  })
  const record = await runToEnd(service, world, {
    id: 'odd-run',
    onFailure: 'finish-independent',
    seconds: 120,
  })
  for (const [name, { wanted }] of Object.entries(odd))
    expect([name, activityOf(record, world, name)]).toMatchObject([name, { status: 'failed', ...wanted }])
  for (const { name } of fine)
    expect([name, activityOf(record, world, name)]).toMatchObject([name, { status: 'completed', attempt: 1 }])
  expect(activityOf(record, world, 'deep').metadata.warnings).toEqual([
    expect.stringMatching(/^folder "ddd.*could not be read \(ENAMETOOLONG\)/),
  ])

  expect(activityOf(record, world, 'taker').metadata.warnings).toEqual([
    '"env/bin/python" of a predecessor was not brought: it is a link to "/usr/bin/env", outside of its work directory',
    expect.stringMatching(
      /^"\.cache\/x" of a predecessor was not brought: that of .*maker differs from that of .*other,/,
    ),
  ])

  const path = (name: string): string => `/execution-runs/odd-run/activities/${world.activityId(name)}`
  const { items } = await service.get(`${path('latin')}/outputs/`)
  expect(items.map(({ relativePath, pathBytes }: any) => [relativePath, pathBytes]).toSorted()).toEqual([
    ['\\\\xe9', undefined],
    ['\\xff/a', Buffer.from('\xff/a', 'latin1').toString('base64')],
    ['caf\\xe9.txt', Buffer.from('caf\xe9.txt', 'latin1').toString('base64')],
  ])
  for (const [listed, content] of [
    ['caf\\xe9.txt', 'content\n'],
    ['\\xff/a', 'x\n'],
    ['\\\\xe9', 'y\n'],
  ] as const) {
    const answer = await service.call(
      'GET',
      `${path('latin')}/outputs/${listed.split('/').map(encodeURIComponent).join('/')}`,
    )
    expect([listed, answer.status, String(answer.body)]).toEqual([listed, 200, content])
  }
  const log = await service.call('GET', `${path('reader')}/logs/`)
  expect(String(log.body)).toBe('content\nx\ny\n')
  expect(String((await service.call('GET', `${path('taker')}/logs/`)).body)).toBe('two\nother\n')
  const made = await service.get(`${path('maker')}/outputs/`)
  expect(made.items.map(({ relativePath }: any) => relativePath).toSorted()).toEqual([
    ...['.cache/same', '.cache/x', 'env/bin/python', 'latest.txt', 'v2.txt'],
  ])
})

type Writing = { sizeBytes: number; digest?: () => string }

/** A storage that keeps what was written, by path. */
const openStorage = () => {
  const written = new Map<string, string>()
  const driver = {
    capabilities: { directories: false },
    write: async (path: readonly string[], source: Readable, { sizeBytes, digest }: Writing) => {
      const content = await text(source)
      expect(content).toHaveLength(sizeBytes)
      if (digest !== undefined && digest() !== hash('sha256', content))
        throw new StorageError('changed', 'has another digest')
      written.set(path.join('/'), content)
    },
  }
  return { written, storages: { open: async () => ({ driver }) } as never }
}

test('what has no readable copy on this host is named, and the other files of its machine are delivered', async () => {
  const { db } = service
  const [made] = await db.prepared<{ directory: string; runtime: string }>(
    'made',
    `select directory, runtime_id as runtime from task_executions
     where execution_run_id = 'odd-run' and external_id like $1`,
    ['%maker'],
  )
  const { directory, runtime } = made!
  // As a run on a machine of a cloud leaves it, whose records the test does not need.
  for (const constraint of [
    'run_machines drop constraint run_machines_instance',
    'storage_runtime_bindings drop constraint storage_runtime_bindings_storage',
  ])
    await db.run(raw(`alter table ${constraint}`))
  await db.run(sql`update task_executions set site = 'cloud/m', metadata = coalesce(metadata, '{}') ||
    ${JSON.stringify({ keptOn: 'keeper', keptAt: directory })}::jsonb
    where execution_run_id = 'odd-run' and directory = ${directory}`)
  await db.run(sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id)
    values ('odd-run', 'm', 1, 'i')`)
  await db.run(sql`insert into storage_runtime_bindings (environment_version_id, storage_id, runtime_id, is_default)
    select environment_version_id, 'disk', id, true from runtimes where id = ${runtime}`)
  rmSync(join(directory, '.cache/x'))
  truncateSync(join(directory, '.cache/same'), 2)
  const { storages, written } = openStorage()
  const unread = [
    expect.stringMatching(/^\.cache\/x of .*maker/),
    expect.stringMatching(/^env\/bin\/python of /),
  ]
  const same = (reason: string) => [expect.stringMatching(`^\\.cache/same of .*${reason}`)]
  const stopped = AbortSignal.abort(new Error('stopped'))
  await expect(deliverOutputs({ db, storages, hostId: 'keeper' }, 'odd-run', stopped)).rejects.toThrow(
    'stopped',
  )
  expect(written.size).toBe(0)
  expect(await deliverOutputs({ db, storages, hostId: 'keeper' }, 'odd-run')).toEqual({
    unread,
    differing: same('it has 2 bytes instead of 5'),
  })
  expect([...written.values()].toSorted()).toEqual(['two\n', 'two\n'])
  written.clear()
  writeFileSync(join(directory, '.cache/same'), 'other')
  expect(await deliverOutputs({ db, storages, hostId: 'keeper' }, 'odd-run')).toEqual({
    unread,
    differing: same('another content than its record'),
  })
  expect(written.size).toBe(0)
})

test('outputs of activities with one externalId are delivered beside each other', async () => {
  const { db } = service
  await db.transaction(async (tx) => {
    await tx.run(
      sql`update activity_definitions set external_id = 'twin' where id in ('odd-first', 'odd-second')`,
    )
    await tx.run(sql`update task_executions set external_id = 'twin', site = 'cloud/m',
      metadata = jsonb_build_object('keptOn', 'twins', 'keptAt', directory)
      where execution_run_id = 'odd-run' and activity_id in ('odd-first', 'odd-second')`)
    const { storages, written } = openStorage()
    expect(await deliverOutputs({ db: tx, storages, hostId: 'twins' }, 'odd-run')).toEqual({
      unread: [],
      differing: [],
    })
    expect([...written.values()].toSorted()).toEqual(['1\n', '2\n'])
    for (const path of written.keys()) expect(path).toMatch(/^runs\/odd-run\/twin\/\d+\/1\/named$/)
  })
})

test('a delivery that is stopped while it reads a copy again ends there', async () => {
  const { db } = service
  await db.transaction(async (tx) => {
    await tx.run(sql`update task_executions set site = 'cloud/m',
      metadata = jsonb_build_object('keptOn', 'stopper', 'keptAt', directory)
      where execution_run_id = 'odd-run' and activity_id = 'odd-first'`)
    await tx.run(sql`delete from data_locations where execution_run_id = 'odd-run' and uri like 'storage:%'`)
    const stop = new AbortController()
    const write = async (): Promise<never> => {
      stop.abort(new Error('stopped'))
      throw new StorageError('changed', 'was replaced while it was written')
    }
    const driver = { capabilities: { directories: false }, write }
    const parts = { db: tx, storages: { open: async () => ({ driver }) } as never, hostId: 'stopper' }
    await expect(deliverOutputs(parts, 'odd-run', stop.signal)).rejects.toThrow('stopped')
  })
})

/** The steps at the end of a run, as workers with these parts take them. */
const stepsOn = (parts: Record<string, unknown>, runId: string) => {
  const { closeRun, finishFiles } = executionRunActivities({
    ...{ engine: { taskQueue: 'q' }, reports: quietReports(), draining: new AbortController().signal },
    ...parts,
  } as never)
  const run = <T>(work: () => Promise<T>): Promise<T> => new MockActivityEnvironment().run(work)
  return {
    close: (files: FilesAtEnd) => run(() => closeRun(runId, 1, files)),
    finish: () => run(() => finishFiles(runId)),
  }
}
const reopen = (db: Db, runId: string) =>
  db.run(sql`update execution_runs set status = 'running', finished_at = null where id = ${runId}`)
/** The states of the places of a run's files, storages last. */
const locationsOf = async (db: Db, runId: string): Promise<string[]> =>
  (
    await db.prepared<{ status: string }>(
      'locations of a run',
      `select status from data_locations where execution_run_id = $1 order by uri like 'storage:%'`,
      [runId],
    )
  ).map(({ status }) => status)

test('files of a run are finished on their host before another one closes the run, or it says so', async () => {
  const world = await makeWorld(service, {
    name: 'unkept',
    tasks: [{ name: 'made', run: 'echo x > f', outputs: ['f'] }],
  })
  await runToEnd(service, world, { id: 'unkept-run' })
  const removed: string[] = []
  const remove = async (name: string): Promise<void> => void removed.push(name)
  const sites = { at: () => ({ driver: { remove } }) }
  // Not yet committed, so that the service does not go on with these open runs.
  await service.db.transaction(async (db) => {
    await reopen(db, 'unkept-run')
    await db.run(sql`update activity_definitions set metadata = coalesce(metadata, '{}') || '{"keepDisk": false}'
      where workflow_version_id = ${world.workflowVersionId}`)
    const locations = () => locationsOf(db, 'unkept-run')
    const afar = stepsOn({ db, sites, hostId: 'other' }, 'unkept-run')
    expect(await afar.close('to finish')).toEqual({ filesAt: `q@${hostname()}` })
    expect([removed, await locations()]).toEqual([[], ['available']])
    await stepsOn({ db, sites, hostId: hostname() }, 'unkept-run').finish()
    expect([removed, await locations()]).toEqual([[expect.any(String)], ['deleted']])
    expect(await afar.close('finished')).toEqual({ status: 'completed', completed: 1 })

    await reopen(db, 'odd-run')
    const elsewhere = stepsOn({ db, sites, hostId: 'other' }, 'odd-run')
    expect(await elsewhere.close('to finish')).toEqual({ filesAt: 'q@keeper' })
    expect(await elsewhere.close('left')).toMatchObject({ status: 'failed' })
  })
  const { run } = await service.get('/execution-runs/odd-run/')
  expect([run.status, run.warnings.at(-1)]).toEqual([
    'failed',
    { path: 'outputs', message: expect.stringMatching(/^outputs are on host keeper only/) },
  ])
})

test('a copy with other bytes than its record stays on its host, and its run says so', async () => {
  const world = await makeWorld(service, {
    name: 'altered',
    tasks: [{ name: 'made', run: 'echo x > f', outputs: ['f'] }],
  })
  await runToEnd(service, world, { id: 'altered-run' })
  // Not yet committed, so that the service does not go on with this open run.
  const copy = await service.db.transaction(async (db) => {
    await reopen(db, 'altered-run')
    await db.run(sql`update activity_definitions set metadata = coalesce(metadata, '{}') || '{"keepDisk": false}'
      where workflow_version_id = ${world.workflowVersionId}`)
    const [task] = await db.prepared<{ directory: string; runtime: string }>(
      'altered',
      `update task_executions set site = 'cloud/m',
         metadata = jsonb_build_object('keptOn', 'altering', 'keptAt', directory)
       where execution_run_id = $1 returning directory, runtime_id as runtime`,
      ['altered-run'],
    )
    await db.run(sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id)
      values ('altered-run', 'm', 1, 'altered')`)
    await db.run(sql`insert into storage_runtime_bindings (environment_version_id, storage_id, runtime_id, is_default)
      select environment_version_id, 'disk', id, true from runtimes where id = ${task!.runtime}`)
    const file = join(task!.directory, 'f')
    writeFileSync(file, 'y\n')
    const { storages, written } = openStorage()
    await stepsOn({ db, storages, sites: {}, hostId: 'altering' }, 'altered-run').finish()
    expect(written.size).toBe(0)
    await db.run(
      sql`update execution_runs set status = 'completed', finished_at = now() where id = 'altered-run'`,
    )
    return file
  })
  const { run } = await service.get('/execution-runs/altered-run/')
  expect(run.warnings.at(-1).message).toMatch(/f of made \(it has another content than its record\)/)
  expect(existsSync(copy)).toBe(true)
})

test('a worker that is drained begins no removal of files, and what was under way is recorded at its end', async () => {
  const names = Array.from({ length: 51 }, (_, i) => `made-${String(i)}`)
  const world = await makeWorld(service, {
    name: 'drained',
    tasks: names.map((name) => ({ name, run: 'echo x > f', outputs: ['f'] })),
  })
  await runToEnd(service, world, { id: 'drained-run' })
  const begun: (() => void)[] = []
  const remove = (): Promise<void> => new Promise((resolve) => begun.push(resolve))
  const drain = new AbortController()
  await service.db.transaction(async (db) => {
    await reopen(db, 'drained-run')
    await db.run(sql`update activity_definitions set metadata = coalesce(metadata, '{}') || '{"keepDisk": false}'
      where workflow_version_id = ${world.workflowVersionId}`)
    const deleted = async () =>
      (await locationsOf(db, 'drained-run')).filter((status) => status === 'deleted').length
    const steps = stepsOn(
      { db, hostId: hostname(), sites: { at: () => ({ driver: { remove } }) }, draining: drain.signal },
      'drained-run',
    )
    const finished = steps.finish()
    finished.catch(() => undefined)
    await until('files are being removed', 120, () => begun.length > 0)
    drain.abort()
    await expect(finished).rejects.toThrow('this worker is being drained')
    await expect(steps.close('to finish')).rejects.toThrow('this worker is being drained')
    expect([begun.length, await deleted()]).toEqual([50, 0])
    for (const end of begun) end()
    await until('what was removed is recorded', 120, async () => (await deleted()) === 50)
    expect(begun).toHaveLength(50)
    await stepsOn({ db }, 'drained-run').close('finished')
  })
})

test('a copy that a storage refuses stays in its folder, and one that it has is no deleted one', async () => {
  await service.db.transaction(async (db) => {
    await reopen(db, 'unkept-run')
    await db.run(sql`update data_locations set status = 'available' where execution_run_id = 'unkept-run'`)
    await db.run(sql`update task_executions set site = 'cloud/u', metadata = coalesce(metadata, '{}') ||
      jsonb_build_object('keptOn', 'keeper', 'keptAt', directory) where execution_run_id = 'unkept-run'`)
    await db.run(sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id)
      values ('unkept-run', 'u', 1, 'u')`)
    await db.run(sql`insert into storage_runtime_bindings (environment_version_id, storage_id, runtime_id, is_default)
      select environment_version_id, 'disk', id, true from runtimes where id = 'unkept-local'`)
    const [{ directory } = { directory: '' }] = await db.prepared<{ directory: string }>(
      'directory',
      'select directory from task_executions where execution_run_id = $1',
      ['unkept-run'],
    )
    const finishWith = (write: (path: unknown, source: Readable) => Promise<unknown>) => {
      const driver = { capabilities: { directories: false }, write }
      const parts = { db, hostId: 'keeper', storages: { open: async () => ({ driver }) } }
      return stepsOn(parts, 'unkept-run').finish()
    }
    await finishWith(() => Promise.reject(new StorageError('denied', 'no')))
    expect([existsSync(directory), await locationsOf(db, 'unkept-run')]).toEqual([true, ['available']])
    await finishWith((_, source) => text(source))
    expect([existsSync(directory), await locationsOf(db, 'unkept-run')]).toEqual([
      false,
      ['deleted', 'available'],
    ])
    await stepsOn({ db }, 'unkept-run').close('finished')
  })
  const { run } = await service.get('/execution-runs/unkept-run/')
  expect(run.warnings).toEqual([
    { path: 'outputs', message: expect.stringMatching(/^outputs are on host keeper only.*no$/) },
  ])
})

test('an expected output that no file system can hold is refused when it is posted', async () => {
  const activity = {
    ...{ name: 'a', run: 'true', cpuLimit: '1', memoryLimit: '16Mi' },
    expectedOutputs: [`${'x'.repeat(300)}.csv`, 'ok.csv'],
  }
  const answer = await service.call('POST', '/workflow-definitions/', {
    name: 'long names',
    spec: { namespace: 'tests', image: 'busybox:1.36', activities: [activity] },
  })
  expect(answer).toMatchObject({
    status: 422,
    body: {
      details: expect.arrayContaining([
        expect.objectContaining({
          path: expect.stringMatching(/expectedOutputs\.0$/),
          message: expect.stringMatching(/has a part of 304 bytes/),
        }),
      ]),
    },
  })
})

proved(
  'an ended program holds no core while its files are read, which the run shows; a cancel ends the look',
  async () => {
    const cores = availableParallelism()
    const tasks = Array.from({ length: cores }, (_, k) => ({
      name: `big${String(k)}`,
      run: 'truncate -s 1T f',
      lane: [0, k] as const,
    }))
    const big = await makeWorld(service, { name: 'big', tasks, cores: [cores] })
    await service.post('/execution-runs/', { id: 'big-run', schedulePlanId: big.planId, mode: 'real' })
    const waits = {
      kind: 'data',
      reason: 'its program has ended; its files are being read',
      activities: cores,
    }
    await until('the look at the files', 120, async () => {
      const { live } = await service.get('/execution-runs/big-run/')
      return live?.waitsFor?.some(({ activities }: any) => activities === cores)
    })
    expect((await service.get('/execution-runs/big-run/')).live.waitsFor).toEqual([
      expect.objectContaining(waits),
    ])
    const small = await makeWorld(service, { name: 'small', tasks: [{ name: 'a', run: 'true' }], cores: [1] })
    const { run } = await runToEnd(service, small, { id: 'small-run', seconds: 120 })
    expect(run.status).toBe('completed')

    expect((await service.call('POST', '/execution-runs/big-run/cancel/')).status).toBe(202)
    await service.finished('big-run')
    const record = await checked(service, big, 'big-run')
    expect(record.run.status).toBe('cancelled')
    for (const { name } of tasks)
      expect(activityOf(record, big, name)).toMatchObject({
        status: 'cancelled',
        exitCode: 0,
        metadata: { warnings: ['the look at its files was ended by a cancel'] },
      })
  },
  300_000,
)

test('a function that answers against the protocol fails its own activity alone', async () => {
  const server = createServer((request, response) => {
    void json(request).then((call) => {
      const { name } = call as { name: string }
      const answer = { schemaVersion: 1, name, exitCode: 3_221_225_477, startedAt: 1, finishedAt: 2 }
      response.setHeader('content-type', 'application/json').end(JSON.stringify(answer))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    const { port } = server.address() as AddressInfo
    const go = join(service.dataDir, 'answers-go')
    const world = await makeWorld(service, {
      name: 'answers',
      tasks: [
        { name: 'called', run: 'true', lane: [0, 0] },
        { name: 'good', run: `until [ -e ${go} ]; do sleep 0.05; done`, lane: [1, 0] },
      ],
      cores: [1, 1],
      places: [
        { driver: 'serverless', configuration: { endpoint: `http://127.0.0.1:${String(port)}/` } },
        { driver: 'local', configuration: {} },
      ],
    })
    const run = { id: 'answers-run', schedulePlanId: world.planId, mode: 'real' }
    await service.post('/execution-runs/', { ...run, onFailure: 'finish-independent' })
    await until(
      'the failure',
      120,
      async () => (await service.get('/execution-runs/answers-run/')).run.failedActivityCount === 1,
    )
    writeFileSync(go, '')
    await service.finished('answers-run')
    const record = await checked(service, world, 'answers-run')
    expect(activityOf(record, world, 'called')).toMatchObject({
      status: 'failed',
      attempt: 1,
      failureReason: expect.stringMatching(/does not speak the call protocol, version 1: exitCode: /),
    })
    expect(activityOf(record, world, 'good')).toMatchObject({ status: 'completed' })
  } finally {
    server.closeAllConnections()
    server.close()
  }
})
