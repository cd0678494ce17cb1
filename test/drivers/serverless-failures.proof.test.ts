import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import { execFileSync, spawn } from 'node:child_process'
import { createHash, createSecretKey } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { request as send } from 'node:http'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from '../support/fast-check.ts'
import { addressJudge } from '../../src/clients/denied-networks.ts'
import { openFunctions, type Functions } from '../../src/clients/functions.ts'
import type { Collected, Intent, TaskState } from '../../src/drivers/runtime/contract/driver.ts'
import type { RootedDriver } from '../../src/drivers/runtime/contract/rooted.ts'
import {
  openServerlessDriver,
  type ServerlessDriverOptions,
} from '../../src/drivers/runtime/serverless/driver.ts'
import { serverlessProblems } from '../../src/drivers/runtime/serverless/configuration.ts'
import { openCallLinks } from '../../src/drivers/runtime/serverless/links.ts'
import { placeRun } from '../../src/drivers/runtime/serverless/protocol.ts'
import { LinkError } from '../../src/shell/site-shell.ts'
import { slow, startFunctions, type FunctionsSite, type PlatformAnswer } from '../../sites/functions.ts'
import { until } from '../../sites/ground.ts'
import { runFolder } from '../support/run-folder.ts'

const seconds = 60_000
const linkKey = { secret: createSecretKey(Buffer.alloc(32, 7)) }
let site: FunctionsSite
let functions: Functions
let scratch: string
let opened: RootedDriver[]
let count = 0

beforeAll(async () => {
  site = await startFunctions()
  functions = openFunctions({ addressAllowed: () => true })
}, seconds)
afterAll(async () => {
  functions.close()
  await site.stop()
})
beforeEach(() => {
  scratch = mkdtempSync(join(runFolder(), 'orrery-calls-'))
  opened = []
  site.failure = undefined
  site.token = undefined
})
afterEach(async () => {
  for (const driver of opened) await driver.close()
  rmSync(scratch, { recursive: true, force: true })
})

const optionsOf = (configuration: object = {}): Omit<ServerlessDriverOptions, 'invoke'> => ({
  root: scratch,
  runtime: 'fn',
  taskVariable: 'ORRERY_TASK',
  configuration: { endpoint: site.gateway, ...configuration },
  pollMilliseconds: 20,
  answerGraceSeconds: 1,
})
const open = (configuration: object = {}, more: Partial<ServerlessDriverOptions> = {}): RootedDriver => {
  const driver = openServerlessDriver({ ...optionsOf(configuration), invoke: functions.invoke, ...more })
  opened.push(driver)
  return driver
}
const intent = (script: string, more: Partial<Intent> = {}): Intent => {
  const name = `call-${++count}`
  return {
    ...{
      name,
      directory: join(scratch, 'work', name),
      argv: ['/bin/sh', '-c', script],
      environment: {},
      stage: [],
    },
    ...{ expectedOutputs: [], cores: 1, memoryBytes: 0, timeoutSeconds: 0, ...more },
  }
}
const ended = (driver: RootedDriver, name: string): Promise<void> =>
  new Promise((resolve) => driver.watch([name], () => resolve()))
const run = async (driver: RootedDriver, task: Intent): Promise<TaskState> => {
  expect(await driver.submit([task])).toMatchObject([{ ok: true }])
  await ended(driver, task.name)
  return (await driver.find([task.name])).get(task.name)!
}
/** The command notes itself, so that runs can be counted. */
const noting = (): { script: string; runs: () => number } => {
  const ledger = join(scratch, `runs-${++count}`)
  return {
    script: `echo x >> ${ledger}`,
    runs: () => (existsSync(ledger) ? readFileSync(ledger, 'utf8').trim().split('\n').length : 0),
  }
}
const collected = (driver: RootedDriver, task: Intent): Promise<Collected> => driver.collect(task.name)
/** What the function would have answered, changed. */
const changed =
  (change: (answer: Record<string, unknown>) => unknown) =>
  async (
    _: unknown,
    response: { end: (text: string) => unknown },
    forward: () => Promise<PlatformAnswer>,
  ): Promise<boolean> => {
    const { body } = await forward()
    response.end(JSON.stringify(change(JSON.parse(body.toString()) as Record<string, unknown>)))
    return true
  }

describe('platforms', () => {
  const task = (): Intent =>
    intent('cat in.txt; echo made > out.txt', { stage: [seed()], expectedOutputs: ['out.txt'] })
  const seed = (): Intent['stage'][number] => {
    const from = join(scratch, 'seed')
    mkdirSync(from, { recursive: true })
    writeFileSync(join(from, 'in.txt'), 'given\n')
    return { from, label: 'seed' }
  }
  const finished = async (driver: RootedDriver): Promise<Collected> => {
    const one = task()
    expect(await run(driver, one)).toMatchObject({ state: 'ended', exitCode: 0, reason: 'exited' })
    const outcome = await collected(driver, one)
    expect(outcome).toMatchObject({
      missingOutputs: [],
      manifest: { files: [{ path: 'out.txt', change: 'created' }] },
    })
    expect((await driver.logs(one.name, 'stdout', { tail: 99 })).bytes.toString()).toBe('given\n')
    expect(readFileSync(join(one.directory, 'out.txt'), 'utf8')).toBe('made\n')
    return outcome
  }
  const aws = (): ServerlessDriverOptions['credential'] => () =>
    Promise.resolve({ kind: 'aws', ...site.accessKey })
  const lambda = {
    shape: 'lambda',
    function: 'command',
    region: 'eu-central-1',
    credentialRef: 'vault:cloud-credential/a',
  }

  test('a plain endpoint, with a token', async () => {
    site.token = 'let me in'
    await finished(open({}, { credential: () => Promise.resolve({ kind: 'bearer', token: 'let me in' }) }))
    const wrong = open({}, { credential: () => Promise.resolve({ kind: 'bearer', token: 'no' }) })
    const one = task()
    expect(await run(wrong, one)).toMatchObject({ state: 'lost' })
    await expect(collected(wrong, one)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('credentialRef'),
    })
  })

  test('a gateway of OpenFaaS', async () => {
    expect((await finished(open({ shape: 'openfaas', function: 'command' }))).detail).toMatchObject({
      requestId: expect.any(String),
    })
    const one = task()
    const absent = open({ shape: 'openfaas', function: 'other' })
    expect(await run(absent, one)).toMatchObject({
      state: 'lost',
      cause: expect.stringContaining('no such function'),
    })
  })

  test('Lambda: requests are signed, and the request id is told', async () => {
    const { detail } = await finished(open(lambda, { credential: aws() }))
    expect(detail?.requestId).toMatch(/^[0-9a-f-]{36}$/)
    const stolen = open(lambda, {
      credential: () =>
        Promise.resolve({ kind: 'aws', accessKeyId: 'AKIAEXAMPLE', secretAccessKey: 'other' }),
    })
    const one = task()
    await run(stolen, one)
    await expect(collected(stolen, one)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('403'),
    })
  })

  test('Lambda: a function that crashes is a failure of the platform, its time limit is a walltime', async () => {
    const driver = open({ ...lambda, retries: 0 }, { credential: aws() })
    const crash = (message: string) =>
      (site.failure = (_, response) => {
        response
          .writeHead(200, { 'x-amz-function-error': 'Unhandled' })
          .end(JSON.stringify({ errorMessage: message }))
        return true
      })
    crash('Runtime exited with error: exit status 1')
    expect(await run(driver, intent('true'))).toMatchObject({
      state: 'lost',
      cause: expect.stringContaining('exit status 1'),
    })
    crash('RequestId: 1 Error: Runtime exited with error: signal: killed')
    expect(await run(driver, intent('true'))).toMatchObject({
      state: 'ended',
      reason: 'memory',
      exitCode: null,
    })
    crash('2026-01-01T00:00:00 1234 Task timed out after 3.00 seconds')
    expect(await run(driver, intent('true'))).toMatchObject({
      state: 'ended',
      reason: 'walltime',
      exitCode: null,
    })
  })

  test('asked again until it is done (poll)', async () => {
    const driver = open({ mode: 'poll', pollSeconds: 0.05 })
    const one = intent('sleep 0.5; echo over')
    expect(await run(driver, one)).toMatchObject({ state: 'ended', exitCode: 0 })
    expect(site.calls(one.name)).toBe(1)
    expect(site.seen.filter(({ kind, name }) => kind === 'poll' && name === one.name).length).toBeGreaterThan(
      1,
    )
    expect((await collected(driver, one)).wallSeconds).toBeGreaterThan(0.49)
  })

  test('the same file as Lambda loads it', () => {
    const event = {
      schemaVersion: 1,
      name: 'as-lambda',
      argv: ['/bin/sh', '-c', 'cat in; exit 5'],
      environment: {},
      expectedOutputs: [],
    }
    const inputs = [
      {
        path: 'in',
        mode: 0o644,
        sizeBytes: 1,
        sha256: createHash('sha256').update('x').digest('hex'),
        contentBase64: 'eA==',
      },
    ]
    const more = {
      inputs,
      outputs: 'changed',
      timeoutSeconds: 0,
      limitSeconds: 900,
      answerLimitBytes: 6e6,
      respond: 'poll',
    }
    const events = [
      { ...event, ...more },
      { schemaVersion: 1, name: 'as-lambda', poll: true },
      { schemaVersion: 1, name: 'none', poll: true },
      { name: '' },
    ]
    const script = `const { handler } = await import(process.argv[1])
      for (const event of JSON.parse(process.argv[2]))
        console.log(JSON.stringify(await handler(event, { awsRequestId: 'id' })))`
    const entry = join(import.meta.dirname, '../../examples/functions/index.js')
    const answers = execFileSync(
      process.execPath,
      ['--input-type=module', '-e', script, entry, JSON.stringify(events)],
      {
        env: {
          PATH: process.env['PATH'],
          AWS_LAMBDA_FUNCTION_NAME: 'command',
          CALL_LEDGER: join(scratch, 'ledger'),
        },
        encoding: 'utf8',
      },
    )
    const [first, again, none, bad] = answers
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>)
    expect(first).toMatchObject({
      name: 'as-lambda',
      exitCode: 5,
      stdout: 'eA==',
      coldStart: true,
      requestId: 'id',
      outputs: [],
    })
    expect(again).toEqual(first)
    expect(none).toMatchObject({ state: 'unknown' })
    expect(bad).toMatchObject({ error: expect.stringContaining('schemaVersion') })
  })

  test('paths in the environment lead to where the command runs', async () => {
    const task = intent(
      'cd "$WORK" && echo made > "$OUT" && [ -d "$HOME" ] && [ "$HOME" = "$WORK.home" ] && echo "$PLAIN"',
    )
    const environment = { WORK: task.directory, OUT: join(task.directory, 'out.txt'), PLAIN: '/elsewhere' }
    const driver = open()
    expect(await run(driver, { ...task, environment })).toMatchObject({ exitCode: 0 })
    expect((await driver.logs(task.name, 'stdout', { tail: 99 })).bytes.toString()).toBe('/elsewhere\n')
    expect((await collected(driver, task)).manifest.files).toMatchObject([{ path: 'out.txt' }])
  })

  test('a token that was replaced is opened again, once it is refused; it is not opened for each call', async () => {
    site.token = 'first'
    let opened = 0
    const driver = open(
      {},
      { credential: async () => ({ kind: 'bearer', token: ++opened === 1 ? 'first' : 'second' }) },
    )
    for (let turn = 0; turn < 3; turn++)
      expect(await run(driver, intent('true'))).toMatchObject({ state: 'ended', exitCode: 0 })
    expect(opened).toBe(1)
    site.token = 'second'
    for (let turn = 0; turn < 3; turn++)
      expect(await run(driver, intent('true'))).toMatchObject({ state: 'ended', exitCode: 0 })
    expect(opened).toBe(2)
  })

  test('a credential that cannot be opened is refused with its words; a vault that is away is waited for', async () => {
    const absent = open(
      {},
      {
        credential: () =>
          Promise.reject(Object.assign(new Error('"vault:x" names nothing'), { code: 'unacceptable' })),
      },
    )
    expect(await run(absent, intent('true'))).toMatchObject({
      state: 'lost',
      cause: expect.stringContaining('names nothing'),
    })
    let turns = 0
    const away = open(
      {},
      {
        credential: async () => {
          if (++turns === 1) throw new LinkError('name', 'the vault is away')
          return { kind: 'bearer', token: 'any' }
        },
      },
    )
    expect(await run(away, intent('true'))).toMatchObject({ state: 'ended', exitCode: 0 })
  })

  test('a certificate is held against the authorities, or the one that the configuration names', async () => {
    const [key, certificate] = [join(scratch, 'key.pem'), join(scratch, 'cert.pem')]
    const wanted = ['-subj', '/CN=function.test', '-addext', 'subjectAltName=DNS:localhost', '-days', '2']
    execFileSync(
      'openssl',
      ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', key, '-out', certificate, ...wanted],
      {
        stdio: 'ignore',
      },
    )
    const server = createServer(
      { key: readFileSync(key), cert: readFileSync(certificate) },
      (request, response) => {
        const asked = send(
          site.framework,
          { method: 'POST', headers: { 'content-type': 'application/json' } },
          (answer) => answer.pipe(response),
        )
        request.pipe(asked)
      },
    )
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const endpoint = `https://localhost:${(server.address() as AddressInfo).port}/`
    try {
      expect(await run(open({ endpoint }), intent('true'))).toMatchObject({
        state: 'lost',
        cause: expect.stringContaining('certificate'),
      })
      const known = open({ endpoint, certificateAuthority: readFileSync(certificate, 'utf8') })
      expect(await run(known, intent('exit 2'))).toMatchObject({ state: 'ended', exitCode: 2 })
    } finally {
      server.closeAllConnections()
      server.close()
    }
  })

  test(
    'a cold start is told once, as overhead',
    async () => {
      await site.kill()
      await site.start()
      const driver = open()
      site.failure = slow(0.3)
      const [first, second] = [intent('sleep 0.1'), intent('sleep 0.1')]
      await run(driver, first)
      site.failure = undefined
      await run(driver, second)
      const outcome = await collected(driver, first)
      expect(outcome.detail?.coldStartSeconds).toBeGreaterThan(0.29)
      expect(outcome.wallSeconds).toBeLessThan(outcome.detail!.coldStartSeconds! + 0.3)
      expect((await collected(driver, second)).detail?.coldStartSeconds).toBeUndefined()
    },
    seconds,
  )
})

describe('failures', () => {
  test('a slow answer is waited for', async () => {
    site.failure = slow(1)
    const task = intent('exit 3')
    expect(await run(open(), task)).toMatchObject({ state: 'ended', exitCode: 3 })
    expect(site.calls(task.name)).toBe(1)
  })

  test('no answer ends at the platform’s time limit', async () => {
    site.failure = ({ kind }) => kind === 'call'
    const began = Date.now()
    expect(await run(open({ timeLimitSeconds: 1 }), intent('true'))).toMatchObject({
      state: 'ended',
      reason: 'walltime',
      exitCode: null,
    })
    expect(Date.now() - began).toBeGreaterThan(1_900)
  })

  test('answers twice: the first one counts', async () => {
    const driver = open({ mode: 'poll', pollSeconds: 0.05 })
    const task = intent('echo first; echo first > file')
    await run(driver, task)
    const before = await collected(driver, task)
    site.failure = changed((answer) => ({ ...answer, exitCode: 9, stdout: '' }))
    // Another worker that asks as well.
    await open().submit([task])
    await sleep(200)
    expect(await collected(driver, task)).toEqual(before)
    expect(before.state).toMatchObject({ exitCode: 0 })
    expect((await driver.logs(task.name, 'stdout', { tail: 99 })).bytes.toString()).toBe('first\n')
  })

  test('an answer of 100 MiB is not read to its end', async () => {
    let given = 0
    site.failure = ({ kind }, response) => {
      if (kind !== 'call') return false
      response.writeHead(200, { 'content-type': 'application/json' })
      const chunk = Buffer.alloc(1024 * 1024, 0x20)
      const more = (): void => {
        while (!response.destroyed && given++ < 100)
          if (!response.write(chunk)) return void response.once('drain', more)
        response.end()
      }
      more()
      return true
    }
    const driver = open({ answerLimitBytes: 4 * 1024 * 1024 })
    const task = intent('true')
    await run(driver, task)
    await expect(collected(driver, task)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('answerLimitBytes'),
    })
    expect(given).toBeLessThan(90)
    site.failure = (_, response) => {
      response.writeHead(200, { 'content-length': String(100 * 1024 * 1024) }).flushHeaders()
      return true
    }
    expect(await run(open(), intent('true'))).toMatchObject({
      state: 'lost',
      cause: expect.stringContaining('answerLimitBytes'),
    })
  })

  const wrong: [string, (answer: Record<string, any>) => unknown, RegExp][] = [
    ['something else', () => ({ hello: 'world' }), /call protocol, version 1: .*hello/],
    ['for another call', (answer) => ({ ...answer, name: 'other' }), /answered for "other"/],
    [
      'another digest',
      (a) => ({ ...a, outputs: [{ ...a['outputs'][0], sha256: 'f'.repeat(64) }] }),
      /"file" has the digest .* promised ffff/,
    ],
    [
      'another size',
      (a) => ({ ...a, outputs: [{ ...a['outputs'][0], sizeBytes: 1 }] }),
      /"file" has 5 bytes, and the function promised 1/,
    ],
    [
      'a path to the outside',
      (a) => ({ ...a, outputs: [{ ...a['outputs'][0], path: '../../evil' }] }),
      /outputs\.0\.path/,
    ],
    ['twice the same', (a) => ({ ...a, outputs: [a['outputs'][0], a['outputs'][0]] }), /twice/],
    [
      'what was not uploaded',
      (a) => ({ ...a, outputs: [{ path: 'u', sizeBytes: 1, sha256: 'f'.repeat(64), uploaded: true }] }),
      /was not uploaded/,
    ],
    [
      'what nobody promised',
      (a) => ({ ...a, outputs: [{ ...a['outputs'][0], path: 'surprise' }] }),
      /"surprise" was not promised; expected are file/,
    ],
    [
      'no content',
      (a) => ({ ...a, outputs: [{ path: 'n', sizeBytes: 1 }] }),
      /must have one of contentBase64/,
    ],
  ]
  test.each(wrong)('an answer that is %s is refused with what it said', async (_, change, words) => {
    site.failure = changed(change as (answer: Record<string, unknown>) => unknown)
    const driver = open({ outputs: 'expected' })
    const task = intent('echo made > file', {
      expectedOutputs: ['file', 'u', 'n', 'l'].slice(0, change.toString().includes('surprise') ? 1 : 4),
    })
    await run(driver, task)
    await expect(collected(driver, task)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringMatching(words),
    })
    expect(readdirSync(task.directory)).toEqual([])
    expect(existsSync(join(scratch, 'evil'))).toBe(false)
  })

  test('links come along; a promised one that leads elsewhere is missing, with its target', async () => {
    const driver = open()
    const task = intent('echo x > x; ln -s "$PWD/x" in; ln -s /etc/passwd out', {
      expectedOutputs: ['in', 'out'],
    })
    await run(driver, task)
    expect(await collected(driver, task)).toMatchObject({
      missingOutputs: ['out'],
      strayOutputs: [{ path: 'out', why: expect.stringContaining('"/etc/passwd", outside') }],
    })
    expect(readFileSync(join(task.directory, 'in'), 'utf8')).toBe('x\n')
  })

  test('garbage is refused with what it said', async () => {
    site.failure = (_, response) => {
      response.end('<html>\u0000hello</html>')
      return true
    }
    const driver = open()
    const task = intent('true')
    await run(driver, task)
    await expect(collected(driver, task)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('not JSON'),
    })
  })

  test('failures pass: the call is made again under its name, and has run once', async () => {
    const { script, runs } = noting()
    let failures = 0
    site.failure = async (_, response, forward) => {
      // The last of them has done the work already.
      if (++failures > 3) return false
      if (failures === 3) await forward()
      response.writeHead(500).end('oops')
      return true
    }
    const task = intent(script)
    expect(await run(open(), task)).toMatchObject({ state: 'ended', exitCode: 0 })
    expect([runs(), site.calls(task.name)]).toEqual([1, 4])
  })

  test('failures that do not pass are failures of the site', async () => {
    site.failure = (_, response) => {
      response.writeHead(500).end('out of order')
      return true
    }
    const task = intent('true')
    expect(await run(open({ retries: 1 }), task)).toMatchObject({
      state: 'lost',
      cause: expect.stringMatching(/500.*out of order.*2 times/),
    })
    expect(site.calls(task.name)).toBe(2)
  })

  test('a platform that is busy is asked again when it wants to be; meanwhile the task is queued, with the reason', async () => {
    let busy = 2
    const times: number[] = []
    site.failure = (_, response) => {
      times.push(Date.now())
      if (busy-- <= 0) return false
      response.writeHead(429, { 'retry-after': '1' }).end()
      return true
    }
    const driver = open()
    const task = intent('true')
    await driver.submit([task])
    await until('the reason', async () => {
      const state = (await driver.find([task.name])).get(task.name)
      return state?.state === 'queued' && state.cause?.includes('429') === true
    })
    await ended(driver, task.name)
    expect((await driver.find([task.name])).get(task.name)).toMatchObject({ state: 'ended', exitCode: 0 })
    expect(times[1]! - times[0]!).toBeGreaterThan(950)
  })

  test('a connection that breaks in the middle: asked again, has run once', async () => {
    const { script, runs } = noting()
    let cuts = 0
    site.failure = async (_, response, forward) => {
      if (++cuts > 2) return false
      if (cuts === 2) void forward().catch(() => undefined)
      response.destroy()
      return true
    }
    const task = intent(`${script}; sleep 0.3`)
    expect(await run(open(), task)).toMatchObject({ state: 'ended', exitCode: 0 })
    expect(runs()).toBe(1)
  })

  test(
    'a function killed in the middle and started again runs the call anew, and answers once',
    async () => {
      const { script, runs } = noting()
      const driver = open()
      const task = intent(`${script}; sleep 1; echo made > file`)
      await driver.submit([task])
      await until('the command', async () => runs() === 1)
      await site.kill()
      await site.start()
      await ended(driver, task.name)
      expect(runs()).toBe(2)
      expect(await collected(driver, task)).toMatchObject({
        state: { state: 'ended', exitCode: 0 },
        manifest: { files: [{ path: 'file' }] },
      })
    },
    seconds,
  )

  test(
    'a function that is away is waited for',
    async () => {
      await site.kill()
      const driver = open({ endpoint: site.framework })
      const task = intent('true')
      await driver.submit([task])
      await until('the reason', async () => {
        const state = (await driver.find([task.name])).get(task.name)
        return state?.state === 'queued' && /ECONNREFUSED/.test(state.cause ?? '')
      })
      await site.start()
      await ended(driver, task.name)
      expect((await driver.find([task.name])).get(task.name)).toMatchObject({ state: 'ended', exitCode: 0 })
    },
    seconds,
  )

  const dying = async (configuration: object, task: Intent, begun: () => boolean): Promise<void> => {
    const child = spawn(process.execPath, [
      join(import.meta.dirname, 'serverless-submitter.ts'),
      JSON.stringify(optionsOf(configuration)),
      JSON.stringify([task]),
    ])
    const gone = once(child, 'exit')
    await until('the command of a worker that is about to die', async () => begun())
    child.kill('SIGKILL')
    await gone
  }

  test(
    'a worker killed in mid-call: the next one gets the answer of the same run',
    async () => {
      const { script, runs } = noting()
      const task = intent(`${script}; sleep 1; exit 4`)
      await dying({}, task, () => runs() === 1)
      const driver = open()
      expect((await driver.find([task.name])).get(task.name)).toMatchObject({ externalId: task.name })
      await ended(driver, task.name)
      expect((await driver.find([task.name])).get(task.name)).toMatchObject({ state: 'ended', exitCode: 4 })
      expect(runs()).toBe(1)
    },
    seconds,
  )

  test(
    'a function that is not idempotent is called once: without its answer the attempt is lost at the time limit',
    async () => {
      const { script, runs } = noting()
      const once = { idempotent: false, timeLimitSeconds: 2 }
      const task = intent(`${script}; sleep 0.5`)
      await dying(once, task, () => runs() === 1)
      const driver = open(once)
      await driver.submit([task])
      await ended(driver, task.name)
      expect((await driver.find([task.name])).get(task.name)).toMatchObject({
        state: 'lost',
        cause: expect.stringContaining('idempotent: false'),
      })
      expect([runs(), site.calls(task.name)]).toEqual([1, 1])
    },
    seconds,
  )

  test('a cancel that the function does not know ends the task here', async () => {
    site.failure = ({ kind }, response) => {
      if (kind === 'cancel') response.writeHead(400).end('what?')
      return true
    }
    const driver = open()
    const task = intent('sleep 30')
    await driver.submit([task])
    await until('the call', async () => site.calls(task.name) === 1)
    await driver.cancel([task.name], 0.2)
    expect((await driver.find([task.name])).get(task.name)).toMatchObject({
      state: 'ended',
      reason: 'cancelled',
      exitCode: null,
    })
  })

  test(
    '200 calls in flight and the worker is killed: the next one gets every answer, and each has run once',
    async () => {
      const ledger = join(scratch, 'ledger')
      const tasks = Array.from({ length: 200 }, () => intent(`echo "$ORRERY_TASK" >> ${ledger}; sleep 2`))
      const lines = (): string[] =>
        existsSync(ledger) ? readFileSync(ledger, 'utf8').trim().split('\n') : []
      const child = spawn(process.execPath, [
        join(import.meta.dirname, 'serverless-submitter.ts'),
        JSON.stringify(optionsOf()),
        JSON.stringify(tasks),
      ])
      const gone = once(child, 'exit')
      await until('commands of a worker that is about to die', async () => lines().length > 60)
      child.kill('SIGKILL')
      await gone
      const driver = open()
      const names = tasks.map(({ name }) => name)
      const over = Promise.all(names.map((name) => ended(driver, name)))
      await driver.submit(tasks)
      await over
      for (const state of (await driver.find(names)).values())
        expect(state).toMatchObject({ state: 'ended', exitCode: 0 })
      expect(lines().sort()).toEqual([...names].sort())
    },
    2 * seconds,
  )

  test.each(['poll', 'callback'])(
    'a function killed in the middle of a call that it is asked for (%s) gets it again',
    async (mode) => {
      const { script, runs } = noting()
      const links = openCallLinks({ primary: async () => linkKey, all: async () => [linkKey] })
      const driver = open({ mode, pollSeconds: 0.05, publicBaseUrl: 'http://127.0.0.1:9/api' }, { links })
      const task = intent(`${script}; sleep 1`)
      await driver.submit([task])
      await until('the command', async () => runs() === 1)
      await site.kill()
      await site.start()
      // Nobody answers at the callback's address: after a silence the function is asked.
      await ended(driver, task.name)
      expect((await driver.find([task.name])).get(task.name)).toMatchObject({ state: 'ended', exitCode: 0 })
      expect(runs()).toBe(2)
    },
    seconds,
  )

  test('no more calls at once than the runtime allows, however their answers come', async () => {
    for (const mode of ['sync', 'poll']) {
      const driver = open({ concurrency: 3, mode, pollSeconds: 0.05 })
      const tasks = Array.from({ length: 9 }, () => intent('sleep 0.1'))
      await driver.submit(tasks)
      let most = 0
      const names = new Set(tasks.map(({ name }) => name))
      const looking = setInterval(() => {
        void driver.find([...names]).then((states) => {
          most = Math.max(most, [...states.values()].filter(({ state }) => state === 'running').length)
        })
      }, 5)
      await Promise.all([...names].map((name) => ended(driver, name)))
      clearInterval(looking)
      expect(most).toBe(3)
    }
  })
})

describe('bad input', () => {
  test('an endpoint in a denied network is refused before a byte is sent', async () => {
    const judged = openFunctions({
      addressAllowed: addressJudge({ denied: ['127.0.0.0/8'], allowLoopback: true }),
    })
    try {
      for (const endpoint of [
        site.gateway,
        site.gateway.replace('127.0.0.1', 'localhost'),
        'http://169.254.169.254/',
        'http://metadata.google.internal/',
      ]) {
        const driver = open({ endpoint }, { invoke: judged.invoke })
        const task = intent('true')
        expect(await run(driver, task)).toMatchObject({
          state: 'lost',
          cause: expect.stringMatching(/denie[sd]|metadata|has no address/),
        })
        expect(site.calls(task.name)).toBe(0)
      }
    } finally {
      judged.close()
    }
  })

  test('a redirect is not followed', async () => {
    site.failure = (_, response) => {
      response.writeHead(307, { location: site.framework }).end()
      return true
    }
    expect(await run(open(), intent('true'))).toMatchObject({
      state: 'lost',
      cause: expect.stringContaining('redirect (307)'),
    })
  })

  test('a configuration is refused with everything that is wrong in it, at each submit', async () => {
    const driver = open({ endpoint: 'ftp://x', shape: 'lambda', concurrency: 0 })
    const [outcome] = await driver.submit([intent('true')])
    expect(outcome).toMatchObject({ ok: false, error: { trouble: 'refused' } })
    const message = outcome?.ok === false ? outcome.error.message : ''
    for (const word of ['endpoint', 'concurrency']) expect(message).toContain(`configuration.${word}`)
    const lambda = serverlessProblems(
      { timeoutSeconds: 0, memoryBytes: 0 },
      { endpoint: 'https://lambda.example', shape: 'lambda' },
    )
    expect(lambda.map(({ path }) => path)).toEqual([
      'configuration.function',
      'configuration.region',
      'configuration.credentialRef',
    ])
    const callback = serverlessProblems(
      { timeoutSeconds: 0, memoryBytes: 0 },
      { endpoint: 'https://f.example', mode: 'callback' },
    )
    expect(callback).toMatchObject([{ path: 'configuration.publicBaseUrl', severity: 'error' }])
    expect(serverlessProblems({ timeoutSeconds: 0, memoryBytes: 0 }, {})).toMatchObject([
      { path: 'configuration.endpoint', message: expect.stringContaining('is missing') },
    ])
  })

  test('limits are told before the run, an image is warned of', () => {
    const configuration = { endpoint: 'https://f.example', timeLimitSeconds: 900, memoryLimitBytes: 1024 }
    const found = serverlessProblems(
      { timeoutSeconds: 901, memoryBytes: 1025, gpus: 1, image: 'busybox' },
      configuration,
    )
    expect(found.map(({ path, severity }) => `${path} ${severity}`)).toEqual([
      'timeoutSeconds error',
      'memoryBytes error',
      'gpus error',
      'image warning',
    ])
    expect(serverlessProblems({ timeoutSeconds: 900, memoryBytes: 1024 }, configuration)).toEqual([])
  })

  test('inputs that the platform would not take are refused before anything is sent or left behind', async () => {
    const from = join(scratch, 'seed')
    mkdirSync(from)
    writeFileSync(join(from, 'big'), Buffer.alloc(100_000))
    const task = intent('true', { stage: [{ from, label: 'seed' }] })
    const driver = open({ payloadLimitBytes: 65_536 })
    expect(await driver.submit([task])).toMatchObject([
      { ok: false, error: { trouble: 'refused', message: expect.stringContaining('payloadLimitBytes') } },
    ])
    expect((await driver.find([task.name])).get(task.name)).toEqual({ state: 'unknown' })
    expect([site.calls(task.name), existsSync(task.directory)]).toEqual([0, false])
  })

  test('outputs larger than an answer are refused, with the remedy', async () => {
    const driver = open({ answerLimitBytes: 4 * 1024 * 1024 })
    const task = intent('head -c 4000000 /dev/zero > big')
    await run(driver, task)
    await expect(collected(driver, task)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('nowhere to upload'),
    })
  })
})

test('a function’s clock tells how long, ours when: a run lies between sending and answer, whatever the clock', () => {
  const time = fc.double({ min: 0, max: 1e10, noNaN: true })
  fc.assert(
    fc.property(
      time,
      fc.double({ min: 0, max: 1e4, noNaN: true }),
      time,
      fc.double({ min: -10, max: 2e4, noNaN: true }),
      (sentAt, window, began, lasted) => {
        const placed = placeRun({ startedAt: began, finishedAt: began + lasted }, sentAt, sentAt + window)
        expect(placed.wallSeconds).toBeGreaterThanOrEqual(0)
        expect(placed.startedAt).toBeGreaterThanOrEqual(sentAt - 1e-5)
        expect(placed.finishedAt).toBeLessThanOrEqual(sentAt + window + 1e-5)
      },
    ),
  )
  expect(placeRun({ startedAt: 103, finishedAt: 105 }, 100, 110)).toEqual({
    startedAt: 103,
    finishedAt: 105,
    wallSeconds: 2,
  })
  expect(placeRun({ startedAt: 9003, finishedAt: 9005 }, 100, 110)).toEqual({
    startedAt: 108,
    finishedAt: 110,
    wallSeconds: 2,
  })
})
