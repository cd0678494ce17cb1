import { afterEach, beforeEach, describe, expect, test } from '@jest/globals'
import { spawn, type ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from '../support/fast-check.ts'
import type {
  Collected,
  Intent,
  RuntimeDriver,
  TaskState,
} from '../../src/drivers/runtime/contract/driver.ts'
import type { Need } from '../../sites/requirements.ts'
import { needs } from '../support/needs.ts'
import { plainIntent, taskName } from './intent.ts'

/**
 * One place where tasks run. What is below `scratch` is the site's files, as its keeper sees them
 * and this machine; taken away by `close`.
 */
export interface ConformanceSite {
  scratch: string
  /**
   * Where tasks and this machine see each other's files while a task runs. Default: in `scratch`.
   */
  window?: string
  /** Another driver over the same site, as another worker would have it. */
  open(): RuntimeDriver
  /** Node as the tasks see it, if not under its path here. */
  node?: string
  /**
   * Whether also a process that left its group and cleared its environment is ended with its task.
   * Default true.
   */
  endsUnmarked?: boolean
  /**
   * Whether the work directory is a mount point, which a task can empty and not remove. Default
   * false.
   */
  directoryStays?: boolean
  /** Whether it tells an exit code from 129 to 159 from a signal. Default true. */
  tellsSignals?: boolean
  /** Whether it can say what processor time and memory a task used. Default true. */
  measuresUse?: boolean
  /**
   * Whether it can say the peak memory of a task that needed less than one before it in the same
   * place. Default true.
   */
  measuresEachPeak?: boolean
  /**
   * Whether a task runs in its work directory itself, not in another folder with the same content.
   * Default true.
   */
  runsInPlace?: boolean
  /** Whether a task gets USER and LOGNAME, since its account may have no name. Default false. */
  namesAccount?: boolean
  /** Whether what was submitted starts while no driver is alive. Default true. */
  startsAlone?: boolean
  /** What passes of a time limit before the task's program runs. Default 0. */
  startSeconds?: number
  /**
   * Where a scheduler has lists of tasks: another driver, to which it answers without mentioning any
   * while `hide` was called so last, and the milliseconds after which it would be lost if that counted.
   */
  hiding?: { open(): { driver: RuntimeDriver; hide(now: boolean): void }; forMs: number }
  /** Whether the process that calls itself so lives, where tasks have process ids of their own. */
  lives?(pid: number): boolean
  /**
   * argv of a program that opens the site, submits the intents given as JSON in its last argument,
   * prints the outcomes and waits.
   */
  submitter: readonly string[]
  close(): Promise<void>
}

const sh = (script: string, ...args: string[]): string[] => ['/bin/sh', '-c', script, 'sh', ...args]

/** Whether a process lives; a zombie does not. */
function lives(pid: number): boolean {
  try {
    return !/^\S+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, 'latin1'))
  } catch {
    return false
  }
}

const readPid = (path: string): number | undefined =>
  existsSync(path) && /^\d+\n$/.test(readFileSync(path, 'utf8'))
    ? Number(readFileSync(path, 'utf8'))
    : undefined

/**
 * What every runtime driver promises (`src/drivers/runtime/contract/driver.ts`), asked of the real
 * thing. `seconds`: milliseconds that one promise may take. `carried`: the same driver has kept all
 * promises elsewhere, and is asked for those in which files or workers have a part. `hides`: it has
 * a scheduler whose lists can lack tasks (`ConformanceSite.hiding`). `peakNeeds`:
 * what the driver measures the peak memory of a task with. `restless`: false in files of the gate, as
 * the end of programs that start another one all the time depends on the load of the machine.
 */
export function runtimeDriverConformance(
  name: string,
  makeSite: () => ConformanceSite,
  {
    seconds = 180_000,
    carried = false,
    hides = false,
    peakNeeds = [],
    restless = true,
  }: {
    seconds?: number
    carried?: boolean
    hides?: boolean
    peakNeeds?: readonly Need[]
    restless?: boolean
  } = {},
): void {
  /**
   * A promise that what runs beside the task keeps by itself, or what is checked before anything is
   * sent.
   */
  const testOnce = (
    title: string,
    promise: () => Promise<unknown>,
    milliseconds: number,
    itsNeeds: readonly Need[] = [],
  ): void => {
    if (!carried) needs(...itsNeeds).test(title, promise, milliseconds)
  }
  describe(`${name}: runtime driver`, () => {
    let site: ConformanceSite
    let driver: RuntimeDriver
    let opened: RuntimeDriver[]
    let submitters: ChildProcess[]
    /** Names of the test's tasks. */
    let made: string[]
    let deadlines: NodeJS.Timeout[]
    let count = 0

    beforeEach(() => {
      site = makeSite()
      driver = site.open()
      opened = [driver]
      submitters = []
      made = []
      deadlines = []
    })
    afterEach(async () => {
      for (const deadline of deadlines) clearTimeout(deadline)
      for (const child of submitters) child.kill('SIGKILL')
      for (const one of opened) await one.close()
      await site.close()
    })

    /** A path that tasks and this machine both see. */
    const visible = (file: string): string => join(site.window ?? site.scratch, file)
    const alive = (pid: number): boolean => site.lives?.(pid) ?? lives(pid)
    const another = (): RuntimeDriver => {
      const one = site.open()
      opened.push(one)
      return one
    }
    const intent = (argv: readonly string[], more: Partial<Intent> = {}): Intent => {
      const task = taskName(++count)
      made.push(task)
      return { ...plainIntent(task, join(site.scratch, 'work', task), argv), timeoutSeconds: 60, ...more }
    }
    /** Why something that was waited for did not come: what is told of the test's tasks. */
    const told = async (): Promise<string> =>
      driver.find(made).then(
        (states) => `told are ${JSON.stringify(Object.fromEntries(states))}`,
        (error: unknown) => `nothing is told: ${String(error)}`,
      )
    const until = async <T>(probe: () => T | undefined | false, what: string): Promise<T> => {
      for (let tries = 0; tries < 6000; tries++) {
        const value = probe()
        if (value !== undefined && value !== false) return value
        await sleep(10)
      }
      throw new Error(`waited in vain for ${what}; ${await told()}`)
    }
    const ended = (names: readonly string[], by = driver): Promise<void> => {
      const waiting = new Set(names)
      return new Promise((resolve, reject) => {
        const late = async (): Promise<void> =>
          reject(new Error(`waited in vain for the end of ${[...waiting].join(', ')}; ${await told()}`))
        const deadline = setTimeout(() => void late(), 0.9 * seconds)
        deadlines.push(deadline)
        by.watch(names, (one) => {
          waiting.delete(one)
          if (waiting.size > 0) return
          clearTimeout(deadline)
          resolve()
        })
      })
    }
    const collect = (task: string): Promise<Collected> =>
      driver.collect(task).catch(async (error: unknown) => {
        throw new Error(`${String(error)}; ${await told()}`, { cause: error })
      })
    const submit = async (what: Intent, by = driver): Promise<string> => {
      const [outcome] = await by.submit([what])
      if (outcome?.ok !== true) throw outcome?.error ?? new Error('no outcome')
      return outcome.externalId
    }
    const runAll = async (tasks: readonly Intent[]): Promise<void> => {
      const end = ended(tasks.map((task) => task.name))
      for (const outcome of await driver.submit(tasks)) if (!outcome.ok) throw outcome.error
      await end
    }
    const run = async (what: Intent): Promise<Collected> => {
      await submit(what)
      await ended([what.name])
      return collect(what.name)
    }
    const stateOf = async (task: string, by = driver): Promise<TaskState> =>
      (await by.find([task])).get(task) ?? { state: 'unknown' }
    /** At once where nothing waits in a queue. */
    const becomes = async (task: Intent, wanted: TaskState['state']): Promise<TaskState> => {
      for (let tries = 0; tries < 600; tries++) {
        const state = await stateOf(task.name)
        if (state.state === wanted) return state
        await sleep(200)
      }
      throw new Error(`${task.name} did not become ${wanted} within 120 s; ${await told()}`)
    }
    const text = async (task: string, stream: 'stdout' | 'stderr' = 'stdout'): Promise<string> =>
      (await driver.logs(task, stream, { offset: 0, limit: 1_000_000 })).bytes.toString()
    const submitElsewhere = async (what: Intent): Promise<ChildProcess> => {
      const [program = '', ...args] = site.submitter
      const child = spawn(program, [...args, JSON.stringify([what])], {
        stdio: ['ignore', 'pipe', 'inherit'],
      })
      submitters.push(child)
      await new Promise((resolve, reject) => {
        child.stdout.once('data', resolve)
        child.once('exit', () => reject(new Error('the submitter ended early')))
      })
      return child
    }

    test(
      'says what it ran: exit code, times, processor time, memory, output',
      async () => {
        const before = Date.now() / 1000
        const task = intent(
          sh('echo out; echo err >&2; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 0.2; exit 3'),
        )
        const collected = await run(task)
        const { state } = collected
        if (state.state !== 'ended') throw new Error(state.state)
        expect(state).toMatchObject({ exitCode: 3, signal: null, reason: 'exited' })
        expect(collected.submittedAt).toBeGreaterThanOrEqual(before)
        expect(state.startedAt).toBeGreaterThanOrEqual(collected.submittedAt)
        expect(state.finishedAt - state.startedAt).toBeGreaterThan(0.19)
        expect(collected.wallSeconds).toBeGreaterThan(0.19)
        expect(collected.wallSeconds).toBeLessThan(Date.now() / 1000 - before + 0.1)
        if (site.measuresUse === false)
          expect(collected).toMatchObject({ cpuSeconds: null, measuredBy: 'none' })
        else {
          expect(collected.cpuSeconds).toBeGreaterThan(0.01)
          expect(collected.cpuSeconds).toBeLessThan(collected.wallSeconds)
        }
        expect(await text(task.name)).toBe('out\n')
        expect(await text(task.name, 'stderr')).toBe('err\n')
        expect(collected.stderrTail).toBe('err')
        expect(await driver.collect(task.name)).toEqual(collected)
        expect(statSync(task.directory).mode & 0o777).toBe(0o700)
      },
      seconds,
    )

    test(
      'takes a code above 128 that no signal gives as the code of the program',
      async () => {
        const codes = [147, 148, 149, 150, 156, 255]
        const collected = await Promise.all(codes.map((code) => run(intent(sh(`exit ${code}`)))))
        expect(collected.map(({ state }) => state)).toMatchObject(
          codes.map((exitCode) => ({ exitCode, signal: null, reason: 'exited' })),
        )
      },
      seconds,
    )

    testOnce(
      'measures the peak memory of the largest process below the task',
      async () => {
        const bytes = 48 * 1024 * 1024
        const { peakMemoryBytes } = await run(
          intent([
            site.node ?? process.execPath,
            '-e',
            `require('child_process').execFileSync(process.execPath, ['-e', 'Buffer.alloc(${bytes}, 1)'])`,
          ]),
        )
        const { peakMemoryBytes: idle } = await run(
          intent([
            site.node ?? process.execPath,
            '-e',
            `require('child_process').execFileSync(process.execPath, ['-e', '0'])`,
          ]),
        )
        if (site.measuresUse === false) return expect([peakMemoryBytes, idle]).toEqual([null, null])
        if (site.measuresEachPeak === false) {
          expect(peakMemoryBytes).toBeGreaterThan(bytes)
          return expect(idle).toBeNull()
        }
        expect((peakMemoryBytes ?? 0) - (idle ?? 0)).toBeGreaterThan(bytes * 0.9)
        expect((peakMemoryBytes ?? 0) - (idle ?? 0)).toBeLessThan(bytes * 1.5)
      },
      seconds,
      peakNeeds,
    )

    testOnce(
      'starts a name once, whoever submits it how often',
      async () => {
        const ledger = visible('ledger')
        const others = [driver, another(), another()]
        const tasks = Array.from({ length: 12 }, () => intent(sh('echo $$ >> "$1"; sleep 0.1', ledger)))
        const outcomes = await Promise.all(
          Array.from({ length: 9 }, (_, turn) => others[turn % 3]!.submit(tasks)),
        )
        expect(outcomes.flat().filter((outcome) => !outcome.ok)).toEqual([])
        const ids = new Set(
          outcomes.flat().map((outcome) => (outcome.ok ? `${outcome.name} ${outcome.externalId}` : '')),
        )
        expect(ids.size).toBe(tasks.length)
        await ended(tasks.map((task) => task.name))
        await Promise.all(others.map((one) => one.submit(tasks)))
        await sleep(200)
        expect(readFileSync(ledger, 'utf8').trim().split('\n')).toHaveLength(tasks.length)
      },
      seconds,
    )

    test(
      'starts a name once when several processes submit it',
      async () => {
        const ledger = visible('ledger')
        const task = intent(sh('echo x >> "$1"; sleep 0.2', ledger))
        await Promise.all([submitElsewhere(task), submitElsewhere(task), submit(task)])
        await ended([task.name])
        expect(readFileSync(ledger, 'utf8')).toBe('x\n')
      },
      seconds,
    )

    const hidingTest = hides ? testOnce : () => undefined
    hidingTest(
      'waits for a task that its site does not mention, at any moment: it runs once, to its end',
      async () => {
        const { open, forMs } = site.hiding!
        // One after the other: a small cluster has no room for all at once.
        for (const moment of ['submit', 'start', 'end'] as const) {
          const [one, other] = [open(), open()]
          const workers = [one.driver, other.driver]
          opened.push(...workers)
          // Another worker, to which nothing is ever mentioned.
          other.hide(true)
          const [ledger, go] = [visible(`${moment}.ledger`), visible(`${moment}.go`)]
          const script = 'echo begun >> "$1"; until [ -e "$2" ]; do sleep 0.05; done; exit 3'
          const task = intent(sh(script, ledger, go))
          const states = async (): Promise<string[]> =>
            Promise.all(workers.map(async (by) => (await stateOf(task.name, by)).state))
          one.hide(moment === 'submit')
          for (const by of workers) await submit(task, by)
          for (const state of await states()) expect(state).toMatch(/queued|running/)
          const ends: RuntimeDriver[] = []
          for (const by of workers) by.watch([task.name], () => ends.push(by))
          one.hide(moment === 'start')
          await until(() => existsSync(ledger), 'the start')
          if (moment === 'start') await sleep(forMs)
          // A scheduler may report the start of a task after the task itself does.
          let seen = await states()
          for (let tries = 0; tries < 600 && seen.includes('queued'); tries++) {
            await sleep(200)
            seen = await states()
          }
          expect(seen).toEqual(['running', 'running'])
          for (const by of workers) await submit(task, by)
          expect(ends).toEqual([])
          one.hide(moment === 'end')
          writeFileSync(go, '')
          await until(() => ends.length >= 2, 'the ends')
          expect(await states()).toEqual(['ended', 'ended'])
          expect(await other.driver.collect(task.name)).toMatchObject({ state: { exitCode: 3 } })
          expect(readFileSync(ledger, 'utf8')).toBe('begun\n')
        }
      },
      seconds,
    )

    test(
      'finds unknown, running and ended tasks, also with a driver that did not start them',
      async () => {
        const [short, long] = [intent(sh('exit 0')), intent(['sleep', '30'])]
        expect(await stateOf('never-heard-of')).toEqual({ state: 'unknown' })
        const id = await submit(long)
        await submit(short)
        await ended([short.name])
        const states = await another().find([short.name, long.name, 'never-heard-of'])
        expect(states.get(short.name)).toMatchObject({ state: 'ended', exitCode: 0 })
        expect(states.get(long.name)).toMatchObject({ state: 'running', externalId: id })
        expect(states.get('never-heard-of')).toEqual({ state: 'unknown' })
        await expect(driver.collect(long.name)).rejects.toMatchObject({ trouble: 'unknown' })
        await driver.cancel([long.name], 1)
      },
      seconds,
    )

    test(
      'calls back once per name: for ends that come, that were, and of tasks of others',
      async () => {
        const calls: string[] = []
        const [mine, over, foreign] = [intent(['sleep', '0.2']), intent(['true']), intent(['sleep', '0.4'])]
        await run(over)
        await submit(foreign, another())
        await submit(mine)
        const names = [mine.name, over.name, foreign.name]
        driver.watch(names, (one) => calls.push(one))
        const stop = driver.watch(names, () => calls.push('stopped'))
        stop()
        await until(() => calls.length >= 3, 'three ends')
        await sleep(400)
        expect(calls.sort()).toEqual([...names].sort())
      },
      seconds,
    )

    test(
      'cancels politely: a task may clean up, and its end says why',
      async () => {
        const ready = visible('ready')
        const task = intent(
          sh('trap "echo clean; exit 7" TERM; : > "$1"; while :; do sleep 0.05; done', ready),
        )
        await submit(task)
        await until(() => existsSync(ready), 'the start')
        await driver.cancel([task.name], 20)
        expect(await stateOf(task.name)).toMatchObject({ state: 'ended', exitCode: 7, reason: 'cancelled' })
        expect(await text(task.name)).toContain('clean')
      },
      seconds,
    )

    test(
      'cancels by force after the grace, with children in sessions of their own that ignore the signal',
      async () => {
        const unmarked = site.endsUnmarked !== false
        const [a, b] = [visible('a.pid'), visible('b.pid')]
        const stubborn = 'trap "" TERM HUP; echo $$ > "$1.new"; mv "$1.new" "$1"; while :; do sleep 1; done'
        const clear = unmarked ? 'env -i PATH="$PATH" ' : ''
        const task = intent(
          sh(
            `trap "" TERM; (setsid sh -c '${stubborn}' sh "$1" &) ; (${clear}setsid sh -c ` +
              `'${stubborn}' sh "$2" &); while :; do sleep 1; done`,
            a,
            b,
          ),
        )
        await submit(task)
        const pids = [await until(() => readPid(a), 'a'), await until(() => readPid(b), 'b')]
        const from = performance.now()
        await Promise.all([driver.cancel([task.name], 0.5), another().cancel([task.name], 0.5)])
        expect(performance.now() - from).toBeGreaterThan(450)
        expect(pids.map(alive)).toEqual([false, false])
        expect(await stateOf(task.name)).toMatchObject({
          state: 'ended',
          signal: 'SIGKILL',
          reason: 'cancelled',
        })
        await driver.cancel([task.name], 0.5)
      },
      seconds,
    )

    test(
      'never starts what was cancelled before',
      async () => {
        const marker = visible('ran')
        const task = intent(sh('echo > "$1"', marker))
        await driver.cancel([task.name], 1)
        await submit(task)
        await ended([task.name])
        expect(await stateOf(task.name)).toMatchObject({
          state: 'ended',
          reason: 'cancelled',
          exitCode: null,
        })
        expect((await collect(task.name)).manifest.files).toEqual([])
        expect(existsSync(marker)).toBe(false)
      },
      seconds,
    )

    test(
      'races of cancel against submit leave nothing alive and one recorded end',
      async () => {
        const tasks = Array.from({ length: 30 }, () => intent(['sleep', '20']))
        await Promise.all(
          tasks.map(async (task, position) => {
            const started = driver.submit([task])
            await sleep(position % 10)
            await driver.cancel([task.name], 0.2)
            await started
            await driver.cancel([task.name], 0.2)
          }),
        )
        const states = await driver.find(tasks.map((task) => task.name))
        for (const state of states.values())
          expect(state).toMatchObject({ state: 'ended', reason: 'cancelled' })
      },
      seconds,
    )

    testOnce(
      'a task ends with its first process: what it left in the background does not outlive it',
      async () => {
        const file = visible('left.pid')
        const task = intent(
          sh(
            `(setsid sh -c 'echo $$ > "$1.new"; mv "$1.new" "$1"; exec sleep 30' sh "$1" &); while ` +
              '[ ! -e "$1" ]; do sleep 0.02; done',
            file,
          ),
        )
        expect((await run(task)).state).toMatchObject({ state: 'ended', exitCode: 0, reason: 'exited' })
        expect(alive(await until(() => readPid(file), 'the pid'))).toBe(false)
      },
      seconds,
    )

    testOnce(
      'nor does what has variables of several lines before the one that marks it',
      async () => {
        const file = visible('lines.pid')
        const task = intent(
          sh(
            `(setsid sh -c 'echo $$ > "$1.new"; mv "$1.new" "$1"; exec env -i "before=first
last" "ORRERY_TASK=$ORRERY_TASK" sleep 30' sh "$1" &); while [ ! -e "$1" ]; do sleep 0.02; done`,
            file,
          ),
        )
        expect((await run(task)).state).toMatchObject({ state: 'ended', exitCode: 0, reason: 'exited' })
        expect(alive(await until(() => readPid(file), 'the pid'))).toBe(false)
      },
      seconds,
    )

    const restlessTest = restless ? testOnce : () => undefined
    restlessTest(
      'what becomes another program all the time does not outlive its task either',
      async () => {
        const files = [...'abcdefghijkl'].map((letter) => visible(`restless-${letter}.pid`))
        const tasks = files.map((file) =>
          intent(
            sh(
              `restless='[ -e "$file" ] && exec sh -c "$restless"' file=$1; export restless file
(setsid sh -c 'echo $$ > "$1.new"; mv "$1.new" "$1"; eval "$restless"' sh "$1" &)
while [ ! -e "$1" ]; do sleep 0.02; done`,
              file,
            ),
          ),
        )
        for (const { state } of await Promise.all(tasks.map(run)))
          expect(state).toMatchObject({ state: 'ended', exitCode: 0, reason: 'exited' })
        const pids = await Promise.all(files.map((file) => until(() => readPid(file), 'the pid')))
        const left = pids.filter(alive)
        // One that is left ends with its file.
        for (const file of files) rmSync(file)
        expect(left).toEqual([])
      },
      seconds,
    )

    testOnce(
      'ends a task whose time is over, with all its children',
      async () => {
        const file = visible('child.pid')
        const task = intent(sh(`(setsid sh -c 'echo $$ > "$1"; exec sleep 30' sh "$1" &); sleep 30`, file), {
          timeoutSeconds: 0.5 + (site.startSeconds ?? 0),
        })
        const { state, wallSeconds } = await run(task)
        expect(state).toMatchObject({ state: 'ended', reason: 'timeout', signal: 'SIGTERM' })
        expect(wallSeconds).toBeGreaterThan(0.49)
        expect(wallSeconds).toBeLessThan(5 + (site.startSeconds ?? 0))
        expect(alive(await until(() => readPid(file), 'the pid'))).toBe(false)
      },
      seconds,
    )

    test(
      'survives the death of its submitter: adopted while it runs, its end read by another',
      async () => {
        const gate = visible('gate')
        const task = intent(
          sh(
            'echo begun; while [ ! -e "$1" ]; do sleep 0.02; done; echo over; echo made > product; exit 5',
            gate,
          ),
        )
        const submitter = await submitElsewhere(task)
        submitter.kill('SIGKILL')
        await until(() => submitter.signalCode === 'SIGKILL', 'the death of the submitter')
        await becomes(task, 'running')
        await submit(task)
        const end = ended([task.name])
        writeFileSync(gate, '')
        await end
        const collected = await collect(task.name)
        expect(collected.state).toMatchObject({ state: 'ended', exitCode: 5 })
        expect(collected.manifest.files.map((file) => file.path)).toEqual(['product'])
        expect(await text(task.name)).toBe('begun\nover\n')
      },
      seconds,
    )

    test(
      'keeps time limits while no driver is alive',
      async () => {
        const started = visible('started')
        const task = intent(sh(': > "$1"; exec sleep 30', started), {
          timeoutSeconds: 1 + (site.startSeconds ?? 0),
        })
        const submitter = await submitElsewhere(task)
        if (site.startsAlone === false) await until(() => existsSync(started), 'the start')
        submitter.kill('SIGKILL')
        // Longer than the limit and than a place in a queue takes; nobody watches meanwhile.
        await sleep(2500)
        expect(await becomes(task, 'ended')).toMatchObject({ reason: 'timeout' })
      },
      seconds,
    )

    test(
      'reads logs by range and from the end, while they are written and afterwards',
      async () => {
        const gate = visible('gate')
        const task = intent(
          sh('printf 0123456789; while [ ! -e "$1" ]; do sleep 0.02; done; printf abcdef', gate),
        )
        await submit(task)
        if (driver.capabilities.logStreaming) {
          while ((await text(task.name)).length < 10) await sleep(10)
          expect(await driver.logs(task.name, 'stdout', { offset: 2, limit: 3 })).toEqual({
            bytes: Buffer.from('234'),
            offset: 2,
            totalBytes: 10,
          })
        }
        writeFileSync(gate, '')
        await ended([task.name])
        expect(await driver.logs(task.name, 'stdout', { tail: 4 })).toEqual({
          bytes: Buffer.from('cdef'),
          offset: 12,
          totalBytes: 16,
        })
        expect(await driver.logs(task.name, 'stdout', { tail: 400 })).toMatchObject({
          offset: 0,
          totalBytes: 16,
        })
        expect((await driver.logs(task.name, 'stdout', { offset: 99, limit: 4 })).bytes).toHaveLength(0)
        expect((await driver.logs(task.name, 'stderr', { tail: 4 })).totalBytes).toBe(0)
        expect((await driver.logs('never-heard-of', 'stdout', { tail: 4 })).totalBytes).toBe(0)
      },
      seconds,
    )

    testOnce(
      'keeps the output of concurrent and successive tasks apart',
      async () => {
        const tasks = Array.from({ length: 12 }, (_, position) =>
          intent(position % 3 === 0 ? ['true'] : sh('echo "$1"; echo "$1" >&2', String(position))),
        )
        for (let from = 0; from < tasks.length; from += 4) await runAll(tasks.slice(from, from + 4))
        const expected = tasks.map((_, position) => (position % 3 === 0 ? '' : `${position}\n`))
        expect(await Promise.all(tasks.map((task) => text(task.name)))).toEqual(expected)
        expect(await Promise.all(tasks.map((task) => text(task.name, 'stderr')))).toEqual(expected)
      },
      seconds,
    )

    testOnce(
      'keeps the last lines of stderr',
      async () => {
        const { stderrTail } = await run(intent(sh('seq 1 5000 >&2')))
        expect(stderrTail.split('\n')).toEqual(Array.from({ length: 20 }, (_, line) => String(4981 + line)))
      },
      seconds,
    )

    testOnce(
      'a program that cannot be run is a failure of the task, with words',
      async () => {
        const absent = await run(intent(['/no/such/program']))
        expect(absent.state).toMatchObject({ state: 'ended', exitCode: 127 })
        expect(absent.stderrTail).toContain('/no/such/program')
        const folder = await run(intent(['pwd'], { workingDirectory: 'not/there' }))
        expect(folder.state).toMatchObject({ state: 'ended', exitCode: 126 })
        expect(folder.stderrTail).toContain('not/there')
      },
      seconds,
    )

    testOnce(
      'says how a task died',
      async () => {
        expect((await run(intent(sh('kill -SEGV $$')))).state).toMatchObject({
          exitCode: null,
          signal: 'SIGSEGV',
          reason: 'exited',
        })
      },
      seconds,
    )

    testOnce(
      'gives a task its environment and no more, and no open files of others',
      async () => {
        process.env['SERVICE_API_TOKEN'] = 'secret'
        process.env['SOMETHING'] = 'else'
        const task = intent(sh('env -0; printf "\\0fds"; ls /proc/$$/fd'), {
          environment: { GREETING: 'hello $HOME `id`\nworld', EMPTY: '', LANG: 'C' },
        })
        await run(task)
        const [variables = '', fds = ''] = (await text(task.name)).split('\0\0fds')
        const seen = Object.fromEntries(
          variables
            .split('\0')
            .map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
        )
        expect(seen['GREETING']).toBe('hello $HOME `id`\nworld')
        expect(seen['EMPTY']).toBe('')
        if (site.runsInPlace !== false) expect(seen['HOME']).toBe(`${task.directory}.home`)
        const marks = Object.entries(seen).filter(([, value]) => value === task.name)
        expect(marks).toHaveLength(1)
        // PWD, OLDPWD, SHLVL and _ are the shell's own.
        const own = ['PWD', 'OLDPWD', 'SHLVL', '_', marks[0]?.[0]]
        expect(
          Object.keys(seen)
            .filter((key) => !own.includes(key))
            .sort(),
        ).toEqual(
          [
            'EMPTY',
            'GREETING',
            'HOME',
            'LANG',
            'PATH',
            'TMPDIR',
            ...(site.namesAccount ? ['LOGNAME', 'USER'] : []),
          ].sort(),
        )
        expect(fds.trim().split('\n')).toEqual(['0', '1', '2'])
        delete process.env['SERVICE_API_TOKEN']
        delete process.env['SOMETHING']
      },
      seconds,
    )

    test(
      'has a home beside its work directory, which is no output and goes with it',
      async () => {
        const task = intent(sh('cd && echo x > .cache && ls -A && cd - > /dev/null && echo y > out'))
        const { manifest } = await run(task)
        expect(await text(task.name)).toBe('.cache\n')
        expect(manifest.files.map(({ path }) => path)).toEqual(['out'])
        await driver.remove(task.name)
        for (const path of [task.directory, `${task.directory}.home`]) expect(existsSync(path)).toBe(false)
      },
      seconds,
    )

    testOnce(
      'passes 5,000 strings of metacharacters as they are, in arguments and environment; nothing of them is executed',
      async () => {
        const bait = visible('bait')
        const pieces = [
          '$(',
          '`',
          ')',
          ';',
          '&',
          '|',
          '>',
          '<',
          '\n',
          '\r',
          '\\',
          "'",
          '"',
          '*',
          '?',
          '~',
          '!',
          '#',
          '{',
          '}',
          '$HOME',
          '${IFS}',
          ' ',
          '\t',
          '-',
          '=',
          '%s',
          '\u0001',
          '\u007f',
          'é',
          '😀',
          `touch ${bait}`,
          `>${bait}`,
        ]
        const hostile = fc
          .array(fc.constantFrom(...pieces), { minLength: 1, maxLength: 12 })
          .map((parts) => parts.join(''))
        const strings = fc.sample(hostile, { seed: 20260101, numRuns: 5000 })
        const parts = Array.from({ length: 10 }, (_, part) => strings.slice(part * 500, (part + 1) * 500))
        const script =
          'process.stdout.write(JSON.stringify([process.argv.slice(1), ' +
          'process.argv.slice(1).map((_, i) => process.env["V" + i])]))'
        const tasks = parts.map((part) =>
          intent([site.node ?? process.execPath, '-e', script, '--', ...part], {
            environment: Object.fromEntries(part.map((value, position) => [`V${position}`, value])),
          }),
        )
        await runAll(tasks)
        for (const [position, part] of parts.entries())
          expect(JSON.parse(await text(tasks[position]!.name))).toEqual([part, part])
        const program = await run(intent([`; touch ${bait} #`]))
        expect(program.state).toMatchObject({ exitCode: 127 })
        expect(existsSync(bait)).toBe(false)
      },
      2 * seconds,
    )

    testOnce(
      'refuses what cannot be passed, naming the field',
      async () => {
        const bad: [Partial<Intent>, string][] = [
          [{ name: '../evil' }, 'name'],
          [{ directory: 'relative' }, 'directory'],
          [{ argv: [] }, 'argv'],
          [{ argv: ['echo', 'a\0b'] }, 'argv[1]'],
          [{ environment: { 'A=B': '1' } }, 'environment name'],
          [{ environment: { A: '\0' } }, 'environment.A'],
          [{ workingDirectory: '../up' }, 'workingDirectory'],
          [{ expectedOutputs: ['/etc/passwd'] }, 'expectedOutputs'],
          [{ timeoutSeconds: Number.NaN }, 'timeoutSeconds'],
        ]
        for (const [more, field] of bad) {
          const [outcome] = await driver.submit([intent(['true'], more)])
          expect(outcome).toMatchObject({
            ok: false,
            error: { trouble: 'refused', message: expect.stringContaining(field) },
          })
        }
      },
      seconds,
    )

    test(
      'a site that cannot make the work directory is a failure of the infrastructure, and the name stays free',
      async () => {
        const file = join(site.scratch, 'file')
        writeFileSync(file, '')
        const task = intent(['true'], { directory: join(file, 'below') })
        expect(await driver.submit([task])).toMatchObject([
          { ok: false, error: { trouble: 'infrastructure' } },
        ])
        expect(await stateOf(task.name)).toEqual({ state: 'unknown' })
        expect((await run({ ...task, directory: join(site.scratch, 'good') })).state).toMatchObject({
          exitCode: 0,
        })
      },
      seconds,
    )

    describe('files', () => {
      const folder = (label: string, files: Record<string, string>): { from: string; label: string } => {
        const from = join(site.scratch, 'from', label)
        mkdirSync(from, { recursive: true })
        for (const [path, content] of Object.entries(files)) {
          mkdirSync(join(from, path, '..'), { recursive: true })
          writeFileSync(join(from, path), content)
        }
        return { from, label }
      }
      const sha = (content: string): string => `sha256:${createHash('sha256').update(content).digest('hex')}`

      test(
        'lists what was created, modified and deleted, with checksums, and what was not delivered',
        async () => {
          const big = 'x'.repeat(300_000)
          const before = folder('seed', {
            'keep.txt': 'keep',
            'sub/change.txt': 'old',
            'same-size.txt': 'aaaa',
            'gone.txt': 'gone',
            'touched.txt': 'touched',
            big,
          })
          const task = intent(
            sh(
              'echo new > sub/change.txt; printf bbbb > same-size.txt; rm gone.txt; touch ' +
                'touched.txt; mkdir -p out/deep; printf made > out/deep/file; ln -s file out/deep/link; head ' +
                '-c 5000000 /dev/zero > large',
            ),
            {
              stage: [before],
              expectedOutputs: ['out/deep/file', 'out/deep/link', 'out', 'large', 'missing.txt', 'gone.txt'],
            },
          )
          const { manifest, missingOutputs } = await run(task)
          const listed = manifest.files.map(({ path, change, sizeBytes, checksum }) => ({
            path,
            change,
            sizeBytes,
            checksum,
          }))
          expect(listed).toEqual([
            { path: 'gone.txt', change: 'deleted', sizeBytes: 0, checksum: undefined },
            { path: 'large', change: 'created', sizeBytes: 5_000_000, checksum: sha('\0'.repeat(5_000_000)) },
            { path: 'out/deep/file', change: 'created', sizeBytes: 4, checksum: sha('made') },
            { path: 'out/deep/link', change: 'created', sizeBytes: 4, checksum: undefined },
            { path: 'same-size.txt', change: 'modified', sizeBytes: 4, checksum: sha('bbbb') },
            { path: 'sub/change.txt', change: 'modified', sizeBytes: 4, checksum: sha('new\n') },
          ])
          expect(manifest.summary).toEqual({
            initialFiles: 6,
            finalFiles: 8,
            createdFiles: 3,
            modifiedFiles: 2,
            deletedFiles: 1,
            outputBytes: 5_000_016,
          })
          expect(manifest.root).toBe(task.directory)
          expect(missingOutputs).toEqual(['missing.txt', 'gone.txt'])
        },
        seconds,
      )

      test(
        'a change that keeps size and modification time is seen',
        async () => {
          const before = folder('seed', { data: 'aaaa', same: 'cccc' })
          const { manifest } = await run(
            intent(sh('cp -p data ref; printf bbbb > data; touch -r ref data; rm ref'), { stage: [before] }),
          )
          expect(manifest.files).toMatchObject([{ path: 'data', change: 'modified', checksum: sha('bbbb') }])
        },
        seconds,
      )

      test(
        'stages copies, with modes and times, that a task can change without changing the origin',
        async () => {
          const one = folder('one', { 'bin/tool': '#!/bin/sh\necho tool', 'a/shared': 'same' })
          const two = folder('two', { 'a/shared': 'same', 'a/other': 'other' })
          chmodSync(join(one.from, 'bin/tool'), 0o755)
          symlinkSync('../bin/tool', join(one.from, 'a/link'))
          const task = intent(sh('./bin/tool; cat a/link a/other; echo more >> a/shared; ls'), {
            stage: [one, two],
          })
          const { manifest } = await run(task)
          expect(await text(task.name)).toBe('tool\n#!/bin/sh\necho toolothera\nbin\n')
          expect(readFileSync(join(one.from, 'a/shared'), 'utf8')).toBe('same')
          expect(manifest.files.map((file) => file.path)).toEqual(['a/shared'])
          expect(
            Math.abs(
              statSync(join(task.directory, 'a/other')).mtimeMs - statSync(join(two.from, 'a/other')).mtimeMs,
            ),
          ).toBeLessThan(0.01)
          expect(statSync(join(task.directory, 'a/other')).nlink).toBe(1)
        },
        seconds,
      )

      test(
        'stages only the paths asked for, and says who did not deliver one',
        async () => {
          const one = { ...folder('one', { 'a/x': 'x', 'a/y': 'y', 'b/z': 'z' }), paths: ['a/x', 'b'] }
          const task = intent(sh('find . -type f | sort'), { stage: [one] })
          await run(task)
          expect(await text(task.name)).toBe('./a/x\n./b/z\n')
          const missing = await driver.submit([intent(['true'], { stage: [{ ...one, paths: ['a/none'] }] })])
          expect(missing).toMatchObject([
            { ok: false, error: { trouble: 'user', message: expect.stringMatching(/one.*a\/none/) } },
          ])
          const hostile = await driver.submit([
            intent(['true'], { stage: [{ ...one, paths: ['../two/x'] }] }),
          ])
          expect(hostile).toMatchObject([{ ok: false, error: { trouble: 'refused' } }])
        },
        seconds,
      )

      testOnce(
        'names both sides and the path when two predecessors disagree; nothing is started or left behind',
        async () => {
          const pairs: [Record<string, string>, Record<string, string>, string][] = [
            [{ 'd/f': 'one' }, { 'd/f': 'two' }, 'd/f'],
            [{ 'd/f': 'one' }, { 'd/f': 'longer' }, 'd/f'],
            [{ d: 'file' }, { 'd/f': 'folder' }, 'd'],
          ]
          for (const [position, [left, right, path]] of pairs.entries()) {
            const stages = [folder(`left-${position}`, left), folder(`right-${position}`, right)]
            const task = intent(['true'], { stage: stages })
            const [outcome] = await driver.submit([task])
            if (outcome === undefined || outcome.ok) throw new Error('accepted')
            expect(outcome.error.trouble).toBe('user')
            for (const word of [`left-${position}`, `right-${position}`, JSON.stringify(path)])
              expect(outcome.error.message).toContain(word)
            expect(await stateOf(task.name)).toEqual({ state: 'unknown' })
            expect(existsSync(task.directory)).toBe(false)
          }
          const parent = join(site.scratch, 'work')
          expect(existsSync(parent) ? readdirSync(parent) : []).toEqual([])
        },
        seconds,
      )

      test(
        'brings links that lead inside, also absolute ones, and leaves out the others with a warning',
        async () => {
          const one = folder('one', { 'a.txt': 'a', 'sub/file': 'file', 'sub/deep/x': 'x' })
          const inside = {
            'sub/absolute': join(one.from, 'a.txt'),
            round: `${dirname(one.from)}/./${basename(one.from)}/sub//../a.txt`,
            back: `../${basename(one.from)}/a.txt`,
            folder: join(one.from, 'sub'),
            through: 'folder/absolute',
          }
          const outside = {
            plain: '/etc/passwd',
            up: '../../secret',
            'sub/up': 'deep/../../../x',
            above: '..',
            bin: '/usr/bin',
            chain: 'bin/env',
            second: 'chain',
            nothing: '/nonexistent',
          }
          const idle = { gone: 'no/where', circle: 'circle', later: join(one.from, 'later.txt') }
          for (const [path, target] of Object.entries({ ...inside, ...outside, ...idle }))
            symlinkSync(target, join(one.from, path))
          const task = intent(sh('cat a.txt sub/absolute round back folder/file through; rm -r sub'), {
            stage: [one],
          })
          const { manifest } = await run(task)
          expect(await text(task.name)).toBe('aaaafilea')
          // Folders are no files: a function leaves those that have become empty.
          const there = readdirSync(task.directory).filter((name) => name !== 'sub')
          expect(there.sort()).toEqual([
            'a.txt',
            ...['back', 'circle', 'folder', 'gone', 'later', 'round', 'through'],
          ])
          expect(readlinkSync(join(task.directory, 'later'))).toBe('later.txt')
          expect(manifest.files.map(({ change }) => change)).toEqual(['deleted', 'deleted', 'deleted'])
          expect(manifest.warnings).toHaveLength(Object.keys(outside).length)
          expect(manifest.warnings?.filter((line) => line.includes('"/etc/passwd"'))).toEqual([
            '"plain" of a predecessor was not brought: it is a link to "/etc/passwd", outside of its work directory',
          ])
          expect(manifest.warnings?.join('\n')).toMatch(/"second".* by the link "bin" to "\/usr\/bin"/)
        },
        seconds,
      )

      test(
        'brings what an asked link leads to, and says where one leads that leaves the work directory',
        async () => {
          const one = folder('one', { 'data/v2': 'two', 'data/v1': 'one', 'data/v3': '', other: '' })
          symlinkSync(join(one.from, 'data/v2'), join(one.from, 'latest'))
          symlinkSync('data', join(one.from, 'folder'))
          symlinkSync('/usr/bin/env', join(one.from, 'env'))
          const task = intent(sh('cat latest folder/v1; find . ! -type d | sort'), {
            stage: [{ ...one, paths: ['latest', 'folder/v1'] }],
          })
          await run(task)
          expect(await text(task.name)).toBe('twoone./data/v1\n./data/v2\n./folder\n./latest\n')
          expect(
            await driver.submit([intent(['true'], { stage: [{ ...one, paths: ['env'] }] })]),
          ).toMatchObject([
            {
              ok: false,
              error: {
                trouble: 'user',
                message: expect.stringMatching(/one leaves "env".*"\/usr\/bin\/env".*copy/),
              },
            },
          ])
        },
        seconds,
      )

      test(
        'an expected output that is a link to elsewhere is missing, with the reason',
        async () => {
          const task = intent(
            sh(
              'echo x > x; ln -s "$PWD/x" good; ln -s /usr/bin/env bad; ln -s bad worse; ln -s gone dangling',
            ),
            { expectedOutputs: ['good', 'bad', 'worse', 'dangling', 'none'] },
          )
          const { missingOutputs, strayOutputs } = await run(task)
          expect(missingOutputs).toEqual(['bad', 'worse', 'dangling', 'none'])
          expect(strayOutputs).toEqual([
            { path: 'bad', why: 'it is a link to "/usr/bin/env", outside of its work directory' },
            {
              path: 'worse',
              why: 'it leads by the link "bad" to "/usr/bin/env", outside of its work directory',
            },
            { path: 'dangling', why: 'it is a link to "gone", where nothing is' },
          ])
        },
        seconds,
      )

      test(
        'of different files at a path that no one names the later predecessor leaves, with a warning',
        async () => {
          const left = {
            f: 'one',
            same: 'same',
            size: 'aaa',
            'd/f': 'folder',
            g: 'file',
            link: 'no link',
            kept: 'k',
          }
          const right = { f: 'other', same: 'same', size: 'bbb', d: 'file', 'g/f': 'folder' }
          const one = { ...folder('one', left), named: ['x'] }
          const two = { ...folder('two', right), named: ['y'] }
          symlinkSync('f', join(two.from, 'link'))
          symlinkSync('/usr/bin/env', join(two.from, 'kept'))
          const task = intent(sh('cat f same size d g/f link kept; rm g/f'), { stage: [one, two] })
          const { manifest } = await run(task)
          expect(await text(task.name)).toBe('othersamebbbfilefolderotherk')
          expect(manifest.files).toMatchObject([{ path: 'g/f', change: 'deleted' }])
          expect(manifest.warnings?.map((line) => line.slice(0, line.indexOf(' '))).sort()).toEqual([
            '"d"',
            '"f"',
            '"g"',
            '"kept"',
            '"link"',
            '"size"',
          ])
          expect(manifest.warnings?.find((line) => line.startsWith('"f"'))).toMatch(
            /that of one differs from that of two/,
          )
          for (const stages of [
            [{ ...one, named: ['f'] }, two],
            [one, { ...two, named: ['f'] }],
            [{ ...one, named: ['d'] }, two],
          ])
            expect(await driver.submit([intent(['true'], { stage: stages })])).toMatchObject([
              { ok: false, error: { trouble: 'user' } },
            ])
        },
        seconds,
      )

      test(
        'a name that is submitted by many at once is staged whole',
        async () => {
          const files = Object.fromEntries(
            Array.from({ length: 60 }, (_, position) => [`d${position % 7}/f${position}`, String(position)]),
          )
          const one = folder('one', files)
          const tasks = Array.from({ length: 5 }, () =>
            intent(sh('find . -type f | wc -l; rm -r d0; sleep 0.1'), { stage: [one] }),
          )
          const drivers = [driver, another(), another()]
          await Promise.all(drivers.map((by) => by.submit(tasks)))
          await ended(tasks.map((task) => task.name))
          for (const task of tasks) {
            expect(await text(task.name)).toMatch(/^\s*60\n$/)
            const { manifest } = await collect(task.name)
            expect(
              manifest.files.every((file) => file.change === 'deleted' && file.path.startsWith('d0/')),
            ).toBe(true)
            expect(manifest.summary.deletedFiles).toBe(9)
          }
          const left = readdirSync(join(site.scratch, 'work')).filter((name) => !name.endsWith('.home'))
          expect(left.sort()).toEqual(tasks.map(({ name }) => name).sort())
        },
        seconds,
      )

      test(
        'removes the work directory of ended work, not of running work',
        async () => {
          const [over, running] = [intent(sh('echo > file')), intent(['sleep', '20'])]
          await run(over)
          await submit(running)
          await driver.remove(over.name)
          expect(existsSync(over.directory)).toBe(false)
          expect(await stateOf(over.name)).toEqual({ state: 'unknown' })
          await driver.remove('never-heard-of')
          await expect(driver.remove(running.name)).rejects.toMatchObject({ trouble: 'refused' })
          await driver.cancel([running.name], 1)
          await driver.remove(running.name)
          expect(existsSync(running.directory)).toBe(false)
        },
        seconds,
      )
    })
  })
}
