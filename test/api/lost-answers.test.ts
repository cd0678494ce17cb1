import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { sql } from '../../src/db/sql.ts'
import { until } from '../failures/programs.ts'
import { openEveryKind } from '../operations/every-kind.ts'
import type { TestService } from '../support/service.ts'

/** Creates under an Idempotency-Key whose answer was lost with the daemon, after their commit. */

let opened: Awaited<ReturnType<typeof openEveryKind>>
let service: TestService
beforeAll(async () => {
  opened = await openEveryKind()
  ;({ service } = opened)
})
afterAll(() => opened?.close())

interface Create {
  path: string
  body?: object
  /** Whether the work for the record is over, so that a repeated request cannot join it. */
  isOver?: (record: any) => Promise<boolean>
}

const copied = { path: 'folder/one', destinationStorageId: 'files', destinationPath: 'two' }
const target = {
  ...{ name: 't', provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami', vcpu: 2 },
  ...{ memoryMiB: 8_192, maximumInstances: 2 },
}

const creates: Record<string, Create> = {
  download: { path: '/storages/files/downloads/', body: { path: 'folder/one' } },
  copy: { path: '/storages/files/copies/', body: copied },
  archive: { path: '/storages/files/archives/', body: { path: 'folder' } },
  'index run': {
    ...{ path: '/storages/files/index-runs/', body: {} },
    isOver: async ({ id }) =>
      (await service.get('/storages/files/index-runs/')).some(
        (run: any) => run.id === id && run.finishedAt !== undefined,
      ),
  },
  'build run': {
    path: '/artifact-builds/image/runs/?fresh=true',
    isOver: async ({ id }) => (await service.get(`/build-runs/${id}/`)).finishedAt !== undefined,
  },
  'console session': { path: '/console-sessions/', body: { resourceId: 'here' } },
  'console command': { path: '/console-commands/', body: { resourceId: 'here', command: 'true' } },
  'capacity target': { path: '/environments/clouds/cloud-capacity-targets/', body: target },
  'machine configuration': { path: '/machine-configurations/', body: { name: 'worker' } },
}

/** Asks twice under one key, as if the daemon had died before the first answer was stored. */
const askedTwice = async (name: string, { path, body, isOver }: Create) => {
  const ask = () => service.call('POST', path, body, { 'idempotency-key': name.replaceAll(' ', '-') })
  const first = await ask()
  expect([first.status, first.body.error]).toEqual([expect.any(Number), undefined])
  if (isOver !== undefined) await until(`the end of the ${name}`, 120, () => isOver(first.body))
  await service.db.run(sql`delete from idempotency_keys`)
  const second = await ask()
  expect(second.headers.get('idempotency-replayed')).toBeNull()
  const facts = (answer: typeof first) => [
    answer.status,
    answer.headers.get('location'),
    answer.body.id,
    answer.body.createdAt,
  ]
  expect(facts(second)).toEqual(facts(first))
  return { first, second }
}

test.each(Object.entries(creates))('a %s is made once', async (name, create) => {
  await askedTwice(name, create)
})

test('a day later the key is one of another request', async () => {
  const ask = () =>
    service.call('POST', '/storages/files/downloads/', { path: 'folder/one' }, { 'idempotency-key': 'day' })
  const first = await ask()
  await service.db.run(sql`delete from idempotency_keys`)
  await service.db.run(sql`update storage_downloads set created_at = now() - interval '25 hours'`)
  const second = await ask()
  expect([second.status, second.body.id === first.body.id]).toEqual([201, false])
})
