import { expect } from '@jest/globals'
import { sql } from '../../src/db/sql.ts'
import { sites } from '../../sites/requirements.ts'
import { until } from '../failures/programs.ts'
import { deskToken, openDesk } from '../support/consoles.ts'
import { needs } from '../support/needs.ts'
import { openService, type TestService } from '../support/service.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.ssh)

/** Commands on a resource, on this machine and over a real sshd. */

let opened: Awaited<ReturnType<typeof openDesk>>
let service: TestService
beforeAll(async () => {
  opened = await openDesk({
    nowhere: { driver: 'kubernetes' },
    idle: { driver: 'local', configuration: { launch: 'none' } },
    simulated: { driver: 'simgrid' },
  })
  service = opened.service
}, 180_000)
afterAll(async () => {
  await opened?.close()
})

const run = (resourceId: string, command: string, more: object = {}) =>
  service.post('/console-commands/', { resourceId, command, ...more })
const ended = (id: string) =>
  until(`the end of ${id}`, 60, async () => {
    const found = await service.get(`/console-commands/${id}/`)
    return found.status === 'running' ? undefined : found
  })

describe.each(['here', 'there'])('a command %s', (resourceId) => {
  test('answers at its end with what it wrote, in the folder and the environment that it names', async () => {
    const given = { workingDirectory: '/usr', environment: { GREETING: 'good day' } }
    const record = await run(resourceId, 'pwd; echo "$GREETING"; echo wrong >&2', given)
    expect(record).toMatchObject({
      resourceId,
      runtimeId: `${resourceId}-runtime`,
      status: 'completed',
      exitCode: 0,
      timeoutSeconds: 30,
      ...given,
    })
    expect([record.stdout, record.stderr]).toEqual(['/usr\ngood day\n', 'wrong\n'])
    expect(Date.parse(record.finishedAt)).toBeGreaterThanOrEqual(Date.parse(record.startedAt))
    expect(await service.get(`/console-commands/${record.id}/`)).toEqual(record)
    const [newest] = await service.get('/console-commands/?limit=1')
    expect(newest.id).toBe(record.id)
  }, 60_000)

  test('that fails is a record, too', async () => {
    const answer = await service.call('POST', '/console-commands/', {
      resourceId,
      command: 'echo before; exit 3',
    })
    expect(answer.status).toBe(201)
    expect(answer.body).toMatchObject({
      status: 'failed',
      exitCode: 3,
      stdout: 'before\n',
      failure: expect.stringContaining('exit code 3'),
    })
  }, 60_000)

  test('is ended after its timeout, with its descendants', async () => {
    const record = await run(resourceId, 'echo begun; sleep 300 & sleep 300', { timeoutSeconds: 2 })
    expect(record).toMatchObject({
      status: 'failed',
      stdout: 'begun\n',
      failure: expect.stringContaining('timeout of 2 s'),
    })
  }, 60_000)

  test('keeps 1 MiB of each stream and says that it was cut', async () => {
    const record = await run(resourceId, 'head -c 2000000 /dev/zero | tr "\\0" a; echo short >&2')
    expect([record.status, record.stdout.length, record.stdoutTruncated]).toEqual([
      'completed',
      1_048_576,
      true,
    ])
    expect([record.stderr, record.stderrTruncated]).toEqual(['short\n', undefined])
  }, 60_000)

  test('is answered at once where that is preferred, and can be cancelled', async () => {
    const accepted = await service.call(
      'POST',
      '/console-commands/',
      { resourceId, command: 'echo begun; sleep 300', timeoutSeconds: 600 },
      { prefer: 'respond-async' },
    )
    expect([accepted.status, accepted.headers.get('preference-applied')]).toEqual([202, 'respond-async'])
    const { id } = accepted.body
    await until(
      'its run',
      30,
      async () => (await service.get(`/console-commands/${id}/`)).live?.phase === 'running',
    )
    await new Promise((resolve) => setTimeout(resolve, 2_000))
    expect((await service.call('POST', `/console-commands/${id}/cancel/`)).status).toBe(202)
    expect(await ended(id)).toMatchObject({ status: 'failed', stdout: 'begun\n', failure: 'cancelled' })
    expect((await service.call('POST', `/console-commands/${id}/cancel/`)).status).toBe(202)
  }, 60_000)

  test('has the values of the vault masked in its record', async () => {
    const record = await run(resourceId, `printf 'a %s b' ${deskToken}`)
    expect([record.stdout, record.command]).toEqual(['a ******** b', "printf 'a %s b' ********"])
  }, 60_000)
})

test.each([
  ['an unknown resource', { resourceId: 'nothing', command: 'true' }, 'resourceId'],
  ['a resource without an enabled binding', { resourceId: 'loose', command: 'true' }, 'resourceId'],
  ['a runtime without its connection', { resourceId: 'nowhere', command: 'true' }, 'resourceId'],
  ['a runtime that starts nothing', { resourceId: 'idle', command: 'true' }, 'resourceId'],
  ['a runtime without a console', { resourceId: 'simulated', command: 'true' }, 'resourceId'],
  ['a blank command', { resourceId: 'here', command: ' \n' }, 'command'],
  ['NUL in a command', { resourceId: 'here', command: 'a\0b' }, 'command'],
  ['3,601 s', { resourceId: 'here', command: 'true', timeoutSeconds: 3_601 }, 'timeoutSeconds'],
  ['a negative time', { resourceId: 'here', command: 'true', timeoutSeconds: -1 }, 'timeoutSeconds'],
  [
    'a variable that is no name',
    { resourceId: 'here', command: 'true', environment: { 'A=B': 'c' } },
    'environment',
  ],
])('%s is 422', async (_what, document, path) => {
  const before = (await service.get('/console-commands/')).length
  const answer = await service.call('POST', '/console-commands/', document)
  expect([answer.status, answer.body.details[0].path]).toEqual([
    422,
    expect.stringMatching(new RegExp(`^${path}`)),
  ])
  expect((await service.get('/console-commands/')).length).toBe(before)
})

test('the audit names who asked, where, and how it ended', async () => {
  const record = await run('here', 'true')
  const events = await service.get('/audit-events/?limit=1000')
  const about = events.filter(({ externalId }: { externalId?: string }) => externalId === record.id)
  expect(about.map(({ eventType }: { eventType: string }) => eventType).sort()).toEqual([
    'console.command.completed',
    'console.command.started',
  ])
  expect(
    events.find(({ eventType }: { eventType: string }) => eventType === 'console.command.requested'),
  ).toMatchObject({
    resourceId: 'here',
  })
}, 60_000)

test('the audit proves what a command printed', async () => {
  const { id } = await run('here', 'echo genuine')
  const set = (text: string) =>
    service.db.run(sql`update console_commands set stdout = convert_to(${text}, 'UTF8') where id = ${id}`)
  const verdict = async () => {
    for (;;) {
      const found = await service.get('/audit-events/verify/')
      if (found.unsealed === 0) return found.first
    }
  }
  expect(await verdict()).toBeUndefined()
  await set('forged\n')
  expect(await verdict()).toMatchObject({ reason: expect.stringContaining(`console command ${String(id)}`) })
  await set('genuine\n')
  expect(await verdict()).toBeUndefined()
}, 60_000)

test.each(['', 'TRUE', '1', 'yes'])(
  'with SERVICE_CONSOLE_ENABLED=%j everything is 503',
  async (value) => {
    await using closed = await openService({ environment: { SERVICE_CONSOLE_ENABLED: value } })
    for (const [method, path, document] of [
      ['GET', '/console-commands/', undefined],
      ['POST', '/console-commands/', { resourceId: 'here', command: 'true' }],
      ['GET', '/console-commands/x/', undefined],
    ] as const) {
      const answer = await closed.call(method, path, document)
      expect([answer.status, answer.body.error]).toEqual([
        503,
        expect.stringContaining('SERVICE_CONSOLE_ENABLED'),
      ])
    }
  },
  60_000,
)
