import { describe, expect, test } from '@jest/globals'
import { spawn } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Intent, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { openLocalDriver, type LocalDriverOptions } from '../../src/drivers/runtime/local/driver.ts'
import { bootId, processOf } from '../../src/drivers/runtime/local/processes.ts'
import { removeTree } from '../../src/drivers/runtime/local/remove-tree.ts'
import { runnerProgram } from '../support/runner-program.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { runFolder } from '../support/run-folder.ts'
import { plainIntent } from './intent.ts'
import { tortureConformance } from './torture.ts'

const localSite = (): ConformanceSite => {
  const scratch = mkdtempSync(join(runFolder(), 'orrery-local-'))
  const options = { controlDirectory: join(scratch, 'control'), timeoutGraceSeconds: 1 }
  return {
    scratch,
    open: () => openLocalDriver({ ...options, runnerProgram }),
    submitter: [process.execPath, join(import.meta.dirname, 'submit-and-wait.ts'), JSON.stringify(options)],
    close: () => removeTree(scratch),
  }
}

runtimeDriverConformance('local', localSite)
tortureConformance('local', localSite, { cases: 500, seed: 32 })

const seconds = 30_000

describe('local driver: what it finds in its records', () => {
  const on = async (
    check: (site: {
      driver: RuntimeDriver
      control: string
      scratch: string
      intent: (name: string, argv: string[]) => Intent
    }) => Promise<void>,
    more: Partial<LocalDriverOptions> = {},
  ): Promise<void> => {
    const scratch = mkdtempSync(join(runFolder(), 'orrery-local-'))
    const control = join(scratch, 'control')
    const driver = openLocalDriver({
      controlDirectory: control,
      pollMilliseconds: 50,
      runnerProgram,
      ...more,
    })
    const intent = (name: string, argv: string[]): Intent => plainIntent(name, join(scratch, name), argv)
    try {
      await check({ driver, control, scratch, intent })
    } finally {
      await driver.close()
      rmSync(scratch, { recursive: true, force: true })
    }
  }
  const facts = JSON.stringify({ directory: '/nowhere', expectedOutputs: [], submittedAt: 1 })
  const me = { pid: process.pid, birth: processOf(process.pid)?.birth ?? 0 }
  const ended = (driver: RuntimeDriver, name: string): Promise<string> =>
    new Promise((resolve) => driver.watch([name], resolve))

  test('a reused process id is not adopted', () =>
    on(async ({ driver, control }) => {
      writeFileSync(join(control, 'mine.task'), `${facts}\nrunner ${me.pid} ${me.birth} ${bootId()} 1\n`)
      writeFileSync(
        join(control, 'reused.task'),
        `${facts}\nrunner ${me.pid} ${me.birth - 1} ${bootId()} 1\ntask ${me.pid} ${me.birth - 1}\n`,
      )
      writeFileSync(
        join(control, 'rebooted.task'),
        `${facts}\nrunner ${me.pid} ${me.birth} some-other-boot 1\ntask ${me.pid} ${me.birth}\n`,
      )
      const states = await driver.find(['mine', 'reused', 'rebooted'])
      expect(states.get('mine')).toMatchObject({ state: 'running' })
      expect(states.get('reused')).toMatchObject({ state: 'lost', externalId: String(me.pid) })
      expect(states.get('rebooted')).toMatchObject({ state: 'lost' })
      await driver.cancel(['reused', 'rebooted'], 0)
    }))

  test(
    'an incomplete record is taken for a start in progress, then for a lost one; it is never started again',
    () =>
      on(async ({ driver, control, scratch, intent }) => {
        for (const [name, text] of Object.entries({
          empty: '',
          half: facts.slice(0, 10),
          headless: `${facts}\nrunner 1 2`,
        })) {
          const file = join(control, `${name}.task`)
          writeFileSync(file, text)
          expect((await driver.find([name])).get(name)).toMatchObject({ state: 'running' })
          utimesSync(file, Date.now() / 1000 - 60, Date.now() / 1000 - 60)
          expect((await driver.find([name])).get(name)).toMatchObject({ state: 'lost' })
          await driver.submit([intent(name, ['touch', join(scratch, 'ran')])])
        }
        expect(existsSync(join(scratch, 'ran'))).toBe(false)
      }),
    seconds,
  )

  test('an exit line without its end does not count', () =>
    on(async ({ driver, control }) => {
      writeFileSync(
        join(control, 'torn.task'),
        `${facts}\nrunner 999999999 1 ${bootId()} 1\ntask 999999999 1\nexit 2.0 0 0 exited 1.0 1.0 10`,
      )
      expect((await driver.find(['torn'])).get('torn')).toMatchObject({ state: 'lost' })
      writeFileSync(
        join(control, 'torn.task'),
        `${facts}\nrunner 999999999 1 ${bootId()} 1\ntask 999999999 1\nexit 2.0 0 0 exited 1.0 1.0 10\n`,
      )
      expect((await driver.find(['torn'])).get('torn')).toMatchObject({
        state: 'ended',
        exitCode: 0,
        finishedAt: 2,
      })
    }))

  test('a wish to end a task that is not written to its end does not count yet', () =>
    on(async ({ driver, control, intent }) => {
      await driver.submit([
        intent('wished', ['/bin/sh', '-c', 'trap "exit 7" TERM; echo up; while :; do sleep 0.01; done']),
      ])
      while ((await driver.logs('wished', 'stdout', { tail: 100 })).bytes.length === 0) await sleep(10)
      const runner = Number(/runner (\d+)/.exec(readFileSync(join(control, 'wished.task'), 'utf8'))?.[1])
      for (const half of ['', '9']) {
        writeFileSync(join(control, 'wished.cancel'), half)
        process.kill(runner, 'SIGTERM')
        await sleep(200)
        expect((await driver.find(['wished'])).get('wished')).toMatchObject({ state: 'running' })
      }
      writeFileSync(join(control, 'wished.cancel'), '9\n')
      process.kill(runner, 'SIGTERM')
      await ended(driver, 'wished')
      expect((await driver.find(['wished'])).get('wished')).toMatchObject({
        exitCode: 7,
        reason: 'cancelled',
      })
    }))

  test(
    'a task whose runner is killed is ended with all that carries its mark, then lost; its output can be read',
    () =>
      on(async ({ driver, control, scratch, intent }) => {
        const task = intent('orphan', [
          '/bin/sh',
          '-c',
          'echo said; (setsid sleep 60 & echo $! > pid); sleep 60',
        ])
        const [outcome] = await driver.submit([task])
        const end = ended(driver, 'orphan')
        while (!existsSync(join(scratch, 'orphan/pid'))) await sleep(10)
        const runner = Number(/runner (\d+)/.exec(readFileSync(join(control, 'orphan.task'), 'utf8'))?.[1])
        process.kill(runner, 'SIGKILL')
        await end
        expect((await driver.find(['orphan'])).get('orphan')).toMatchObject({
          state: 'lost',
          externalId: outcome?.ok === true ? outcome.externalId : '',
        })
        expect(processOf(Number(readFileSync(join(scratch, 'orphan/pid'), 'utf8')))).toBeUndefined()
        expect((await driver.logs('orphan', 'stdout', { tail: 100 })).bytes.toString()).toBe('said\n')
        const next = await driver.submit([intent('next', ['true'])])
        expect(next).toMatchObject([{ ok: true }])
        await ended(driver, 'next')
        await driver.remove('orphan')
        expect(readdirSync(control).filter((file) => file.startsWith(`runner-${runner}-`))).toEqual([])
      }),
    seconds,
  )

  test(
    'a kill by the kernel for want of memory is told',
    async () => {
      const folder = mkdtempSync(join(runFolder(), 'orrery-vmstat-'))
      const vmstatFile = join(folder, 'vmstat')
      writeFileSync(vmstatFile, 'pgfault 7\noom_kill 3\n')
      await on(
        async ({ driver, intent }) => {
          const tasks = [
            intent('plain', ['/bin/sh', '-c', 'kill -KILL $$']),
            intent('hungry', ['/bin/sh', '-c', `echo oom_kill 4 > ${vmstatFile}; kill -KILL $$`]),
          ]
          for (const task of tasks) {
            await driver.submit([task])
            await ended(driver, task.name)
          }
          const states = await driver.find(['plain', 'hungry'])
          expect(states.get('plain')).toMatchObject({ signal: 'SIGKILL', reason: 'exited' })
          expect(states.get('hungry')).toMatchObject({ signal: 'SIGKILL', reason: 'memory' })
        },
        { vmstatFile },
      )
      rmSync(folder, { recursive: true })
    },
    seconds,
  )

  test('a runner that cannot be had fails nothing for good: it says why, and the next submit asks again', () => {
    let asked = 0
    const once = (): Promise<string> =>
      ++asked === 1 ? Promise.reject(new Error('there is no Go to build it with')) : runnerProgram()
    return on(
      async ({ driver, intent }) => {
        expect(await driver.submit([intent('any', ['true'])])).toMatchObject([
          { ok: false, error: { trouble: 'infrastructure', message: 'there is no Go to build it with' } },
        ])
        expect((await driver.find(['any'])).get('any')).toEqual({ state: 'unknown' })
        expect(await driver.submit([intent('any', ['true'])])).toMatchObject([{ ok: true }])
        await ended(driver, 'any')
      },
      { runnerProgram: once },
    )
  })

  test('a runner that cannot be started says so', () =>
    on(
      async ({ driver, intent }) => {
        expect(await driver.submit([intent('any', ['true'])])).toMatchObject([
          {
            ok: false,
            error: { trouble: 'infrastructure', message: expect.stringContaining('cannot run /no/runner') },
          },
        ])
      },
      { runnerProgram: () => Promise.resolve('/no/runner') },
    ))

  test(
    'what a crash during staging left behind does no harm and is removed with the task',
    () =>
      on(async ({ driver, scratch, intent }) => {
        mkdirSync(join(scratch, 'from'))
        writeFileSync(join(scratch, 'from/a'), 'a')
        mkdirSync(join(scratch, '.staged.staging-1-abcd'))
        writeFileSync(join(scratch, '.staged.staging-1-abcd/half'), '')
        mkdirSync(join(scratch, 'staged'))
        const task = {
          ...intent('staged', ['/bin/ls', '-A']),
          stage: [{ from: join(scratch, 'from'), label: 'from' }],
        }
        await driver.submit([task])
        await ended(driver, 'staged')
        expect((await driver.logs('staged', 'stdout', { tail: 99 })).bytes.toString()).toBe('a\n')
        await driver.remove('staged')
        expect(readdirSync(scratch).sort()).toEqual(['control', 'from'])
      }),
    seconds,
  )

  test(
    'a process that is killed while staging large files leaves a task that can be submitted again',
    () =>
      on(async ({ driver, control, scratch, intent }) => {
        mkdirSync(join(scratch, 'from'))
        for (let file = 0; file < 400; file++)
          writeFileSync(join(scratch, `from/${file}`), Buffer.alloc(100_000, file))
        const task = {
          ...intent('big', ['/bin/sh', '-c', 'ls -A | wc -l']),
          stage: [{ from: join(scratch, 'from'), label: 'from' }],
        }
        const child = spawn(process.execPath, [
          join(import.meta.dirname, 'submit-and-wait.ts'),
          JSON.stringify({ controlDirectory: control }),
          JSON.stringify([task]),
        ])
        while (!readdirSync(scratch).some((name) => name.startsWith('.big.staging-'))) await sleep(1)
        child.kill('SIGKILL')
        await new Promise((resolve) => child.once('exit', resolve))
        await driver.submit([task])
        await ended(driver, 'big')
        expect((await driver.logs('big', 'stdout', { tail: 99 })).bytes.toString().trim()).toBe('400')
        expect((await driver.collect('big')).manifest.files).toEqual([])
      }),
    seconds,
  )

  test(
    'descendants that end in the same moment as their task are not taken for it',
    () =>
      on(async ({ driver, intent }) => {
        const script = 'for i in 1 2 3 4 5 6; do (sleep 0.01 &) ; done; sleep 0.01'
        for (let turn = 0; turn < 150; turn++) {
          const task = intent(`crowd-${turn}`, ['/bin/sh', '-c', script])
          const end = ended(driver, task.name)
          await driver.submit([task])
          await end
          expect((await driver.find([task.name])).get(task.name)).toMatchObject({
            state: 'ended',
            exitCode: 0,
            reason: 'exited',
          })
        }
      }),
    seconds,
  )

  test(
    'a wait for what does not end costs its runner little of a processor',
    () =>
      on(async ({ driver, control, intent, scratch }) => {
        const stubborn = `setsid sh -c 'trap "" TERM; echo > ready; while :; do sleep 1; done' & sleep 600`
        const task = intent('stubborn', ['sh', '-c', stubborn])
        await driver.submit([task])
        while (!existsSync(join(scratch, 'stubborn', 'ready'))) await sleep(10)
        const [, runner = ''] =
          / runner (\d+) /.exec(readFileSync(join(control, 'stubborn.task'), 'utf8')) ?? []
        const usedSeconds = (): number => {
          const fields = readFileSync(`/proc/${runner}/stat`, 'latin1').split(') ')[1]?.split(' ') ?? []
          return (Number(fields[11]) + Number(fields[12])) / 100
        }
        const before = usedSeconds()
        await driver.cancel([task.name], 8)
        expect(usedSeconds() - before).toBeLessThan(1)
      }),
    seconds,
  )

  test(
    'tells the end of its own tasks at once',
    () =>
      on(
        async ({ driver, intent }) => {
          const late: number[] = []
          for (let turn = 0; turn < 20; turn++) {
            const task = intent(`quick-${turn}`, ['sleep', '0.02'])
            const end = ended(driver, task.name)
            await driver.submit([task])
            await end
            const state = (await driver.find([task.name])).get(task.name)
            if (state?.state === 'ended') late.push(Date.now() / 1000 - state.finishedAt)
          }
          expect(late).toHaveLength(20)
          // The middle one: the machine that runs the tests has other work.
          expect(late.sort((a, b) => a - b)[10]).toBeLessThan(0.02)
        },
        { pollMilliseconds: 60_000 },
      ),
    seconds,
  )
})
