import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { version } from '../../src/version.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, type World } from '../support/worlds.ts'
import { runToEnd } from './checked.ts'

let service: TestService
let world: World
beforeAll(async () => {
  service = await openService()
  world = await makeWorld(service, {
    name: 'traced',
    cores: [1, 1],
    bandwidthBitsPerSecond: 8_000_000,
    tasks: [
      { name: 'make', run: 'echo abc > raw; echo extra > other', lane: [0, 0] },
      { name: 'look', run: 'grep -q abc raw', after: ['make'], lane: [0, 0] },
      {
        name: 'cut',
        run: 'test ! -e other; head -c 1 raw > first',
        after: ['make'],
        stage: 'declared',
        inputs: [{ from: 'make', file: 'raw' }],
        lane: [1, 0],
      },
      { name: 'join', run: 'cat raw first > picture', after: ['look', 'cut'], lane: [0, 0] },
    ],
  })
  const record = await runToEnd(service, world, { id: 'traced-run' })
  expect(record.run.status).toBe('completed')
})
afterAll(() => service[Symbol.asyncDispose]())

const rows = (statement: string, ...params: unknown[]): Promise<any[]> =>
  service.post('/provenance/sql/', { statement, params })

test('what an attempt was given is derived from what others left: declared, staged, or handed on by one that left nothing', async () => {
  const uses = await rows(
    'select consumer_activity_id, relative_path, basis, checksum from data_uses where ' +
      'execution_run_id = ? order by 1, 2',
    'traced-run',
  )
  expect(uses.map((use) => [use.consumer_activity_id, use.relative_path, use.basis])).toEqual([
    ['traced-cut', 'raw', 'declared'],
    ['traced-join', 'first', 'staged'],
    ['traced-join', 'other', 'staged'],
    ['traced-join', 'raw', 'staged'],
    ['traced-look', 'other', 'staged'],
    ['traced-look', 'raw', 'staged'],
  ])
  for (const { checksum } of uses) expect(checksum).toMatch(/[0-9a-f]{64}/)
})

test('a run keeps who asked for it, the version of the service, and the digest of what each attempt was given', async () => {
  const attempts = await rows(
    'select activity_id, actor_id, service_version, mode, schedule_plan_id, input_digest, ' +
      'exit_code from attempts where execution_run_id = ? order by 1',
    'traced-run',
  )
  expect(attempts).toHaveLength(4)
  for (const attempt of attempts)
    expect(attempt).toMatchObject({
      actor_id: expect.any(String),
      service_version: version,
      mode: 'real',
      schedule_plan_id: world.planId,
      exit_code: 0,
    })
  expect(attempts.map(({ input_digest }) => input_digest)).toEqual([
    expect.stringMatching(/^sha256:/),
    expect.stringMatching(/^sha256:/),
    expect.stringMatching(/^sha256:/),
    null,
  ])
})

test('a transfer names the file that it was for, where one was meant', async () => {
  const transfers = await rows(
    'select consumer_activity_id, data_object_id, data_object_instance_id from transfers where ' +
      'execution_run_id = ? order by 1',
    'traced-run',
  )
  const [raw] = await rows(
    "select id, data_object_id from data_instances where execution_run_id = ? and relative_path = 'raw'",
    'traced-run',
  )
  expect(transfers.find(({ consumer_activity_id }) => consumer_activity_id === 'traced-cut')).toEqual({
    ...{
      consumer_activity_id: 'traced-cut',
      data_object_id: raw.data_object_id,
      data_object_instance_id: raw.id,
    },
  })
})

test('the picture leads back to everything that it came of', async () => {
  const [picture] = await rows("select id from data_instances where relative_path = 'picture'")
  const lineage = await service.get(
    `/provenance/lineage/data_instances/${encodeURIComponent(picture.id)}/?direction=prior&depth=5&maxNodes=500`,
  )
  const files = lineage.nodes
    .filter(({ entity }: { entity: string }) => entity === 'data_instances')
    .map(({ record }: any) => record.relative_path)
  expect(files.toSorted()).toEqual(['first', 'other', 'picture', 'raw'])
  const closure = await service.call(
    'GET',
    `/provenance/lineage/data_instances/${encodeURIComponent(picture.id)}/closure/`,
  )
  const found = closure.text
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line))
  // What only looked at a file left none, so nothing came of it.
  expect(
    found
      .filter(({ entity }) => entity === 'task_executions')
      .map(({ id }) => id)
      .toSorted(),
  ).toEqual(['traced-run:traced-cut', 'traced-run:traced-join', 'traced-run:traced-make'])
  expect(found.map(({ entity }) => entity)).toEqual(
    expect.arrayContaining([
      'plans',
      'runs',
      'workflow_versions',
      'workflows',
      'resources',
      'execution_scopes',
      'activities',
    ]),
  )
  // Every edge stands between nodes that are there, and leads from the antecedent.
  const keys = new Set(lineage.nodes.map(({ key }: { key: string }) => key))
  for (const { source, target } of lineage.edges)
    expect([keys.has(source), keys.has(target)]).toEqual([true, true])
})

test('the run is on the audit trail with the digest of its events, and the trail proves that nobody changed them', async () => {
  const events = await service.get('/audit-events/?executionId=traced-run&actorId=service')
  expect(events.map(({ eventType, outcome }: any) => [eventType, outcome])).toEqual([
    ['execution.run.completed', 'succeeded'],
    ['execution.run.started', 'started'],
  ])
  expect(events[0].metadata.eventsDigest).toMatch(/^[0-9a-f]{64}$/)
  const between = `?executionId=traced-run&since=${events[1].occurredAt}&until=${events[0].occurredAt}`
  expect((await service.get(`/audit-events/${between}`)).map(({ id }: any) => id)).toContain(events[1].id)
  const whole = async () => {
    for (;;) {
      const verdict = await service.get('/audit-events/verify/')
      if (verdict.unsealed === 0) return verdict
    }
  }
  const verdict = await whole()
  expect(verdict).toMatchObject({
    sealed: expect.any(Number),
    unsealed: 0,
    head: { number: expect.any(Number), seal: expect.any(String) },
  })
  expect(verdict.first).toBeUndefined()

  const stop = new AbortController()
  const stream = await fetch(`${service.baseUrl}/audit-events/?executionId=traced-run`, {
    headers: { accept: 'text/event-stream', 'last-event-id': '0' },
    signal: stop.signal,
  })
  let text = ''
  for await (const chunk of stream.body!.pipeThrough(new TextDecoderStream())) {
    text += chunk
    if (text.includes('event: execution.run.completed')) break
  }
  stop.abort()
  const numbers = [...text.matchAll(/^id: (\d+)$/gm)].map((match) => Number(match[1]))
  expect(numbers).toEqual(numbers.toSorted((a, b) => a - b))

  const [event] = await service.db.prepared<{ payload: unknown }>(
    'take',
    "update operation_events set payload = '{}' where operation_id = 'traced-run' and sequence = 1 returning sequence",
    [],
  )
  expect(event).toBeDefined()
  expect((await whole()).first).toEqual({
    id: events[0].id,
    reason: expect.stringMatching(/events of run traced-run/),
  })
})

/** The entries of a ZIP file, as Python reads and checks them. */
const entriesOf = (zip: string): Record<string, string> => {
  const read =
    'import json,sys,zipfile; z=zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None; ' +
    'assert len(set(z.namelist())) == len(z.namelist()); ' +
    'print(json.dumps({n: z.read(n).decode() for n in z.namelist()}))'
  return JSON.parse(
    execFileSync('python3', ['-c', read, zip], { encoding: 'utf8', maxBuffer: 64 * 1024 ** 2 }),
  ) as Record<string, string>
}

test('scripts longer than one argument run; a crate is whole whatever files are called, are, or become', async () => {
  const names = [
    ...['plain', 'a\nb', 'ends\n', ' a', 'a ', 'b\\c', '100%', '%41', 'A', '-n', '"', '*', 'é'.repeat(127)],
    ...['\t'.repeat(250), '…', '%2E%2E', 'd/%2F', 'a:b?.txt'],
  ]
  const quoted = (name: string): string => `'${name.replaceAll("'", "'\\''")}'`
  const odd = await makeWorld(service, {
    name: 'odd',
    cores: [2],
    tasks: [
      {
        name: 'names',
        run:
          'mkdir d folder; ln -s nowhere dangling; ln -s folder to-folder; mkfifo pipe; ' +
          'echo later > gone; echo later > replaced; ln -s /etc/hostname outward; ' +
          names.map((name) => `printf %s ${quoted(name)} > ${quoted(`./${name}`)}`).join('; '),
        lane: [0, 0],
      },
      {
        name: 'long',
        run: `: '${'é'.repeat(100_000)}'\nset -u\nprintf '%s %s' "$#" "$0" > long-arguments`,
        lane: [0, 1],
      },
      {
        name: 'longest',
        run: `${': it is long\n'.repeat(80_000)}if true; then\nprintf 'all' > longest; fi`,
        after: ['long'],
        lane: [0, 1],
      },
    ],
  })
  const record = await runToEnd(service, odd, { id: 'odd' })
  expect(record.run.status).toBe('completed')
  const file = (name: string, activity: string): Promise<Response> =>
    fetch(
      `${service.baseUrl}/execution-runs/odd/activities/odd-${activity}/outputs/${encodeURIComponent(name)}`,
    )
  expect(await (await file('long-arguments', 'long')).text()).toBe('0 sh')
  expect(await (await file('longest', 'longest')).text()).toBe('all')
  for (const name of names) {
    const answer = await file(name, 'names')
    expect([answer.status, await answer.text()]).toEqual([200, name])
  }
  expect((await file('a\0b', 'names')).status).toBe(400)

  const [{ directory } = { directory: '' }] = await service.db.prepared<{ directory: string }>(
    'directory_of_odd',
    "select directory from task_executions where execution_run_id = 'odd' and activity_id = 'odd-names'",
    [],
  )
  rmSync(join(directory, 'gone'))
  rmSync(join(directory, 'replaced'))
  mkdirSync(join(directory, 'replaced'))
  const answer = await fetch(`${service.baseUrl}/execution-runs/odd/crate/?data=outputs`)
  const zip = join(mkdtempSync(join(runFolder(), 'crate-')), 'odd.zip')
  writeFileSync(zip, Buffer.from(await answer.arrayBuffer()))
  const entries = entriesOf(zip)
  const graph = (JSON.parse(entries['ro-crate-metadata.json'] ?? '') as { '@graph': Record<string, any>[] })[
    '@graph'
  ]
  const files = graph.filter((entity) => entity['@type'] === 'File' && entity['contentSize'] !== undefined)
  const carried = files.filter((entity) => String(entity['@id']).startsWith('data/'))
  for (const { '@id': id, name } of carried)
    if (names.includes(name)) expect(entries[decodeURIComponent(id)]).toBe(name)
  expect(
    Object.keys(entries)
      .filter((name) => name.startsWith('data/'))
      .toSorted(),
  ).toEqual(carried.map((entity) => decodeURIComponent(entity['@id'])).toSorted())
  expect(carried.map(({ name }) => name)).toEqual(expect.arrayContaining([...names, 'longest']))
  const unread = files.filter((entity) => !carried.includes(entity))
  expect(unread.map(({ name }) => name)).toEqual(expect.arrayContaining(['gone', 'replaced']))
  for (const entity of unread) expect(entity['description']).toMatch(/could not be read/)
  expect(entries['README.md']).toMatch(/could not be read/)
})

test('the run is exported as a crate with its files, and as PROV', async () => {
  const answer = await fetch(`${service.baseUrl}/execution-runs/traced-run/crate/?data=outputs`)
  expect([answer.status, answer.headers.get('content-type')]).toEqual([200, 'application/zip'])
  const zip = join(mkdtempSync(join(runFolder(), 'crate-')), 'run.zip')
  writeFileSync(zip, Buffer.from(await answer.arrayBuffer()))
  const entries = entriesOf(zip)
  const metadata = JSON.parse(entries['ro-crate-metadata.json'] ?? '') as { '@graph': Record<string, any>[] }
  const files = metadata['@graph'].filter(
    (entity) => entity['@type'] === 'File' && String(entity['@id']).startsWith('data/'),
  )
  expect(files.map(({ name }) => name).toSorted()).toEqual(['first', 'other', 'picture', 'raw'])
  for (const file of files)
    expect(entries[decodeURIComponent(file['@id'])]?.length).toBe(Number(file['contentSize']))
  const action = metadata['@graph'].find((entity) => entity['@id'] === '#run-traced-run%3Atraced-cut')
  expect(action).toMatchObject({
    '@type': 'CreateAction',
    actionStatus: 'http://schema.org/CompletedActionStatus',
    endTime: expect.stringMatching(/\+00:00$/),
  })

  const alone = await service.call('GET', '/execution-runs/traced-run/crate/', undefined, {
    accept: 'application/ld+json',
  })
  expect([alone.status, alone.body['@graph'].length]).toEqual([200, metadata['@graph'].length])
  const { body: prov } = await service.call('GET', '/execution-runs/traced-run/prov/')
  expect(Object.keys(prov.wasGeneratedBy)).toHaveLength(4)
  expect(Object.keys(prov.used)).toHaveLength(1 + 6)
  expect((await service.call('GET', '/execution-runs/nothing/crate/')).status).toBe(404)
})
