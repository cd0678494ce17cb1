import { expect } from '@jest/globals'
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { quote } from '../../src/shell/quote.ts'
import {
  DriverError,
  type Collected,
  type Intent,
  type RuntimeDriver,
} from '../../src/drivers/runtime/contract/driver.ts'
import { openSshDriver, type SshDriverOptions } from '../../src/drivers/runtime/remote/ssh.ts'
import { LinkError, type SiteShell } from '../../src/shell/site-shell.ts'
import { readOrUndefined } from '../../src/embedded/processes.ts'
import { startSshd } from '../clients/sshd.ts'
import { kill } from '../support/kill.ts'
import { runFolder } from '../support/run-folder.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterEach, beforeEach, describe, test } = needs('root', ...sites.sshd, 'iproute2')

const seconds = 1000
let scratch: string
let closing: (() => Promise<void>)[]

beforeEach(() => {
  scratch = mkdtempSync(join(runFolder(), 'orrery-failures-'))
  closing = []
})
afterEach(async () => {
  for (const close of closing.reverse()) await close()
  rmSync(scratch, { recursive: true, force: true })
})

const localShell = (environment: Record<string, string> = {}): SiteShell => {
  const shell = openLocalShell({ environment })
  closing.push(() => shell.close())
  return shell
}

const driverOver = (shell: SiteShell, more: Partial<SshDriverOptions> = {}): RuntimeDriver => {
  const driver = openSshDriver({
    shell,
    root: join(scratch, 'root'),
    runtime: 'ssh',
    taskVariable: 'ORRERY_TASK',
    pollMilliseconds: 300,
    ...more,
  })
  closing.push(() => driver.close())
  return driver
}

const intent = (name: string, script: string, ...args: string[]): Intent => ({
  name,
  directory: join(scratch, 'work', name),
  argv: ['/bin/sh', '-c', script, 'sh', ...args],
  environment: {},
  stage: [],
  expectedOutputs: [],
  cores: 1,
  memoryBytes: 0,
  timeoutSeconds: 60,
})

/** As the engine does: a site that does not answer is asked again. */
async function patiently<T>(ask: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof DriverError) || error.trouble !== 'unknown' || tries === 600) throw error
      await sleep(50)
    }
  }
}

/** '' for one that has ended. */
const environmentOf = (pid: number): string => {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'latin1')
  } catch {
    return ''
  }
}

/** Session processes of an sshd, not what runs in them: a restart of sshd leaves that alone. */
const sessionsOf = (pid: number): number[] =>
  (readOrUndefined(() => readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8')) ?? '')
    .split(' ')
    .filter(
      (child) =>
        child !== '' && readOrUndefined(() => readFileSync(`/proc/${child}/comm`, 'utf8')) === 'sshd\n',
    )
    .flatMap((child) => [...sessionsOf(Number(child)), Number(child)])

const submitted = async (driver: RuntimeDriver, intents: readonly Intent[]): Promise<void> => {
  await patiently(async () => {
    for (const outcome of await driver.submit(intents)) if (!outcome.ok) throw outcome.error
  })
}
const ended = (driver: RuntimeDriver, names: readonly string[]): Promise<void> => {
  const waiting = new Set(names)
  return new Promise((resolve) => {
    driver.watch(names, (name) => {
      if (waiting.delete(name) && waiting.size === 0) resolve()
    })
  })
}
const wholeLife = async (driver: RuntimeDriver, task: Intent): Promise<Collected> => {
  await submitted(driver, [task])
  await ended(driver, [task.name])
  return patiently(() => driver.collect(task.name))
}
const ledger = (): string[] => {
  const file = join(scratch, 'ledger')
  return existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : []
}

describe('a link that is cut', () => {
  type Cut = { at: number; when: 'before' | 'after' | 'half' }
  /**
   * Loses the answer of one call: before it was asked, after it was carried out, or while it is
   * carried out. Streams end with it.
   */
  const cutting = (shell: SiteShell, cut: Cut): { shell: SiteShell; calls: () => number } => {
    let calls = 0
    const streams = new Set<() => void>()
    return {
      calls: () => calls,
      shell: {
        async run(script, options) {
          const own = calls++
          if (own !== cut.at) return shell.run(script, options)
          for (const kill of streams) kill()
          const lost = new LinkError('link', 'the link was cut')
          if (cut.when === 'before') throw lost
          if (cut.when === 'after') await shell.run(script, options)
          else await shell.run(script, { ...options, deadlineMs: 15 }).catch(() => undefined)
          throw lost
        },
        async open(script) {
          const stream = await shell.open(script)
          streams.add(() => stream.kill())
          return stream
        },
        close: () => shell.close(),
      },
    }
  }

  test.each(['before', 'after', 'half'] as const)(
    'in every call of submit, watch and collect, %s it is carried out: one start, and everything is told as if nothing had been',
    async (when) => {
      const shell = localShell()
      const from = join(scratch, 'seed')
      mkdirSync(from)
      writeFileSync(join(from, 'given'), 'given')
      for (let at = 0, calls = 1; at < Math.min(calls, 30); at++) {
        const link = cutting(shell, { at, when })
        const driver = driverOver(link.shell)
        const name = `cut-${when}-${at}`
        const task = {
          ...intent(
            name,
            'echo "$1" >> "$2"; cat given > made; echo said >&2; exit 3',
            name,
            join(scratch, 'ledger'),
          ),
          stage: [{ from, label: 'seed' }],
          expectedOutputs: ['made'],
        }
        const collected = await wholeLife(driver, task)
        expect(collected.state).toMatchObject({ state: 'ended', exitCode: 3, reason: 'exited' })
        expect(collected.manifest.files.map(({ path, change }) => `${change} ${path}`)).toEqual([
          'created made',
        ])
        expect(collected).toMatchObject({ missingOutputs: [], stderrTail: 'said' })
        expect(ledger().filter((line) => line === name)).toHaveLength(1)
        await patiently(() => driver.remove(name))
        expect(existsSync(task.directory)).toBe(false)
        expect(
          readdirSync(join(scratch, 'root/tasks')).filter((file) => file.startsWith(`${name}.`)),
        ).toEqual([])
        calls = link.calls()
        await driver.close()
      }
      expect(ledger().length).toBeGreaterThanOrEqual(8)
    },
    180 * seconds,
  )

  test(
    'while the sessions of sshd are killed again and again, with 40 tasks in flight: each starts once and ends as it does',
    async () => {
      const sshd = await startSshd()
      const sessions = openSshSessions({ backOffMs: { first: 50, longest: 500 } })
      closing.push(
        () => sshd.stop(),
        () => sessions.close(),
      )
      const driver = driverOver(sessions.shell(sshd.target({ timeouts: { keepaliveMs: 500 } })))
      const tasks = Array.from({ length: 40 }, (_, position) =>
        intent(
          `r-${position}`,
          'echo "$1" >> "$2"; sleep "$3"; exit "$4"',
          `r-${position}`,
          join(scratch, 'ledger'),
          `${position % 5}`,
          `${position % 3}`,
        ),
      )
      let over = false
      const disturb = async (): Promise<void> => {
        for (let cuts = 0; !over && cuts < 6; cuts++) {
          await sleep(300 + 400 * (cuts % 3))
          for (const pid of sessionsOf(sshd.masterPid() ?? -1)) kill(pid)
        }
      }
      const disturbance = disturb()
      const lives = await Promise.all(tasks.map((task) => wholeLife(driver, task)))
      over = true
      await disturbance
      expect(lives.map(({ state }) => (state.state === 'ended' ? state.exitCode : state.state))).toEqual(
        tasks.map((_, position) => position % 3),
      )
      expect(ledger().sort()).toEqual(tasks.map(({ name }) => name).sort())
    },
    180 * seconds,
  )

  test(
    'for longer than a task lives: no end is made of silence, and the end is told when the site is back',
    async () => {
      const shell = localShell()
      let away = false
      const link: SiteShell = {
        run: (script, options) =>
          away ? Promise.reject(new LinkError('route', 'nobody answers')) : shell.run(script, options),
        open: (script) =>
          away ? Promise.reject(new LinkError('route', 'nobody answers')) : shell.open(script),
        close: () => shell.close(),
      }
      const driver = driverOver(link)
      // The stream is cut too: it belongs to this shell.
      const task = intent('silent', 'sleep 1')
      await submitted(driver, [task])
      away = true
      let told = false
      const other = driverOver(link)
      const end = ended(other, ['silent']).then(() => (told = true))
      await expect(other.find(['silent'])).rejects.toMatchObject({ trouble: 'unknown' })
      await expect(other.submit([intent('next', 'true')])).rejects.toMatchObject({ trouble: 'unknown' })
      await expect(other.cancel(['silent'], 1)).rejects.toMatchObject({ trouble: 'unknown' })
      await sleep(2500)
      expect(told).toBe(false)
      away = false
      await end
      expect((await other.find(['silent', 'next'])).get('next')).toEqual({ state: 'unknown' })
    },
    60 * seconds,
  )
})

test(
  'a wrong clock of the site, by an hour, shows in no time',
  async () => {
    const bin = join(scratch, 'bin')
    mkdirSync(bin)
    writeFileSync(join(bin, 'date'), '#!/bin/sh\nexec /bin/date -d "1 hour ago" "$@"\n', { mode: 0o755 })
    const driver = driverOver(localShell({ PATH: `${bin}:/usr/bin:/bin` }))
    const before = Date.now() / 1000
    const { submittedAt, state } = await wholeLife(driver, intent('clock', 'sleep 0.5'))
    const after = Date.now() / 1000
    if (state.state !== 'ended') throw new Error(state.state)
    expect(submittedAt).toBeGreaterThanOrEqual(before)
    expect(state.startedAt).toBeGreaterThanOrEqual(submittedAt)
    expect(state.finishedAt - state.startedAt).toBeGreaterThan(0.48)
    expect(state.finishedAt).toBeLessThan(after + 0.1)
  },
  30 * seconds,
)

describe('what the records at the site say', () => {
  const record = (name: string): string => join(scratch, 'root/tasks', `${name}.task`)

  test(
    'a task of before a restart of the machine is lost and never started again',
    async () => {
      const driver = driverOver(localShell())
      const task = intent('rebooted', 'echo x >> "$1"; sleep 30', join(scratch, 'ledger'))
      await submitted(driver, [task])
      while (ledger().length === 0) await sleep(20)
      const text = readFileSync(record('rebooted'), 'utf8')
      await driver.cancel(['rebooted'], 0)
      const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
      writeFileSync(record('rebooted'), text.replace(boot, '00000000-0000-4000-8000-000000000000'))
      // Another boot of a machine that has been up since before is another machine of that name.
      const other = (await driverOver(localShell()).find(['rebooted'])).get('rebooted')
      expect(other).toMatchObject({ state: 'running', cause: expect.stringContaining('another host') })
      const tasks = join(scratch, 'root/tasks')
      for (const script of readdirSync(tasks).filter((file) => /^rebooted\..*run$/.test(file))) {
        const file = join(tasks, script)
        writeFileSync(file, readFileSync(file, 'utf8').replace(/"submittedAt":[\d.]+/, '"submittedAt":1'))
      }
      const another = driverOver(localShell())
      expect((await another.find(['rebooted'])).get('rebooted')).toMatchObject({ state: 'lost' })
      await submitted(another, [task])
      await ended(another, ['rebooted'])
      expect(ledger()).toEqual(['x'])
    },
    30 * seconds,
  )

  test(
    'a task whose supervisor is killed is ended with all that carries its mark, then lost; its output can be read',
    async () => {
      const driver = driverOver(localShell())
      await submitted(driver, [intent('orphan', 'echo said; (setsid sleep 60 & echo $! > pid); sleep 60')])
      const pidFile = join(scratch, 'work/orphan/pid')
      while (!existsSync(pidFile) || readFileSync(pidFile, 'utf8') === '') await sleep(20)
      const end = ended(driver, ['orphan'])
      process.kill(Number(readFileSync(record('orphan'), 'utf8').split(' ')[2]), 'SIGKILL')
      await end
      expect((await driver.find(['orphan'])).get('orphan')).toMatchObject({ state: 'lost' })
      expect(environmentOf(Number(readFileSync(pidFile, 'utf8')))).toBe('')
      expect((await driver.logs('orphan', 'stdout', { tail: 100 })).bytes.toString()).toBe('said\n')
      await expect(driver.collect('orphan')).rejects.toMatchObject({ trouble: 'unknown' })
      await driver.remove('orphan')
      expect(readdirSync(join(scratch, 'root/tasks')).filter((file) => file.startsWith('orphan.'))).toEqual(
        [],
      )
    },
    30 * seconds,
  )

  test(
    'a supervisor that the site tells to stop ends its task politely; it is lost, with the cause',
    async () => {
      const driver = driverOver(localShell())
      await submitted(driver, [
        intent(
          'stopped',
          'trap "echo clean > left; exit 0" TERM; echo up > up; while :; do sleep 0.05; done',
        ),
      ])
      while (!existsSync(join(scratch, 'work/stopped/up'))) await sleep(20)
      const end = ended(driver, ['stopped'])
      process.kill(Number(readFileSync(record('stopped'), 'utf8').split(' ')[2]), 'SIGTERM')
      await end
      expect((await driver.find(['stopped'])).get('stopped')).toMatchObject({
        state: 'lost',
        cause: expect.stringContaining('SIGTERM'),
      })
      expect(readFileSync(join(scratch, 'work/stopped/left'), 'utf8')).toBe('clean\n')
    },
    30 * seconds,
  )

  test(
    'an empty record is a start in progress, then a lost one; it is never started again',
    async () => {
      const driver = driverOver(localShell())
      await wholeLife(driver, intent('first', 'true'))
      writeFileSync(record('claimed'), '')
      expect((await driver.find(['claimed'])).get('claimed')).toMatchObject({ state: 'running' })
      await sleep(5200)
      expect((await driver.find(['claimed'])).get('claimed')).toMatchObject({ state: 'lost' })
      await submitted(driver, [intent('claimed', 'echo x >> "$1"', join(scratch, 'ledger'))])
      await sleep(300)
      expect(ledger()).toEqual([])
    },
    30 * seconds,
  )
})

describe('a full disk at the site', () => {
  /**
   * A shell in a mount namespace of its own, with a disk of 1 MiB at `place`; both end with the
   * process that holds them.
   */
  const onSmallDisk = async (place: string): Promise<SiteShell> => {
    mkdirSync(place)
    const holder = spawn(
      'unshare',
      [
        '--mount',
        '/bin/sh',
        '-c',
        `mount -t tmpfs -o size=1m none ${quote(place)} && echo ready && read -r _`,
      ],
      {
        stdio: ['pipe', 'pipe', 'inherit'],
      },
    )
    closing.push(async () => {
      holder.stdin.end()
      if (holder.exitCode === null) await new Promise((resolve) => holder.once('close', resolve))
    })
    await new Promise((resolve, reject) => {
      holder.stdout.once('data', resolve)
      holder.once('close', () => reject(new Error('no mount namespace can be made')))
    })
    const shell = localShell()
    const inside = (script: string): string =>
      `exec nsenter --mount=/proc/${holder.pid}/ns/mnt /bin/sh -c ${quote(script)}`
    return {
      run: (script, options) => shell.run(inside(script), options),
      open: (script) => shell.open(inside(script)),
      close: () => shell.close(),
    }
  }

  test(
    'refuses a submit in the words of the site, with what is free; the name stays free; an end that comes then is recorded',
    async () => {
      const disk = join(scratch, 'disk')
      const shell = await onSmallDisk(disk)
      const driver = driverOver(shell, { root: join(disk, 'root') })
      const at = (name: string, script: string): Intent => ({
        ...intent(name, script),
        directory: join(disk, 'work', name),
      })
      const filler = at('filler', 'dd if=/dev/zero of=full bs=4096 2> /dev/null; exit 4')
      expect((await wholeLife(driver, filler)).state).toMatchObject({ state: 'ended', exitCode: 4 })
      const [outcome] = await driver.submit([at('late', 'true')])
      if (outcome === undefined || outcome.ok) throw new Error('accepted on a full disk')
      expect(outcome.error.trouble).toBe('infrastructure')
      expect(outcome.error.message).toMatch(/No space left on device.*0 MiB of 1 MiB are free/s)
      expect((await driver.find(['late'])).get('late')).toEqual({ state: 'unknown' })
      await driver.remove('filler')
      expect((await wholeLife(driver, at('late', 'exit 5'))).state).toMatchObject({ exitCode: 5 })
    },
    60 * seconds,
  )
})
