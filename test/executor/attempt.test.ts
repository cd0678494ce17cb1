import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import {
  endRecord,
  broughtTransfer,
  copiedTransfer,
  attemptEndOf,
  lost,
  nextAttempt,
  notStarted,
  outputsOf,
  type AttemptEnd,
  type TransferFacts,
} from '../../src/executor/attempt.ts'
import { decide } from '../../src/executor/scheduling.ts'
import { openScheduling } from '../../src/executor/scheduling-state.ts'
import { openAttempts, type Outcome, type Observation } from '../../src/executor/attempts-in-flight.ts'
import type { LoadedTask } from '../../src/executor/journal.ts'
import {
  DriverError,
  type Intent,
  type Collected,
  type RuntimeDriver,
  type TaskState,
} from '../../src/drivers/runtime/contract/driver.ts'
import { sshCapabilities } from '../../src/drivers/runtime/remote/ssh.ts'
import { plainIntent } from '../drivers/intent.ts'
import { until } from '../failures/programs.ts'
import { playScenario } from './model.ts'
import { move, scenarios } from './scenario.ts'

const task = (changes: Partial<LoadedTask> = {}): LoadedTask => ({
  id: 'run:a',
  position: 0,
  activity_id: 'a',
  external_id: 'a',
  resource_id: 'host',
  runtime_id: 'local',
  attempt: 1,
  first_attempt: 1,
  user_attempts: 1,
  status: 'running',
  core_ids: ['core-0'],
  slot_id: '',
  order_on_resource: 1,
  ready_at: 90,
  queued_at: null,
  started_at: 100,
  finished_at: null,
  not_before: null,
  intended: true,
  ahead: false,
  walltime_extensions: 0,
  suspects: 0,
  silent_since: null,
  ...changes,
})

const ended = (
  changes: Partial<Extract<Collected['state'], { state: 'ended' }>> = {},
  rest: Partial<Collected> = {},
): Collected => ({
  state: {
    state: 'ended',
    externalId: '1',
    startedAt: 101,
    finishedAt: 107,
    exitCode: 0,
    signal: null,
    reason: 'exited',
    ...changes,
  },
  submittedAt: 100,
  wallSeconds: 6,
  cpuSeconds: 5,
  peakMemoryBytes: 1_000,
  measuredBy: 'rusage',
  manifest: {
    schemaVersion: 1,
    runtime: 'local',
    hostname: 'h',
    root: '/w',
    files: [],
    summary: {
      initialFiles: 0,
      finalFiles: 0,
      createdFiles: 0,
      modifiedFiles: 0,
      deletedFiles: 0,
      outputBytes: 0,
    },
  },
  missingOutputs: [],
  stderrTail: '',
  ...rest,
})

const noLimits = { timeoutSeconds: 60, memoryBytes: 64 * 1024 ** 2 }
const failure = (trouble: string): AttemptEnd => ({ ...lost(task(), {}, 120), failureClass: trouble })

describe('how an attempt ended', () => {
  test('the time from intent to program is overhead, the rest is runtime, and waiting before it is queue', () => {
    const end = attemptEndOf(task(), ended(), { timeoutSeconds: 60, memoryBytes: 64 * 1024 ** 2 }, 200)
    expect(end).toMatchObject({
      status: 'completed',
      startedAt: 100,
      overheadSeconds: 1,
      runtimeSeconds: 6,
      finishedAt: 107,
    })
    expect(endRecord(task(), end, [], 0.5)).toMatchObject({ queueSeconds: 10, cost: 3.5, transferSeconds: 0 })
  })

  test.each([
    [
      ended({ exitCode: 3 }, { stderrTail: 'no such file\n' }),
      'user',
      /attempt 1 ended with exit code 3: no such file$/,
    ],
    [ended({ exitCode: null, signal: 'SIGKILL' }), 'user', /signal SIGKILL/],
    [
      ended({ reason: 'timeout', exitCode: null, signal: 'SIGTERM' }),
      'user',
      /longer than its timeoutSeconds of 60/,
    ],
    [ended({ reason: 'memory', exitCode: 137 }), 'user', /more memory than allowed/],
    [ended({}, { missingOutputs: ['b', 'c'] }), 'user', /did not make b, c$/],
    [
      ended({}, { missingOutputs: Array.from({ length: 50 }, (_, k) => `f${String(k)}`) }),
      'user',
      /did not make f0, f1, .*, f19, and 30 more$/,
    ],
    [ended({ exitCode: 3 }, { stderrTail: 'bad \0 header\n' }), 'user', /code 3: bad \ufffd header$/],
    [
      ended({}, { missingOutputs: ['b'], stderrTail: '\ud800%\r99%\u001b[0m' }),
      'user',
      /did not make b: 99%$/,
    ],
    [
      ended({ reason: 'timeout', exitCode: null, signal: 'SIGTERM' }, { stderrTail: '\0' }),
      'user',
      /timeoutSeconds of 60: \ufffd$/,
    ],
    [
      ended({ reason: 'walltime', exitCode: null, signal: 'SIGTERM' }, { stderrTail: 'DUE TO TIME LIMIT' }),
      'infrastructure',
      /own time limit: DUE TO TIME LIMIT$/,
    ],
    [
      ended({}, { state: { state: 'lost', externalId: '7', startedAt: 101, cause: 'NODE_FAIL' } }),
      'infrastructure',
      /lost at its site: NODE_FAIL/,
    ],
    [
      ended({}, { state: { state: 'lost', externalId: '7', startedAt: 101 } }),
      'infrastructure',
      /lost with its machine/,
    ],
  ] as const)('a failure says which activity, where, and why', (outcome, trouble, words) => {
    const end = attemptEndOf(task(), outcome, { timeoutSeconds: 60, memoryBytes: 64 * 1024 ** 2 }, 200)
    expect([end.status, end.failureClass]).toEqual(['failed', trouble])
    expect(end.failureReason).toMatch(words)
    expect(end.failureReason).toMatch(/^activity a on host/)
  })

  test('names that are no text are on record escaped, with their bytes, and in addresses by their bytes', () => {
    const { manifest } = ended()
    const files = ['caf\udce9.txt', 'plain.txt'].map((path) => ({
      ...{ path, change: 'created' as const, sizeBytes: 1, modifiedUnixNano: '0' },
    }))
    const end = attemptEndOf(task(), ended({}, { manifest: { ...manifest, files } }), noLimits, 200)
    expect(end.manifest?.files).toMatchObject([
      { path: 'caf\\xe9.txt', pathBytes: Buffer.from('caf\xe9.txt', 'latin1').toString('base64') },
      { path: 'plain.txt' },
    ])
    expect(outputsOf('run', 'v', task(), end.manifest, 'here', [])).toMatchObject([
      { path: 'caf\\xe9.txt', pathBytes: 'Y2Fm6S50eHQ=', uri: 'file://here/w/caf%E9.txt' },
      { path: 'plain.txt', pathBytes: null, uri: 'file://here/w/plain.txt' },
    ])
  })

  test('an attempt whose runner was ended is repeated once at most', () => {
    const state = { state: 'lost', externalId: '7', startedAt: 101, cause: 'its runner was ended' } as const
    const end = attemptEndOf(task(), ended({}, { state: { ...state, suspect: true } }), noLimits, 200)
    expect(end.failureReason).toMatch(/its runner was ended/)
    expect(nextAttempt('run', task(), end, undefined, 200)).toMatchObject({ attempt: 2, userAttempts: 1 })
    // Losses of other causes are not counted with it.
    expect(nextAttempt('run', task({ attempt: 9 }), end, undefined, 200)).toMatchObject({ attempt: 10 })
    expect(nextAttempt('run', task({ attempt: 2, suspects: 1 }), end, undefined, 200)).toBeUndefined()
    const other = lost(task(), { cause: 'NODE_FAIL' }, 200)
    expect(nextAttempt('run', task({ attempt: 3, suspects: 1 }), other, undefined, 200)).toMatchObject({
      attempt: 4,
    })
    expect(endRecord(task(), end, [], 0)).not.toHaveProperty('suspect')
    expect(endRecord(task(), end, [], 0)).toMatchObject({ place: { suspect: true } })
  })

  test('time in the queue of the site is neither overhead nor paid for', () => {
    const end = attemptEndOf(
      task(),
      ended({ startedAt: 140, finishedAt: 150 }, { queueSeconds: 38, node: 'n7' }),
      { timeoutSeconds: 60, memoryBytes: 64 * 1024 ** 2 },
      200,
    )
    expect(end).toMatchObject({
      siteQueueSeconds: 38,
      overheadSeconds: 2,
      runtimeSeconds: 10,
      place: { node: 'n7' },
      externalId: '1',
    })
    expect(endRecord(task(), end, [], 0.5)).toMatchObject({ queueSeconds: 10, cost: 6 })
  })

  test('what was brought and what was copied is charged the price of its route', () => {
    const producer = task({ id: 'run:p', activity_id: 'p', external_id: 'p', resource_id: 'elsewhere' })
    const beside = task({ id: 'run:q', activity_id: 'q', external_id: 'q', resource_id: 'beside' })
    const facts: TransferFacts = {
      producer: 0,
      fromSite: 'ssh/a',
      toSite: 'ssh/b',
      strategy: 'gateway',
      reason: 'neither end reaches the other',
      bytes: 10,
      networkBytes: 12,
      files: 2,
      startedAt: 100,
      finishedAt: 100.5,
    }
    const end = attemptEndOf(task(), ended(), { timeoutSeconds: 60, memoryBytes: 64 * 1024 ** 2 }, 200)
    const brought = broughtTransfer('run', task(), producer, facts, { links: ['wan'], pricePerByte: 0.5 })
    expect(brought).toMatchObject({
      ...{ producer: 'p', strategy: 'gateway', bytes: 10, networkBytes: 12, filesTransferred: 2, cost: 5 },
      route: {
        links: ['wan'],
        strategy: 'gateway',
        reason: 'neither end reaches the other',
        from: 'ssh/a',
        to: 'ssh/b',
      },
    })
    const copied = copiedTransfer('run', 'ssh/b', task(), end, {
      producer: beside,
      bytes: 5,
      files: 1,
      route: { links: [], pricePerByte: 0 },
    })
    expect(copied).toMatchObject({
      ...{
        producer: 'q',
        strategy: 'runtime-local',
        bytes: 5,
        networkBytes: 0,
        filesTransferred: 1,
        cost: 0,
        startedAt: 100,
        finishedAt: 101,
      },
      route: { links: [], strategy: 'runtime-local', from: 'ssh/b', to: 'ssh/b' },
    })
    expect(endRecord(task(), end, [brought, copied], 1)).toMatchObject({
      transferBytes: 15,
      transferSeconds: 1,
      cost: 7 + 5,
    })
  })

  test('clocks that disagree never give a negative time', () => {
    const instant = fc.double({ min: 0, max: 300, noNaN: true })
    fc.assert(
      fc.property(instant, instant, instant, instant, (ready, intent, started, finished) => {
        const subject = task({ ready_at: ready, started_at: intent })
        const end = attemptEndOf(
          subject,
          ended({ startedAt: started, finishedAt: finished }),
          { timeoutSeconds: 0, memoryBytes: 64 * 1024 ** 2 },
          0,
        )
        const row = endRecord(subject, end, [], 1)
        for (const seconds of [row.queueSeconds, row.overheadSeconds, row.cost])
          expect(seconds).toBeGreaterThanOrEqual(0)
        expect(row.runtimeSeconds).toBeGreaterThanOrEqual(-1e-9)
        expect(row.finishedAt).toBeGreaterThanOrEqual(intent)
      }),
    )
  })
})

describe('the attempt after it', () => {
  test('the activity pays for its own failures only, the site for its own, however they are mixed', () => {
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom('user', 'infrastructure'), { maxLength: 150 }),
        fc.integer({ min: 1, max: 5 }),
        fc.integer({ min: 1, max: 200 }),
        (causes, maxAttempts, first) => {
          let subject = task({ attempt: first, first_attempt: first })
          const troubles = (): number => subject.attempt - first + 1 - subject.user_attempts
          let own = 0
          for (const cause of causes) {
            const next = nextAttempt(
              'run',
              subject,
              failure(cause),
              { maxAttempts, retryDelaySeconds: 7 },
              1_000,
            )
            if (cause === 'user') own += 1
            if (next === undefined) {
              expect(own >= maxAttempts || troubles() >= 100).toBe(true)
              return
            }
            expect(own).toBeLessThan(maxAttempts)
            expect([next.attempt, next.userAttempts]).toEqual([subject.attempt + 1, own + 1])
            expect(next.notBefore - 1_000).toBe(cause === 'user' ? 7 : Math.min(60, 2 ** (1 + troubles())))
            subject = { ...subject, id: next.id, attempt: next.attempt, user_attempts: next.userAttempts }
          }
        },
      ),
    )
  })

  test("50 failures of the site do not end an activity that may fail once, and the site's time limit asks for more each time", () => {
    let subject = task()
    for (let k = 0; k < 50; k++) {
      const walltime = k % 10 === 0
      const next = nextAttempt(
        'run',
        subject,
        { ...failure('infrastructure'), walltime },
        { maxAttempts: 1, retryDelaySeconds: 0 },
        0,
      )
      expect(next).toMatchObject({
        attempt: k + 2,
        userAttempts: 1,
        walltimeExtensions: 1 + Math.floor(k / 10),
      })
      subject = { ...subject, attempt: k + 2, walltime_extensions: 1 + Math.floor(k / 10) }
    }
  })

  test('what a site refuses for good is not tried again, what it cannot say is', () => {
    const policy = { maxAttempts: 9, retryDelaySeconds: 0 }
    const refused = notStarted(task(), new DriverError('refused', 'no such partition'), 101)
    expect(refused.failureReason).toBe('activity a could not be run on host: no such partition')
    expect(nextAttempt('run', task(), refused, policy, 0)).toBeUndefined()
    expect(
      nextAttempt('run', task(), notStarted(task(), new DriverError('unknown', 'no answer'), 101), policy, 0),
    ).toMatchObject({
      attempt: 2,
      userAttempts: 1,
    })
  })
})

test('files that arrive late are a wait for data with its reason, and give the cores back', async () => {
  const [ends, seen, freed]: [Outcome[], Observation[], number[]] = [[], [], []]
  let arrive: () => void = () => undefined
  const arrived = new Promise<void>((resolve) => (arrive = resolve))
  const name = 't-1'
  const driver: RuntimeDriver = {
    ...{ kind: 'far', capabilities: { ...sshCapabilities } },
    submit: () => Promise.resolve([{ name, ok: true, externalId: '7' }]),
    find: () => Promise.resolve(new Map([[name, ended().state]])),
    watch: (_, onEnd) => {
      setImmediate(() => onEnd(name))
      return () => undefined
    },
    cancel: () => Promise.resolve(),
    collect: async (_, onWait) => {
      onWait?.('"a" is not at the site yet')
      await arrived
      return ended()
    },
    logs: () => Promise.reject(new Error('no logs')),
    remove: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
  const attempts = openAttempts({
    ...{
      driver,
      site: 'far',
      clock: () => 1000,
      monotonic: () => 1000,
      failpoint: () => undefined,
      silentSeconds: 60,
    },
    intentOf: () => plainIntent(name, '/w', ['true']),
    endEarlier: () => Promise.resolve(),
    held: () => undefined,
    ended: (_, outcome) => ends.push(outcome),
    observed: (_, observation) => seen.push(observation),
    programEnded: (position) => freed.push(position),
    fault: (error) => {
      throw error
    },
  })
  attempts.start([{ position: 3, name, intent: plainIntent(name, '/w', ['true']) }])
  await until('the wait', 120, () => seen.length > 0)
  expect(seen.at(-1)).toEqual({ reason: '"a" is not at the site yet', waitsFor: 'data' })
  expect([freed, ends, attempts.dueAt]).toEqual([[3], [], Infinity])
  arrive()
  await until('the end', 120, () => ends.length > 0)
  expect(ends).toMatchObject([{ kind: 'collected' }])
  attempts.close()
})

test('a question without an answer is repeated also where the time of day was set back meanwhile', async () => {
  let [submits, now] = [0, 5]
  const driver = {
    capabilities: sshCapabilities,
    submit: (intents: readonly Intent[]) =>
      submits++ === 0
        ? Promise.reject(new DriverError('unknown', 'lost'))
        : Promise.resolve(intents.map((one) => ({ name: one.name, ok: true }))),
    watch: () => () => undefined,
  } as unknown as RuntimeDriver
  const seen: Observation[] = []
  const attempts = openAttempts({
    ...{ driver, site: 'far', failpoint: () => undefined, silentSeconds: 60, monotonic: () => now },
    clock: () => (seen.length === 0 ? 100_000 : 96_400),
    intentOf: () => plainIntent('task', '/w', ['true']),
    endEarlier: () => Promise.resolve(),
    held: () => undefined,
    ended: () => undefined,
    observed: (_, observation) => seen.push(observation),
    programEnded: () => undefined,
    fault: (error) => {
      throw error
    },
  })
  attempts.start([{ position: 0, name: 'task', intent: plainIntent('task', '/w', ['true']) }])
  await until('the wait', 120, () => seen.length > 0)
  now = attempts.dueAt
  expect(now).toBeLessThan(10)
  attempts.runDue()
  await until('the answer', 120, () => submits === 2 && attempts.silence === undefined)
  attempts.close()
})

test.each([
  ['nobody had asked', 0],
  ['an earlier holder had asked for 20 s', 20],
])('time in which nobody asked is no silence of the site, at a take-over where %s', async (_, silentFor) => {
  let [now, time, asked] = [0, 1e6, 0]
  const [ends, seen]: [Outcome[], Observation[]] = [[], []]
  const driver = {
    capabilities: sshCapabilities,
    find: () => {
      asked++
      return Promise.reject(new DriverError('unknown', 'no answer'))
    },
  } as unknown as RuntimeDriver
  const attempts = openAttempts({
    ...{ driver, site: 'far', failpoint: () => undefined, silentSeconds: 60, monotonic: () => now },
    clock: () => time,
    intentOf: () => plainIntent('task', '/w', ['true']),
    endEarlier: () => Promise.resolve(),
    held: () => undefined,
    ended: (_, outcome) => ends.push(outcome),
    observed: (_, observation) => seen.push(observation),
    programEnded: () => undefined,
    fault: (error) => {
      throw error
    },
  })
  const nextQuestion = async (): Promise<void> => {
    const before = asked
    attempts.runDue()
    await until(
      'the next question',
      120,
      () => asked > before && (attempts.dueAt < Infinity || ends.length > 0),
    )
  }
  // The holder before asked for an hour, and the service was off for days.
  attempts.adopt([{ position: 0, name: 'task', silentSince: 500, silentFor }])
  await until('the first question', 120, () => seen.length > 0 || ends.length > 0)
  expect([ends, seen]).toMatchObject([[], [{ silentSince: 500, reason: 'waiting for far: no answer' }]])
  // The machine was asleep: the time of day went on, and no second of the process.
  time += 1e6
  now = 59 - silentFor
  await nextQuestion()
  expect(ends).toEqual([])
  now += 30
  await nextQuestion()
  expect(ends).toEqual([{ kind: 'silent', words: 'no answer' }])
  attempts.close()
})

/** Attempts at a site that gives these answers, with a clock that the test sets. */
const atSite = (
  answers: Partial<RuntimeDriver>,
  { silentSeconds, held }: { silentSeconds: number; held?: 'paused' | 'failed' },
) => {
  const seen = { ends: [] as Outcome[], asked: 0, now: 0 }
  const counted = Object.fromEntries(
    Object.entries(answers).map(([name, answer]) => [
      name,
      (...given: never[]) => {
        seen.asked++
        return (answer as (...of: never[]) => unknown)(...given)
      },
    ]),
  )
  const attempts = openAttempts({
    driver: {
      capabilities: sshCapabilities,
      watch: () => () => undefined,
      ...counted,
    } as unknown as RuntimeDriver,
    ...{
      site: 'far',
      failpoint: () => undefined,
      silentSeconds,
      monotonic: () => seen.now,
      clock: () => 1e6,
    },
    intentOf: () => plainIntent('task', '/w', ['true']),
    endEarlier: () => Promise.resolve(),
    held: () => held,
    ended: (_, outcome) => seen.ends.push(outcome),
    observed: () => undefined,
    programEnded: () => undefined,
    fault: (error) => {
      throw error
    },
  })
  return {
    seen,
    attempts,
    /** Waits for the next question, or the end. */
    next: async (): Promise<void> => {
      const before = seen.asked
      attempts.runDue()
      await until('a question', 120, () => seen.asked > before || seen.ends.length > 0)
      await until('its answer', 120, () => attempts.dueAt < Infinity || seen.ends.length > 0)
    },
  }
}

test('the time in which a process was frozen is no silence of a site', async () => {
  const find = () => Promise.reject(new DriverError('unknown', 'no answer'))
  const { seen, attempts, next } = atSite({ find }, { silentSeconds: 86_400 })
  attempts.adopt([{ position: 0, name: 'task', silentSince: 500 }])
  await until('the first question', 120, () => attempts.dueAt < Infinity)
  seen.now += 7 * 86_400
  await next()
  expect(seen.ends).toEqual([])
  for (let asked = 0; asked < 300; asked++) {
    seen.now += 300
    await next()
  }
  expect(seen.ends).toMatchObject([{ kind: 'silent' }])
  attempts.close()
})

test('a task that its site does not have, and whose end it never takes, is given up', async () => {
  const { seen, attempts, next } = atSite(
    {
      find: () => Promise.resolve(new Map()),
      cancel: () => Promise.reject(new DriverError('unknown', 'no space left')),
    },
    { silentSeconds: 86_400, held: 'failed' },
  )
  attempts.adopt([{ position: 0, name: 'task', silentSince: undefined }])
  await until('the first question', 120, () => attempts.dueAt < Infinity)
  for (let asked = 0; asked < 40 && seen.ends.length === 0; asked++) {
    seen.now += 1
    await next()
  }
  expect(seen.ends).toEqual([{ kind: 'unstopped', words: 'no space left' }])
  attempts.close()
})

test('what was committed and not started does not start at a take-over of a run that was cancelled', () => {
  for (let steps = 0; steps < 8; steps++) {
    const kinds = [...Array<'go'>(steps).fill('go'), 'kill', 'cancel', 'go', 'go', 'go', 'go'] as const
    playScenario(
      { decide, openScheduling },
      {
        tasks: [{ site: 0, lanes: [0], free: false, cpu: 1, fates: [] }],
        ...{ edges: [], orders: [0], hostCores: undefined, aheadPerLane: 0, maxAttempts: 1 },
        ...{ onFailure: 'finish-independent', moves: kinds.map((kind) => move(kind, 0)) },
      },
    )
  }
})

test('in a pause a site commits no intents, and takes no cores of its host', () => {
  const goesOn = Array.from({ length: 8 }, () => [move('go', 0), move('pass', 7)]).flat()
  playScenario(
    { decide, openScheduling },
    {
      tasks: [0, 1, 2].map((core) => ({ site: 0, lanes: [core], free: false, cpu: 1, fates: [] })),
      ...{ edges: [], orders: [0, 1, 2], hostCores: 2, aheadPerLane: 0, maxAttempts: 1 },
      ...{ onFailure: 'finish-independent', moves: [move('pause', 0), ...goesOn] },
    },
  )
})

describe('a site that answers and does not mention an attempt', () => {
  test('at any moment of any run, take-overs among them: nothing starts twice, and the attempt waits', () => {
    fc.assert(
      fc.property(scenarios({ moves: 30, tasks: 4 }), fc.array(fc.nat(11)), (scenario, picks) => {
        const moves = scenario.moves.flatMap((one, k) => [one, move('seen', 2 * (picks[k] ?? k) + 1)])
        playScenario({ decide, openScheduling }, { ...scenario, moves })
      }),
      { seed: 20_261_126, numRuns: 400 },
    )
  })

  const name = 't-1'
  const queued: TaskState = {
    state: 'queued',
    externalId: '7',
    submittedAt: 1,
    cause: 'job 7 is not mentioned',
  }
  test('a submit that is refused after an earlier one lost its answer: the site is asked whether it started', async () => {
    const asked: string[] = []
    let now = 1000
    const running: TaskState = { state: 'running', externalId: '7', startedAt: 1 }
    const refusals = [
      new DriverError('unknown', 'link cut'),
      new DriverError('refused', 'the key is refused'),
    ]
    const driver: RuntimeDriver = {
      kind: 'far',
      capabilities: { ...sshCapabilities },
      submit: () => {
        asked.push('submit')
        return Promise.reject(refusals.shift() ?? new Error('asked once more'))
      },
      find: (names) => {
        asked.push('find')
        return Promise.resolve(new Map(names.map((one) => [one, running])))
      },
      watch: () => () => undefined,
      cancel: () => Promise.resolve(),
      collect: () => Promise.reject(new Error('not over')),
      logs: () => Promise.reject(new Error('no logs')),
      remove: () => Promise.resolve(),
      close: () => Promise.resolve(),
    }
    const [ends, seen]: [Outcome[], Observation[]] = [[], []]
    const attempts = openAttempts({
      ...{
        driver,
        site: 'far',
        clock: () => now,
        monotonic: () => now,
        failpoint: () => undefined,
        silentSeconds: 1e9,
      },
      intentOf: () => plainIntent(name, '/w', ['true']),
      endEarlier: () => Promise.resolve(),
      held: () => undefined,
      ended: (_, outcome) => ends.push(outcome),
      observed: (_, observation) => seen.push(observation),
      programEnded: () => undefined,
      fault: (error) => {
        throw error
      },
    })
    attempts.start([{ position: 0, name, intent: plainIntent(name, '/w', ['true']) }])
    await until('it is seen to run', 120, () => {
      now += 40
      attempts.runDue()
      return seen.some(({ status }) => status === 'running')
    })
    expect({ asked, ends }).toEqual({ asked: ['submit', 'submit', 'find'], ends: [] })
    attempts.close()
  })

  const moments = ['the answer to its submit is lost', 'it runs', 'its end is reported'] as const
  test.each(moments.flatMap((moment) => [false, true].map((takesOver) => ({ moment, takesOver }))))(
    'when $moment (a take-over before: $takesOver): it is shown as waiting, and started once',
    async ({ moment, takesOver }) => {
      const [losesAnswer, endsAtOnce] = moments.map((one) => one === moment).filter((_, k) => k !== 1)
      let [mentions, now, started] = [false, 1000, 0]
      const watched: (() => void)[] = []
      const state = (): TaskState => (mentions ? ended().state : queued)
      const driver: RuntimeDriver = {
        kind: 'cluster',
        capabilities: { ...sshCapabilities },
        submit: (intents) => {
          if (started++ === 0 && losesAnswer) return Promise.reject(new DriverError('unknown', 'lost'))
          return Promise.resolve(intents.map((one) => ({ name: one.name, ok: true, externalId: '7' })))
        },
        find: (names) => Promise.resolve(new Map(names.map((one) => [one, state()]))),
        watch: (names, onEnd) => {
          for (const one of names) watched.push(() => onEnd(one))
          if (endsAtOnce) setImmediate(() => watched.at(-1)?.())
          return () => undefined
        },
        cancel: () => Promise.resolve(),
        collect: () =>
          mentions ? Promise.resolve(ended()) : Promise.reject(new DriverError('unknown', 'no recorded end')),
        logs: () => Promise.reject(new Error('no logs')),
        remove: () => Promise.resolve(),
        close: () => Promise.resolve(),
      }
      const [ends, seen]: [Outcome[], Observation[]] = [[], []]
      const faults: unknown[] = []
      const attempts = openAttempts({
        ...{
          driver,
          site: 'cluster',
          clock: () => now,
          monotonic: () => now,
          failpoint: () => undefined,
          silentSeconds: 1e9,
        },
        intentOf: () => plainIntent(name, '/w', ['true']),
        endEarlier: () => Promise.resolve(),
        held: () => undefined,
        ended: (_, outcome) => ends.push(outcome),
        observed: (_, observation) => seen.push(observation),
        programEnded: () => undefined,
        fault: (error) => faults.push(error),
      })
      const turns = async (count: number): Promise<void> => {
        for (let k = 0; k < count; k++) {
          now += 40
          attempts.runDue()
          await new Promise((resolve) => setImmediate(resolve))
          await new Promise((resolve) => setImmediate(resolve))
        }
      }
      // A holder before has started it.
      if (takesOver) attempts.adopt([{ position: 0, name, silentSince: undefined }])
      else attempts.start([{ position: 0, name, intent: plainIntent(name, '/w', ['true']) }])
      await turns(50)
      expect({ ends, faults, size: attempts.size }).toEqual({ ends: [], faults: [], size: 1 })
      expect(seen.at(-1)?.reason).toMatch(/not mentioned|no recorded end/)
      mentions = true
      for (const told of watched) told()
      await turns(2)
      expect(ends).toMatchObject([{ kind: 'collected' }])
      // A submit whose answer was lost is given again: its name starts once.
      expect(started).toBeLessThanOrEqual(takesOver ? 0 : losesAnswer ? 2 : 1)
      attempts.close()
    },
  )
})
