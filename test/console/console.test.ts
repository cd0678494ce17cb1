import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { sql } from '../../src/db/sql.ts'
import { until } from '../failures/programs.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'

/** Commands and terminals on this machine. */

const folder = mkdtempSync(join(runFolder(), 'console-'))
let service: TestService
beforeAll(async () => {
  service = await openService({ environment: { SERVICE_CONSOLE_ENABLED: 'true' } })
  await service.post('/environments/', consoleEnvironment('desk', { here: { driver: 'local' } }))
})
afterAll(async () => {
  for (const { id } of (await service?.get('/console-sessions/')) ?? [])
    await service.call('DELETE', `/console-sessions/${id}/`)
  await service?.[Symbol.asyncDispose]()
})

describe('a command under an Idempotency-Key', () => {
  test.each([
    ['whose request still runs', false],
    ['whose first answer was lost with its process', true],
  ])('%s runs once', async (_, died) => {
    const key = `once-${String(died)}`
    const [begun, go] = [join(folder, `${key}-begun`), join(folder, `${key}-go`)]
    const body = {
      resourceId: 'here',
      command: `echo begun >> ${begun}; until [ -e ${go} ]; do sleep 0.1; done; echo over`,
      timeoutSeconds: 3_600,
    }
    const post = () => service.call('POST', '/console-commands/', body, { 'idempotency-key': key })
    const first = post()
    await until('its start', 120, () => existsSync(begun))
    if (died) await service.db.run(sql`delete from idempotency_keys where status is null`)
    else {
      // As old as the key of a process that died.
      await service.db.run(
        sql`update idempotency_keys set created_at = now() - interval '2 minutes' where status is null`,
      )
      await until('the renewal of the key', 120, async () => {
        const [row] = await service.db.prepared<{ old: boolean }>(
          'oldest',
          `select bool_or(created_at < now() - interval '1 minute') as old from idempotency_keys
            where status is null`,
          [],
        )
        return row?.old === false
      })
      expect((await post()).status).toBe(409)
    }
    const second = died ? post() : undefined
    writeFileSync(go, '')
    const { status, body: record } = await first
    expect([status, record.stdout]).toEqual([201, 'over\n'])
    const again = await (second ?? post())
    expect([again.status, again.body.id, again.body.stdout]).toEqual([201, record.id, 'over\n'])
    expect(readFileSync(begun, 'utf8')).toBe('begun\n')
  })

  test('runs again with another body after its key is free', async () => {
    const post = (command: string) =>
      service.call(
        'POST',
        '/console-commands/',
        { resourceId: 'here', command },
        { 'idempotency-key': 'two' },
      )
    const one = await post('echo one')
    await service.db.run(sql`delete from idempotency_keys`)
    const two = await post('echo two')
    expect([one.body.stdout, two.body.stdout]).toEqual(['one\n', 'two\n'])
    // A day later the key is one of another request.
    await service.db.run(sql`delete from idempotency_keys`)
    await service.db.run(sql`update console_commands set created_at = now() - interval '25 hours'`)
    const third = await post('echo two')
    expect(third.body.id).not.toBe(two.body.id)
  })
})
