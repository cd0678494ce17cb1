import { expect, test } from '@jest/globals'
import fc from 'fast-check'
import { openLog } from '../../src/observability/log.ts'
import { sdkLog } from '../../src/observability/sdk-log.ts'

const written = (write: (log: ReturnType<typeof openLog>) => void): { line: string; entry: Record<string, unknown> } => {
  let line = ''
  write(openLog('info', { write: (text) => (line += text) }))
  return { line, entry: JSON.parse(line) as Record<string, unknown> }
}

test('a log line is one JSON object with level, time and the ids of its context', () => {
  const { entry } = written((log) => {
    log.child({ requestId: 'r1' }).child({ runId: 'run-7', workflowId: 'execution-run/run-7/1' }).warn({ n: 3 }, 'slow')
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

test("the Temporal SDK's warnings are lines of ours, its information about itself is not", () => {
  const { entry } = written((log) => {
    const sdk = sdkLog(log)
    sdk.info('bundled')
    sdk.warn('slow', { taskQueue: 'q' })
  })
  expect(entry).toMatchObject({ level: 'warn', msg: 'slow', temporal: { taskQueue: 'q' } })
})
