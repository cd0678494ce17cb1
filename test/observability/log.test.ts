import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { openLog } from '../../src/observability/log.ts'
import { sdkLog } from '../../src/observability/sdk-log.ts'
import { logSentence } from '../../src/observability/terminal.ts'

const written = (
  write: (log: ReturnType<typeof openLog>) => void,
): { line: string; entry: Record<string, unknown> } => {
  let line = ''
  write(openLog('info', { write: (text) => (line += text) }))
  return { line, entry: JSON.parse(line) as Record<string, unknown> }
}

test('a log line is one JSON object with level, time and the ids of its context', () => {
  const { entry } = written((log) => {
    log
      .child({ requestId: 'r1' })
      .child({ runId: 'run-7', workflowId: 'execution-run/run-7/1' })
      .warn({ n: 3 }, 'slow')
  })
  expect(entry).toMatchObject({
    level: 'warn',
    requestId: 'r1',
    runId: 'run-7',
    workflowId: 'execution-run/run-7/1',
    n: 3,
    msg: 'slow',
    pid: process.pid,
  })
  expect(Date.parse(String(entry.time))).toBeGreaterThan(Date.now() - 60_000)
})

test('no secret reaches the log: by member name, in URLs, in bearer headers, in errors', () => {
  fc.assert(
    fc.property(fc.stringMatching(/^[A-Za-z0-9]{16,32}$/), (secret) => {
      const url = `postgres://orrery:${secret}@127.0.0.1:5432/orrery`
      for (const write of [
        (log: ReturnType<typeof openLog>) => {
          log.info(
            {
              apiToken: secret,
              config: { databaseUrl: url, apiToken: secret },
              request: { headers: { authorization: `Bearer ${secret}` } },
            },
            'x',
          )
        },
        (log: ReturnType<typeof openLog>) => {
          log.info(`connecting to ${url} with Bearer ${secret}`)
        },
        (log: ReturnType<typeof openLog>) => {
          log.error({ err: new Error(`no answer from ${url}`) }, 'failed')
        },
      ])
        expect(written(write).line).not.toContain(secret)
    }),
    { seed: 5, numRuns: 30 },
  )
})

test('lines below the level are not written', () => {
  let text = ''
  openLog('error', { write: (line) => (text += line) }).warn('no')
  expect(text).toBe('')
})

test('an error brings its text, code and stack, and nothing else that a library hangs on it', () => {
  const lost = Object.assign(new Error('terminating connection'), {
    code: '57P01',
    client: { query: 'select 1', secretKey: 4711 },
  })
  const { entry, line } = written((log) => {
    log.warn({ err: lost }, 'lost')
  })
  expect(Object.keys(entry.err as object).sort()).toEqual(['code', 'message', 'stack', 'type'])
  expect(line).not.toMatch(/select 1|4711/)
  const several = new AggregateError(
    [new Error('connect ECONNREFUSED ::1:1'), new Error('connect ECONNREFUSED 127.0.0.1:1')],
    '',
  )
  expect(written((log) => log.warn({ err: several }, 'no')).entry).toMatchObject({
    err: { message: 'connect ECONNREFUSED ::1:1; connect ECONNREFUSED 127.0.0.1:1' },
  })
})

test('in a terminal a line is a sentence: time, level, text, reason with code, members; no stack', () => {
  const lost = Object.assign(new Error('terminating connection'), { code: '57P01' })
  const { line } = written((log) => {
    log.child({ program: 'orrery' }).warn({ err: lost, runId: 'r1', left: 2 }, 'a connection was lost')
  })
  expect(logSentence(line)).toMatch(
    /^\d\d:\d\d:\d\d warn: a connection was lost: terminating connection \(57P01\) \(runId r1, left 2\)\n$/,
  )
})

test("the Temporal SDK's warnings are lines of ours, its information about itself is not", () => {
  const { entry } = written((log) => {
    const sdk = sdkLog(log)
    sdk.info('bundled')
    sdk.warn('slow', { taskQueue: 'q' })
    // Two of our workers have none, and are meant to.
    sdk.warn('No workflows registered, not polling for workflow tasks', { taskQueue: 'q' })
  })
  expect(entry).toMatchObject({ level: 'warn', msg: 'slow', temporal: { taskQueue: 'q' } })
})

test("the SDK's line about a failed activity has the message, and not the token that ends the task", () => {
  const { entry, line } = written((log) => {
    sdkLog(log).warn('Activity failed', {
      ...{ error: new Error('no route to far'), taskToken: 'CiQxMjM0', durationMs: 12, site: 'ssh/far' },
      ...{ workflowId: 'execution-run/r1/1', activityType: 'runSite', attempt: 3 },
    })
  })
  expect(entry).toMatchObject({
    ...{ level: 'warn', msg: 'Activity failed', site: 'ssh/far' },
    err: { type: 'Error', message: 'no route to far', stack: expect.stringContaining('log.test') },
    temporal: { workflowId: 'execution-run/r1/1', activityType: 'runSite', attempt: 3 },
  })
  expect(line).not.toContain('CiQxMjM0')
})
