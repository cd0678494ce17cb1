import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { version } from '../../src/version.ts'
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
}, 180_000)
afterAll(() => service[Symbol.asyncDispose]())

const rows = (statement: string, ...params: unknown[]): Promise<any[]> => service.post('/provenance/sql/', { statement, params })

test('what an attempt was given is derived from what others left: declared, staged, or handed on by one that left nothing', async () => {
  const uses = await rows(
    'select consumer_activity_id, relative_path, basis, checksum from data_uses where execution_run_id = ? order by 1, 2',
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
    'select activity_id, actor_id, service_version, mode, schedule_plan_id, input_digest, exit_code from attempts where execution_run_id = ? order by 1',
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
    'select consumer_activity_id, data_object_id, data_object_instance_id from transfers where execution_run_id = ? order by 1',
    'traced-run',
  )
  const [raw] = await rows(
    "select id, data_object_id from data_instances where execution_run_id = ? and relative_path = 'raw'",
    'traced-run',
  )
  expect(transfers.find(({ consumer_activity_id }) => consumer_activity_id === 'traced-cut')).toEqual({
    ...{ consumer_activity_id: 'traced-cut', data_object_id: raw.data_object_id, data_object_instance_id: raw.id },
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
  const closure = await service.call('GET', `/provenance/lineage/data_instances/${encodeURIComponent(picture.id)}/closure/`)
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
    expect.arrayContaining(['plans', 'runs', 'workflow_versions', 'workflows', 'resources', 'execution_scopes', 'activities']),
  )
  // Every edge stands between nodes that are there, and leads from the antecedent.
  const keys = new Set(lineage.nodes.map(({ key }: { key: string }) => key))
  for (const { source, target } of lineage.edges) expect([keys.has(source), keys.has(target)]).toEqual([true, true])
})
