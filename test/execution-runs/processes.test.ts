import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { until } from '../failures/programs.ts'
import { openService, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { makeWorld, type WorldTask } from '../support/worlds.ts'
import { activityOf, checked, runToEnd } from './checked.ts'

let service: TestService
beforeAll(async () => {
  service = await openService()
})
afterAll(() => service[Symbol.asyncDispose]())

let worlds = 0
/** One run of a world of its own. */
const run = async (tasks: readonly WorldTask[], members: Record<string, unknown> = {}) => {
  worlds += 1
  const name = `p${String(worlds)}`
  const world = await makeWorld(service, { name, tasks })
  const record = await runToEnd(service, world, { id: `${name}-run`, ...members })
  const path = (activity: string): string => `/execution-runs/${name}-run/activities/${activity}`
  return {
    world,
    record,
    of: (activity: string, attempt?: number) => activityOf(record, world, activity, attempt),
    log: async (activity: string, query = ''): Promise<string> =>
      (await service.call('GET', `${path(activity)}/logs/${query}`)).text,
    output: (activity: string, file: string) => service.call('GET', `${path(activity)}/outputs/${file}`),
    outputs: (activity: string) => service.get(`${path(activity)}/outputs/`),
  }
}

describe('a task', () => {
  proved('that waits for its next attempt says so, after each failure', async () => {
    const policy = { maxAttempts: 3, retryDelaySeconds: 8 }
    const world = await makeWorld(service, {
      name: 'retried',
      tasks: [
        { name: 'again', run: 'exit 3', policy },
        { name: 'after', after: ['again'] },
      ],
    })
    await service.post('/execution-runs/', { id: 'retried', schedulePlanId: world.planId, mode: 'real' })
    for (const attempt of [2, 3])
      await until(`the reason of attempt ${String(attempt)}`, 120, async () => {
        const { activities, live } = await service.get('/execution-runs/retried/')
        const latest = (activities as { activityId: string; attempt: number; metadata?: object }[]).find(
          ({ activityId }) => activityId === world.activityId('again'),
        )
        if (latest?.attempt !== attempt) return undefined
        const [wait] = (live?.waitsFor ?? []) as { kind: string; reason: string; activities: number }[]
        return wait?.kind === 'retry' && wait.activities === 1 && /next attempt, 8 s/.test(wait.reason)
      })
    await service.post('/execution-runs/retried/cancel/')
    await service.finished('retried')
  })

  test('runs in a process group and a closed work directory of its own, below the data folder', async () => {
    const { log, of } = await run([
      { name: 'look', run: 'echo $$; cut -d" " -f5,6 /proc/$$/stat; stat -c %a .; pwd' },
    ])
    const [pid, groupAndSession, mode, directory] = (await log('look')).trim().split('\n') as [
      string,
      string,
      string,
      string,
    ]
    expect(groupAndSession).toBe(`${pid} ${pid}`)
    expect(mode).toBe('700')
    expect(directory.startsWith(join(service.dataDir, 'work'))).toBe(true)
    expect(of('look')).toMatchObject({ status: 'completed', exitCode: 0, attempt: 1 })
  })

  test('gets its own variables and those of its inputs, and nothing of the service', async () => {
    const { log, world } = await run([
      { name: 'make', run: 'echo 1 > data.bin; echo 2 > second-file.txt' },
      {
        name: 'use',
        run:
          'env | cut -d= -f1 | sort | tr "\\n" " "; echo; echo $AKOFLOW_RUN_ID $AKOFLOW_ACTIVITY_ID ' +
          '$AKOFLOW_ATTEMPT $AKOFLOW_RESOURCE_ID; cat "$AKOFLOW_INPUT_DATA_BIN" ' +
          '"$AKOFLOW_INPUT_SECOND_FILE_TXT"; echo $MINE',
        environment: { MINE: 'own value' },
        after: ['make'],
        inputs: [
          { from: 'make', file: 'data.bin' },
          { from: 'make', file: 'second-file.txt' },
        ],
      },
    ])
    const [names, own, ...rest] = (await log('use')).trim().split('\n')
    expect(names).toBe(
      'AKOFLOW_ACTIVITY_ID AKOFLOW_ATTEMPT AKOFLOW_INPUT_DATA_BIN AKOFLOW_INPUT_SECOND_FILE_TXT ' +
        'AKOFLOW_RESOURCE_ID AKOFLOW_RUN_ID AKOFLOW_TASK HOME LANG MINE PATH PWD TMPDIR ',
    )
    expect(own).toBe(`${world.name}-run ${world.activityId('use')} 1 ${String(world.resourceIds[0])}`)
    expect(rest).toEqual(['1', '2', 'own value'])
  })

  test('has a variable for each input, also where names differ in letters that no variable holds', async () => {
    const { log } = await run([
      { name: 'make', run: 'echo in > Вход.csv; echo out > Выход.csv; echo other > другое.txt' },
      {
        name: 'use',
        run:
          'cat "$AKOFLOW_INPUT__CSV_5525AC29" "$AKOFLOW_INPUT__CSV_FFD33C20" "$AKOFLOW_INPUT__TXT"; ' +
          'echo "${AKOFLOW_INPUT__CSV-none}"',
        after: ['make'],
        inputs: ['Вход.csv', 'Выход.csv', 'другое.txt'].map((file) => ({ from: 'make', file })),
      },
    ])
    expect(await log('use')).toBe('in\nout\nother\nnone\n')
  })

  test('has times with microseconds, and no neighbour in its lane overlaps with it', async () => {
    const chain = Array.from({ length: 40 }, (_, i) => ({
      name: `link-${String(i)}`,
      run: 'true',
      lane: [0, 0] as const,
      ...(i === 0 ? {} : { after: [`link-${String(i - 1)}`] }),
    }))
    const { record } = await run(chain)
    const tasks = record.activities.toSorted((a, b) => a.orderOnResource - b.orderOnResource)
    const whole = (seconds: number): boolean => Math.abs(seconds * 1_000 - Math.round(seconds * 1_000)) < 1e-4
    // One of a thousand starts falls on a whole millisecond by chance.
    expect(tasks.filter(({ startedAt }) => whole(startedAt)).length).toBeLessThan(5)
    const overlaps = tasks.slice(1).filter(({ startedAt }, i) => startedAt < tasks[i].finishedAt)
    expect(overlaps).toEqual([])
  })

  test('finds all files of its direct predecessors, made by them or inherited', async () => {
    const { log } = await run([
      { name: 'first', run: 'mkdir deep; echo one > deep/first.txt' },
      { name: 'second', run: 'echo two > second.txt', after: ['first'] },
      { name: 'third', run: 'find . -type f | sort; cat deep/first.txt second.txt', after: ['second'] },
      { name: 'apart', run: 'find . -type f' },
    ])
    expect(await log('third')).toBe('./deep/first.txt\n./second.txt\none\ntwo\n')
    expect(await log('apart')).toBe('')
  })

  test('with stage declared finds only the files that it declares', async () => {
    const { log } = await run([
      { name: 'make', run: 'echo 1 > wanted; echo 2 > unwanted' },
      {
        name: 'use',
        run: 'ls',
        after: ['make'],
        inputs: [{ from: 'make', file: 'wanted' }],
        stage: 'declared',
      },
    ])
    expect(await log('use')).toBe('wanted\n')
  })

  test('has copies: what it changes does not reach its predecessor', async () => {
    const { log, output } = await run([
      { name: 'make', run: 'echo original > data' },
      { name: 'change', run: 'echo changed > data; stat -c %h data', after: ['make'] },
    ])
    expect(await log('change')).toBe('1\n')
    expect((await output('make', 'data')).text).toBe('original\n')
    expect((await output('change', 'data')).text).toBe('changed\n')
  })

  test('fails when two predecessors made one promised path with other contents, and the reason names both; equal contents are fine', async () => {
    const { record, of } = await run([
      { name: 'left', run: 'echo left > data', outputs: ['data'] },
      { name: 'right', run: 'echo right > data' },
      { name: 'both', run: 'cat data', after: ['left', 'right'] },
    ])
    expect(record.run.status).toBe('failed')
    expect(of('both')).toMatchObject({ status: 'failed', failureClass: 'user' })
    expect(record.run.failureReason).toMatch(/left/)
    expect(record.run.failureReason).toMatch(/right/)
    expect(record.run.failureReason).toMatch(/data/)

    const same = await run([
      { name: 'left', run: 'echo same > data' },
      { name: 'right', run: 'echo same > data' },
      { name: 'both', run: 'cat data', after: ['left', 'right'] },
    ])
    expect(await same.log('both')).toBe('same\n')
  })

  test('leaves a manifest with the digests of the files that it made, and only of those', async () => {
    const { record, of, outputs, output } = await run([
      { name: 'make', run: 'printf abc > a.txt; mkdir d; head -c 100000 /dev/zero > d/zeros' },
      { name: 'more', run: 'printf "more" >> a.txt; printf new > b.txt', after: ['make'] },
    ])
    const sha = (data: Buffer | string): string => `sha256:${createHash('sha256').update(data).digest('hex')}`
    const files = (activity: string) =>
      (record.handles.find((handle) => handle.id === of(activity).id) as any).artifacts.files.map(
        ({ path, change, sizeBytes, checksum }: any) => ({ path, change, sizeBytes, checksum }),
      )
    expect(files('make')).toEqual([
      { path: 'a.txt', change: 'created', sizeBytes: 3, checksum: sha('abc') },
      { path: 'd/zeros', change: 'created', sizeBytes: 100_000, checksum: sha(Buffer.alloc(100_000)) },
    ])
    expect(files('more')).toEqual([
      { path: 'a.txt', change: 'modified', sizeBytes: 7, checksum: sha('abcmore') },
      { path: 'b.txt', change: 'created', sizeBytes: 3, checksum: sha('new') },
    ])
    expect(
      (await outputs('make')).items.map((item: any) => [item.relativePath, item.sizeBytes, item.checksum]),
    ).toEqual([
      ['a.txt', 3, sha('abc')],
      ['d/zeros', 100_000, sha(Buffer.alloc(100_000))],
    ])
    const file = await output('make', 'd%2Fzeros')
    expect(file.headers.get('content-length')).toBe('100000')
    expect(sha(file.text)).toBe(sha(Buffer.alloc(100_000)))
  })

  test('is measured: wall time, CPU seconds, peak memory, and by what', async () => {
    const { record, of } = await run([
      {
        name: 'busy',
        run: `perl -e '$x = "x" x 80_000_000; $t = times; 1 while times() - $t < 0.3'`,
        memory: '512Mi',
      },
      { name: 'idle', run: 'sleep 0.4' },
    ])
    const busy = of('busy')
    expect(busy.cpuSeconds).toBeGreaterThan(0.28)
    // It has one thread.
    expect(busy.cpuSeconds).toBeLessThan(busy.runtimeSeconds)
    expect(busy.peakMemoryBytes).toBeGreaterThan(80_000_000)
    // The most that it may have.
    expect(busy.peakMemoryBytes).toBeLessThanOrEqual(512 * 1024 ** 2)
    const idle = of('idle')
    expect(idle.runtimeSeconds).toBeGreaterThanOrEqual(0.4)
    expect(idle.runtimeSeconds).toBeLessThanOrEqual(record.run.makespanSeconds)
    expect(idle.cpuSeconds).toBeLessThan(busy.cpuSeconds)
    expect(idle.peakMemoryBytes).toBeLessThan(busy.peakMemoryBytes)
    expect(idle.measuredBy).toMatch(/^(time|rusage|cgroup|sampled)$/)
    expect(idle.cost).toBeCloseTo((idle.finishedAt - idle.startedAt) * 0.001, 9)
  })

  test('has logs by stream, range and tail, with where they lie', async () => {
    const { log, world } = await run([{ name: 'talk', run: 'seq 1 1000; echo problem >&2' }])
    const all = Array.from({ length: 1_000 }, (_, i) => `${String(i + 1)}\n`).join('')
    expect(await log('talk')).toBe(all)
    expect(await log('talk', '?stream=stderr')).toBe('problem\n')
    expect(await log('talk', '?offset=100&limit=50')).toBe(all.slice(100, 150))
    expect(await log('talk', '?tail=20')).toBe(all.slice(-20))
    expect(await log('talk', '?offset=999999')).toBe('')
    const path = `/execution-runs/${world.name}-run/activities/${world.activityId('talk')}/logs/`
    const part = await service.call('GET', `${path}?offset=100&limit=50`)
    expect([part.status, part.headers.get('content-range')]).toEqual([
      206,
      `bytes 100-149/${String(all.length)}`,
    ])
    expect((await service.call('GET', `${path}?offset=-1`)).status).toBe(400)
    expect((await service.call('GET', `${path}?attempt=2`)).status).toBe(404)
    expect((await service.call('GET', path.replace('-talk', '-other'))).status).toBe(404)
  })

  test('that runs too long is ended with its whole group, children that left it included', async () => {
    const pids = join(service.dataDir, 'pids')
    const { record, of } = await run([
      {
        name: 'slow',
        run:
          `(setsid sh -c 'echo $$ >> ${pids}; sleep 86400' &) ; sh -c 'echo $$ >> ${pids}; sleep 86400' & ` +
          `sleep 0.3; echo $$ >> ${pids}; sleep 86400`,
        policy: { timeoutSeconds: 1 },
      },
    ])
    expect(of('slow')).toMatchObject({ status: 'failed', failureClass: 'user' })
    expect(record.run.failureReason).toMatch(/slow.*timeoutSeconds of 1/)
    expect(of('slow').finishedAt - of('slow').startedAt).toBeGreaterThanOrEqual(1)
    const started = readFileSync(pids, 'utf8').trim().split('\n')
    expect(started).toHaveLength(3)
    expect(started.filter((pid) => existsSync(`/proc/${pid}`))).toEqual([])
  })

  test('whose command is not there or cannot be executed fails with the reason, and no attempt is wasted on the site', async () => {
    const { record, of } = await run([{ name: 'odd', run: 'exec /no/such/program' }])
    expect(record.run.status).toBe('failed')
    expect(of('odd')).toMatchObject({ status: 'failed', failureClass: 'user', exitCode: 127, attempt: 1 })
    expect(record.run.failureReason).toMatch(/no\/such\/program/)
  })
})

describe('attempts', () => {
  test('an activity is tried again until it succeeds, after its delay; each attempt keeps its own row, log and directory', async () => {
    const counter = join(service.dataDir, 'tries')
    const { record, of, log, world } = await run([
      {
        name: 'flaky',
        run:
          `echo x >> ${counter}; n=$(wc -l < ${counter}); echo "attempt $AKOFLOW_ATTEMPT"; echo "bad ` +
          'luck $n" >&2; [ $n -ge 3 ]',
        policy: { maxAttempts: 3, retryDelaySeconds: 1 },
      },
      { name: 'after', after: ['flaky'] },
    ])
    expect(record.run).toMatchObject({
      status: 'completed',
      completedActivityCount: 2,
      failedActivityCount: 0,
    })
    const attempts = record.activities.filter((task) => task.activityId === world.activityId('flaky'))
    expect(
      attempts.map((task) => [task.id, task.attempt, task.status, task.exitCode, task.failureClass]),
    ).toEqual([
      [`${world.name}-run:${world.activityId('flaky')}`, 1, 'failed', 1, 'user'],
      [`${world.name}-run:${world.activityId('flaky')}:2`, 2, 'failed', 1, 'user'],
      [`${world.name}-run:${world.activityId('flaky')}:3`, 3, 'completed', 0, undefined],
    ])
    for (const [before, after] of [
      [0, 1],
      [1, 2],
    ] as const)
      expect(attempts[after].startedAt - attempts[before].finishedAt).toBeGreaterThanOrEqual(1)
    expect(attempts[0].failureReason).toMatch(/flaky.*attempt 1.*exit code 1: bad luck 1/s)
    expect(await log('flaky')).toBe('attempt 3\n')
    expect(await log('flaky', '?attempt=1')).toBe('attempt 1\n')
    expect(await log('flaky', '?attempt=2&stream=stderr')).toBe('bad luck 2\n')
    const detail = await service.get(`/execution-runs/${world.name}-run/`)
    expect(detail.activities.map((task: any) => task.attempt).sort()).toEqual([1, 3])
    const folder = join(
      (record.handles.find((handle) => handle.id === of('flaky').id) as any).artifacts.root,
      '..',
    )
    expect(readdirSync(folder).sort()).toEqual(['1', '1.home', '2', '2.home', '3', '3.home'])
  })

  test('an expected output that is missing is the failure of the activity, tried again like any other', async () => {
    const counter = join(service.dataDir, 'outputs')
    const { record, world } = await run([
      {
        name: 'late',
        run: `echo x >> ${counter}; if [ $(wc -l < ${counter}) -ge 2 ]; then mkdir -p out; echo 1 > out/result; fi`,
        outputs: ['out/result'],
        policy: { maxAttempts: 2 },
      },
      { name: 'never', run: 'true', outputs: ['nothing.txt'], after: ['late'] },
    ])
    const late = record.activities.filter((task) => task.activityId === world.activityId('late'))
    expect(late.map((task) => [task.status, task.exitCode, task.failureClass])).toEqual([
      ['failed', 0, 'user'],
      ['completed', 0, undefined],
    ])
    expect(late[0].failureReason).toMatch(/did not make out\/result/)
    expect(record.run.status).toBe('failed')
    expect(record.run.failureReason).toMatch(/never.*did not make nothing\.txt/)
  })

  test('a failed run says which activity, where, with what exit, and its last words', async () => {
    const { record, world } = await run([
      { name: 'good' },
      { name: 'bad', run: 'echo much >&2; echo "the disk is upside down" >&2; exit 7', after: ['good'] },
      { name: 'behind', after: ['bad'] },
    ])
    expect(record.run.status).toBe('failed')
    expect(record.run.failureReason).toMatch(
      new RegExp(
        `bad on ${String(world.resourceIds[0])}, attempt 1.*exit code 7.*the disk is upside down`,
        's',
      ),
    )
    expect(record.run).toMatchObject({ completedActivityCount: 1, failedActivityCount: 1 })
    expect(activityOf(record, world, 'behind')).toMatchObject({
      status: 'cancelled',
      failureReason: expect.stringMatching(/run failed/),
    })
  })

  test('a failure stops what has not begun, and lets what runs end; on request the other branches go on', async () => {
    const mark = (name: string): string => join(service.dataDir, `mark-${name}`)
    const waitFor = (path: string): string => `until [ -e ${path} ]; do sleep 0.05; done`
    /** The task `beside` runs until the failure of `bad` is on record. */
    const failing = async (id: string, members: Record<string, unknown> = {}) => {
      const [begun, go] = [mark(`${id}-begun`), mark(`${id}-go`)]
      const world = await makeWorld(service, {
        name: id,
        tasks: [
          { name: 'bad', run: `${waitFor(begun)}; exit 1`, lane: [0, 0] },
          {
            name: 'beside',
            run: `echo > ${begun}; ${waitFor(go)}; echo done > ${mark(`${id}-beside`)}`,
            lane: [0, 1],
          },
          { name: 'later', run: `echo done > ${mark(`${id}-later`)}`, lane: [0, 0], after: ['beside'] },
          { name: 'behind', lane: [0, 0], after: ['bad'] },
          { name: 'last', run: `echo done > ${mark(`${id}-last`)}`, lane: [0, 0], after: ['later'] },
        ],
      })
      const body = { id: `${id}-run`, schedulePlanId: world.planId, mode: 'real', ...members }
      await service.post('/execution-runs/', body)
      await until(
        'the failure',
        120,
        async () => (await service.get(`/execution-runs/${id}-run/`)).run.failedActivityCount === 1,
      )
      writeFileSync(go, '')
      await service.finished(`${id}-run`)
      return { world, record: await checked(service, world, `${id}-run`) }
    }
    const stopped = await failing('stop')
    expect(stopped.record.run).toMatchObject({
      status: 'failed',
      completedActivityCount: 1,
      failedActivityCount: 1,
    })
    expect(readFileSync(mark('stop-beside'), 'utf8')).toBe('done\n')
    expect(existsSync(mark('stop-later'))).toBe(false)

    const independent = await failing('go', { onFailure: 'finish-independent' })
    expect(independent.record.run).toMatchObject({
      status: 'failed',
      completedActivityCount: 3,
      failedActivityCount: 1,
    })
    expect(readFileSync(mark('go-last'), 'utf8')).toBe('done\n')
    expect(activityOf(independent.record, independent.world, 'behind')).toMatchObject({ status: 'cancelled' })
  })
})

test('a runtime with launch: none records everything and starts nothing', async () => {
  const world = await makeWorld(service, {
    name: 'rehearsal',
    launch: 'none',
    tasks: [
      { name: 'a', run: 'exit 3' },
      { name: 'b', after: ['a'], outputs: [] },
      { name: 'c', after: ['a', 'b'] },
    ],
  })
  const before = existsSync(join(service.dataDir, 'work'))
    ? readdirSync(join(service.dataDir, 'work')).length
    : 0
  const record = await runToEnd(service, world, { id: 'rehearsal-run' })
  expect(record.run).toMatchObject({ status: 'completed', completedActivityCount: 3 })
  expect(record.activities.map((task) => task.runtimeId)).toEqual([
    'rehearsal-none',
    'rehearsal-none',
    'rehearsal-none',
  ])
  expect(readdirSync(join(service.dataDir, 'work'))).toHaveLength(before)
})
