import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import { createSecretKey, randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openFunctions, type Functions } from '../../src/clients/functions.ts'
import { functionCallRoutes } from '../../src/domains/function-calls/routes.ts'
import { openFunctionCalls } from '../../src/domains/function-calls/store.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import type { RootedDriver } from '../../src/drivers/runtime/contract/rooted.ts'
import {
  openServerlessDriver,
  type ServerlessDriverOptions,
} from '../../src/drivers/runtime/serverless/driver.ts'
import { openCalls } from '../../src/drivers/runtime/serverless/calls.ts'
import { openCallLinks, type LinkPurpose } from '../../src/drivers/runtime/serverless/links.ts'
import { openMetrics } from '../../src/observability/metrics.ts'
import { startFunctions, type FunctionsSite } from '../../sites/functions.ts'
import { until } from '../../sites/ground.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { runFolder } from '../support/run-folder.ts'

const key = (): { secret: ReturnType<typeof createSecretKey> } => ({
  secret: createSecretKey(randomBytes(32)),
})
let keys = [key()]
const links = openCallLinks({ primary: async () => keys[0]!, all: async () => keys })
const metrics = openMetrics(undefined)

let site: FunctionsSite
let functions: Functions
let scratch: string
let routes: OpenedRoutes
let publicBaseUrl: string
let opened: RootedDriver[]
let count = 0
/** Whether the API shows an archive. */
let activated = false

beforeAll(async () => {
  site = await startFunctions()
  functions = openFunctions({ addressAllowed: () => true })
})
afterAll(async () => {
  functions.close()
  await site.stop()
})
beforeEach(async () => {
  scratch = mkdtempSync(join(runFolder(), 'orrery-function-calls-'))
  opened = []
  keys = [key()]
  site.failure = undefined
  routes = await openRoutes(
    () =>
      functionCallRoutes({
        functionCalls: openFunctionCalls({ root: scratch, links, clock: () => Date.now() / 1000 }),
      }),
    {
      config: { apiToken: 'for people', bodyLimitBytes: 1024 },
      kernel: {
        activated: () => activated,
        observe: (method, route, status, seconds) => metrics.request(method, route, status, seconds),
      },
    },
  )
  publicBaseUrl = routes.baseUrl
})
afterEach(async () => {
  for (const driver of opened) await driver.close()
  await routes.close()
  rmSync(scratch, { recursive: true, force: true })
})

const open = (configuration: object, more: Partial<ServerlessDriverOptions> = {}): RootedDriver => {
  const driver = openServerlessDriver({
    ...{
      root: scratch,
      runtime: 'fn',
      taskVariable: 'ORRERY_TASK',
      pollMilliseconds: 20,
      answerGraceSeconds: 1,
      links,
      invoke: functions.invoke,
    },
    configuration: { endpoint: site.gateway, publicBaseUrl, queueSeconds: 5, ...configuration },
    ...more,
  })
  opened.push(driver)
  return driver
}
const intent = (script: string, more: Partial<Intent> = {}): Intent => {
  const name = `made-${++count}`
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
const finished = async (driver: RootedDriver, task: Intent) => {
  expect(await driver.submit([task])).toMatchObject([{ ok: true }])
  await ended(driver, task.name)
  return driver.collect(task.name)
}

describe('callbacks', () => {
  const platforms: [string, object, Partial<ServerlessDriverOptions>][] = [
    ['a plain endpoint', {}, {}],
    ['the queue of OpenFaaS', { shape: 'openfaas', function: 'command' }, {}],
    [
      'an event of Lambda',
      {
        shape: 'lambda',
        function: 'command',
        region: 'eu-central-1',
        credentialRef: 'vault:cloud-credential/a',
      },
      {
        credential: () =>
          Promise.resolve({ kind: 'aws', accessKeyId: 'AKIAEXAMPLE', secretAccessKey: 'example-secret/key' }),
      },
    ],
  ]
  test.each(platforms)('%s takes the call and the answer comes by itself', async (_, configuration, more) => {
    const task = intent('sleep 0.2; echo hello; echo made > file; exit 3')
    const driver = open({ mode: 'callback', ...configuration }, more)
    expect(await finished(driver, task)).toMatchObject({
      state: { exitCode: 3 },
      manifest: { files: [{ path: 'file', change: 'created' }] },
    })
    expect((await driver.logs(task.name, 'stdout', { tail: 99 })).bytes.toString()).toBe('hello\n')
    expect(site.calls(task.name)).toBe(1)
    expect(routes.audits.at(-1)).toMatchObject({
      eventType: 'function-call.answered',
      outcome: 'succeeded',
      actorId: 'anonymous',
    })
  })

  test('while an archive is activated a callback passes by its link, and others are 423', async () => {
    activated = true
    try {
      const task = intent('exit 4')
      expect(await finished(open({ mode: 'callback' }), task)).toMatchObject({ state: { exitCode: 4 } })
      const { status } = await routes.call('POST', `/function-calls/${task.name}/result/`, { exitCode: 0 })
      expect(status).toBe(423)
    } finally {
      activated = false
    }
  })

  test('a callback while no worker is alive is kept for the next one, though the keys were rotated meanwhile', async () => {
    const task = intent('sleep 0.5; exit 6')
    const first = open({ mode: 'callback' })
    await first.submit([task])
    await until('the call', async () => site.calls(task.name) === 1)
    await first.close()
    keys = [key(), ...keys]
    await until('the answer', async () => openCalls(join(scratch, 'calls')).hasAnswer(task.name))
    const second = open({ mode: 'callback' })
    await ended(second, task.name)
    expect(await second.collect(task.name)).toMatchObject({ state: { exitCode: 6 } })
    expect(site.calls(task.name)).toBe(1)
  })

  test('without a key to sign with, callbacks are refused at once', async () => {
    expect(await open({ mode: 'callback' }, { links: undefined }).submit([intent('true')])).toMatchObject([
      { ok: false, error: { trouble: 'refused', message: expect.stringContaining('vault key') } },
    ])
  })
})

describe('files by reference', () => {
  const seed = (files: Record<string, Buffer | string>): Intent['stage'][number] => {
    const from = join(scratch, 'seed')
    for (const [path, content] of Object.entries(files)) {
      mkdirSync(join(from, path, '..'), { recursive: true })
      writeFileSync(join(from, path), content)
    }
    return { from, label: 'seed' }
  }

  test('inputs larger than a request are read, outputs larger than an answer are sent, each with its digest', async () => {
    const big = randomBytes(9 * 1024 * 1024)
    const task = intent('mkdir out; cat "in/a b%?#.bin" "in/a b%?#.bin" > "out/x y.bin"', {
      stage: [seed({ 'in/a b%?#.bin': big })],
      expectedOutputs: ['out/x y.bin'],
    })
    const driver = open({ payloadLimitBytes: 65_536, answerLimitBytes: 4 * 1024 * 1024 })
    expect(await finished(driver, task)).toMatchObject({ state: { exitCode: 0 }, missingOutputs: [] })
    expect(readFileSync(join(task.directory, 'out/x y.bin')).equals(Buffer.concat([big, big]))).toBe(true)
    const sent = site.seen.find(({ name }) => name === task.name)!
    expect(sent.body.length).toBeLessThan(8192)
    // A signature opens the files of a running call: it is in no log.
    expect(JSON.stringify(routes.logged)).not.toContain('signature=')
    expect(existsSync(join(scratch, 'calls', `${task.name}.outputs`))).toBe(false)
  })

  test('an empty file and an executable one arrive as they are', async () => {
    const task = intent('./tool; wc -c < empty', {
      stage: [seed({ empty: '', tool: '#!/bin/sh\necho ran\n' })],
    })
    const driver = open({ delivery: 'reference' })
    const made = intent('chmod 755 tool; : > empty; echo "#!/bin/sh\necho ran" > tool; chmod 755 tool')
    await finished(driver, made)
    expect(
      await finished(driver, { ...task, stage: [{ from: made.directory, label: 'made' }] }),
    ).toMatchObject({ state: { exitCode: 0 } })
    expect((await driver.logs(task.name, 'stdout', { tail: 99 })).bytes.toString()).toBe('ran\n0\n')
  })
})

describe('whose link it is', () => {
  /** A call under way, and requests to its routes. */
  const underWay = async () => {
    site.failure = () => true
    const from = join(scratch, 'seed')
    mkdirSync(from)
    writeFileSync(join(from, 'in'), 'secret input')
    const task = intent('true', { stage: [{ from, label: 'seed' }] })
    const driver = open({ timeLimitSeconds: 60 })
    await driver.submit([task])
    const { name } = task
    const now = Date.now() / 1000
    const request = async (
      method: string,
      path: string,
      query: string,
      document?: unknown,
    ): Promise<{ status: number; text: string }> => {
      const answer = await fetch(
        `${publicBaseUrl}/function-calls/${path}${query === '' ? '' : `?${query}`}`,
        {
          method,
          ...(document === undefined
            ? {}
            : { body: JSON.stringify(document), headers: { 'content-type': 'application/json' } }),
        },
      )
      return { status: answer.status, text: await answer.text() }
    }
    const sign = (purpose: LinkPurpose, expires = now + 60, of = name): Promise<string> =>
      links.sign(of, purpose, expires)
    const answer = { schemaVersion: 1, name, exitCode: 0, startedAt: now, finishedAt: now }
    return { task, driver, name, now, request, sign, answer }
  }

  test('no link, a changed one, an old one, another call’s or another purpose’s: 401, whatever is sent', async () => {
    const { name, now, request, sign, answer, driver } = await underWay()
    const good = await sign('result')
    const bad = [
      '',
      'expires=9999999999&signature=',
      'signature=abc',
      good.replace(/expires=\d+/, 'expires=9999999999'),
      good.slice(0, -4) + (good.endsWith('AAAA') ? 'BBBB' : 'AAAA'),
      await sign('result', now - 2),
      await sign('outputs'),
      await sign('result', now + 60, 'made-0'),
    ]
    for (const query of bad) {
      expect((await request('POST', `${name}/result/`, query, answer)).status).toBe(401)
      expect((await request('GET', `${name}/inputs/in`, query)).status).toBe(401)
      expect((await request('POST', `${name}/result/`, query, 'nonsense')).status).toBe(401)
    }
    expect(
      (await request('PUT', `${name}/outputs/x`, await sign('inputs'), { offset: 0, contentBase64: '' }))
        .status,
    ).toBe(401)
    // A link says nothing about calls that are not there.
    expect((await request('POST', 'made-0/result/', good, answer)).status).toBe(401)
    expect((await request('POST', '..%2f..%2fetc/result/', good, answer)).status).toBe(401)
    expect(
      (await request('POST', 'made-0/result/', await sign('result', now + 60, 'made-0'), answer)).status,
    ).toBe(404)
    expect((await driver.find([name])).get(name)).toMatchObject({ state: 'running' })
  })

  test('a request without a valid link is counted and leaves no audit record', async () => {
    const { name, request, sign, answer } = await underWay()
    const counted = async (): Promise<number> =>
      Number(
        new RegExp(
          String.raw`orrery_http_request_seconds_count\{[^}]*` +
            String.raw`route="/api/function-calls/\{name\}/result/",status="401"\} (\d+)`,
        ).exec(await metrics.text())?.[1] ?? 0,
      )
    const before = [routes.audits.length, await counted()] as const
    const path = `${publicBaseUrl}/function-calls/${name}/result/`
    const refused = await fetch(path, { method: 'POST', body: '{}' })
    expect([refused.status, refused.headers.get('www-authenticate')]).toEqual([401, 'Bearer'])
    expect(await refused.json()).toMatchObject({
      code: 'unauthenticated',
      error: expect.stringContaining('link'),
    })
    await request('POST', `${name}/result/`, 'signature=abc&expires=1', answer)
    expect([routes.audits.length, await counted()]).toEqual([before[0], before[1] + 2])
    // What a function with its link sends is recorded, also where it is refused.
    expect(
      (await request('POST', `${name}/result/`, await sign('result'), { schemaVersion: 9 })).status,
    ).toBe(422)
    expect(routes.audits.slice(before[0])).toMatchObject([
      { eventType: 'function-call.answered', outcome: 'failed' },
    ])
  })

  test('only what was staged for the call can be read', async () => {
    const { name, request, sign, task } = await underWay()
    const query = await sign('inputs')
    expect(await request('GET', `${name}/inputs/in`, query)).toEqual({ status: 200, text: 'secret input' })
    writeFileSync(join(task.directory, 'other'), 'not for it')
    for (const path of [
      'other',
      `..%2f..%2fcalls%2f${name}.call`,
      'in%2f..%2fother',
      '%2fetc%2fpasswd',
      'none',
    ])
      expect((await request('GET', `${name}/inputs/${path}`, query)).status).toBe(404)
  })

  test('outputs come in parts, again without harm, inside the work directory, until the answer', async () => {
    const { name, request, sign, answer, driver, task } = await underWay()
    const [outputs, result] = [await sign('outputs'), await sign('result')]
    const part = (offset: number, text: string) => ({
      offset,
      contentBase64: Buffer.from(text).toString('base64'),
    })
    const put = (path: string, document: unknown) =>
      request('PUT', `${name}/outputs/${path}`, outputs, document)
    expect((await put('a/b', part(5, 'world'))).status).toBe(200)
    expect((await put('a/b', part(0, 'hello'))).status).toBe(200)
    expect(JSON.parse((await put('a/b', part(0, 'hello'))).text)).toEqual({ path: 'a/b', sizeBytes: 10 })
    expect((await put('..%2fevil', part(0, 'x'))).status).toBe(422)
    expect((await put('c', { offset: -1, contentBase64: '%' })).text).toContain('contentBase64')
    expect((await put('c', part(2 ** 40, 'x'))).status).toBe(413)
    expect((await put('c', part(0, 'x'.repeat(7 * 1024 * 1024)))).status).toBe(413)
    const sha256 = '936a185caaa266bb9cbe981e9e05cb78cd732b0b3280eb944412bb6f8f8f07af'
    const full = { ...answer, outputs: [{ path: 'a/b', sizeBytes: 10, sha256, uploaded: true }] }
    expect((await request('POST', `${name}/result/`, result, { ...full, startedAt: 'x' })).status).toBe(422)
    expect((await request('POST', `${name}/result/`, result, { ...full, name: 'other' })).text).toContain(
      'other',
    )
    expect(JSON.parse((await request('POST', `${name}/result/`, result, full)).text)).toEqual({
      name,
      kept: true,
    })
    expect(
      JSON.parse((await request('POST', `${name}/result/`, result, { ...full, exitCode: 9 })).text),
    ).toEqual({ name, kept: false })
    expect((await put('late', part(0, 'x'))).status).toBe(409)
    const other = open({ timeLimitSeconds: 60 })
    await driver.close()
    await ended(other, name)
    expect(await other.collect(name)).toMatchObject({ state: { exitCode: 0 } })
    expect(readFileSync(join(task.directory, 'a/b'), 'utf8')).toBe('helloworld')
  })
})
