import { expect } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SshSessions, SshTarget } from '../../src/clients/ssh/target.ts'
import type { Collected, Intent, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { openSshDriver } from '../../src/drivers/runtime/remote/ssh.ts'
import { quote } from '../../src/shell/quote.ts'
import { roomScript } from '../../src/drivers/runtime/contract/cgroups.ts'
import { runnerRequest } from '../../src/drivers/runtime/local/runner.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { run, until } from '../../sites/ground.ts'
import { startKernelHost, type KernelHost } from '../../sites/ssh-kernel.ts'
import { startSsh } from '../../sites/ssh.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

import { runnerProgram } from '../support/runner-program.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.ssh)

const MiB = 2 ** 20

interface Place {
  target: SshTarget
  pollMilliseconds: number
  /** As root. */
  run(script: string): Promise<string>
  close(): Promise<void>
}

/**
 * A host of the machine's own kernel, whose logins are born in cgroups that were given to the
 * account, or in root's.
 */
const onThisKernel = (given: boolean) => async (): Promise<Place> => {
  const site = await startSsh({ hosts: 1 })
  const [host] = site.hosts
  const root = '/sys/fs/cgroup'
  const trees = !given
    ? []
    : existsSync(`${root}/cgroup.controllers`)
      ? [root]
      : [`${root}/memory`, `${root}/cpu`]
  const name = `orrery-limits-${randomBytes(4).toString('hex')}`
  const uid = (await host.run('id -u', 'account')).stdout.trim()
  for (const tree of trees)
    await host.run(`set -e
[ ! -e ${tree}/cgroup.subtree_control ] || echo '+memory +cpu' > ${tree}/cgroup.subtree_control
mkdir -p ${tree}/${name}/session && chown -R ${uid} ${tree}/${name}
cat /run/sshd.pid > ${tree}/${name}/session/cgroup.procs`)
  return {
    target: {
      host: host.address,
      port: 22,
      username: host.user,
      secret: () => Promise.resolve({ privateKey: site.key.privateKey }),
      hostKeys: { policy: 'strict', knownHosts: host.knownHosts() },
    },
    pollMilliseconds: 300,
    run: async (script) => (await host.run(script)).stdout,
    close: async () => {
      await site.stop()
      for (const tree of trees)
        await run('find', [`${tree}/${name}`, '-depth', '-type', 'd', '-exec', 'rmdir', '{}', ';'])
    },
  }
}

/** A login of a host with a kernel of its own, whose cgroups are of version 2. */
const onKernel = (host: KernelHost, port: number): Place => ({
  target: {
    host: host.address,
    port,
    username: host.user,
    secret: () => Promise.resolve({ privateKey: host.key.privateKey }),
    hostKeys: { policy: 'strict', knownHosts: host.knownHosts },
  },
  // A look starts some processes, and there each takes 33 ms of this machine's; ends are told at
  // once.
  pollMilliseconds: 10_000,
  run: (script) => host.run(script),
  close: () => Promise.resolve(),
})

let place: Place
let sessions: SshSessions
let shell: SiteShell
let driver: RuntimeDriver & { root(): Promise<string> }

const begin = (at: Place, folder = randomBytes(4).toString('hex')): void => {
  place = at
  sessions = openSshSessions()
  shell = sessions.shell(place.target)
  driver = openSshDriver({
    shell,
    root: `/home/${place.target.username}/${folder}`,
    runtime: 'ssh',
    taskVariable: 'ORRERY_TASK',
    timeoutGraceSeconds: 1,
    pollMilliseconds: place.pollMilliseconds,
  })
}
const end = async (): Promise<void> => {
  await driver.close()
  await sessions.close()
  await place.close()
}
const open = (at: () => Promise<Place>): void => {
  beforeAll(async () => begin(await at()), 60_000)
  afterAll(end, 60_000)
}

const intent = async (name: string, script: string, more: Partial<Intent> = {}): Promise<Intent> => ({
  name,
  directory: `${await driver.root()}/work/${name}`,
  argv: ['/bin/sh', '-c', script],
  environment: {},
  stage: [],
  expectedOutputs: [],
  cores: 1,
  memoryBytes: 64 * MiB,
  timeoutSeconds: 60,
  ...more,
})

const submit = async (...intents: Intent[]): Promise<void> => {
  for (const outcome of await driver.submit(intents)) if (!outcome.ok) throw outcome.error
}
const ends = (...names: string[]): Promise<void> => {
  const waiting = new Set(names)
  return new Promise((resolve) => {
    driver.watch(names, (name) => {
      if (waiting.delete(name) && waiting.size === 0) resolve()
    })
  })
}
const life = async (task: Intent): Promise<Collected & { output: string }> => {
  await submit(task)
  await ends(task.name)
  const { bytes } = await driver.logs(task.name, 'stdout', { tail: 10_000 })
  return { ...(await driver.collect(task.name)), output: bytes.toString() }
}

const take = (bytes: number): string => `perl -e '$x = "a" x ${bytes}; print length $x'`
const cgroups = async (): Promise<string[]> =>
  (await place.run("find /sys/fs/cgroup -ignore_readdir_race -type d -name 'orrery.*' ! -name orrery.rest"))
    .split('\n')
    .filter((line) => line !== '')
/** A process without its group, its session, its mark. */
const stray = (seconds: number): string => `(env -i setsid sleep ${seconds} > /dev/null 2>&1 < /dev/null &)`
const strays = async (seconds: number): Promise<string> => place.run(`pgrep -fx 'sleep ${seconds}' || :`)
/** Other files of this machine's tests make theirs at the same time. */
const ofOurs = async (...names: string[]): Promise<string[]> =>
  (await cgroups()).filter((path) => names.some((name) => path.includes(`/orrery.${name}.`)))

/** Prints what holds its processors, whatever the version. */
const processors = `while IFS=: read -r number names path; do
  case $number:,$names, in
    0:*) cat "/sys/fs/cgroup$path/cpu.max" ;;
    *,cpu,*) cat "/sys/fs/cgroup/cpu$path/cpu.cfs_quota_us" ;;
  esac
done < /proc/self/cgroup 2> /dev/null
true`

describe('an account that was given cgroups of this kernel', () => {
  open(onThisKernel(true))

  test('a task that takes more memory than it may is ended and told as out of memory; one beside it is not', async () => {
    await submit(await intent('greedy', take(200 * MiB)), await intent('modest', take(20 * MiB)))
    await ends('greedy', 'modest')
    const [greedy, modest] = [await driver.collect('greedy'), await driver.collect('modest')]
    expect(greedy.state).toMatchObject({ state: 'ended', reason: 'memory' })
    expect(greedy.detail).toEqual({ limits: 'cgroup' })
    expect(modest.state).toMatchObject({ state: 'ended', reason: 'exited', exitCode: 0 })
    expect(await ofOurs('greedy', 'modest')).toEqual([])
  }, 60_000)

  test('what its processes take together counts, and a child that was killed for it is why the task failed', async () => {
    const { state, output } = await life(
      await intent('together', `${take(50 * MiB)} | cat & ${take(200 * MiB)}; echo went on; exit 3`),
    )
    expect(output).toContain('went on')
    expect(state).toMatchObject({ state: 'ended', reason: 'memory', exitCode: 3 })
  }, 60_000)

  test('it has the processors that it was given', async () => {
    const { output, state } = await life(await intent('processors', processors, { cores: 3, memoryBytes: 0 }))
    expect(output).toMatch(/^300000( 100000)?$/m)
    expect(state).toMatchObject({ reason: 'exited', exitCode: 0 })
  }, 60_000)

  test('what left its group and cleared its environment ends with the task, and its folder is gone', async () => {
    const { state } = await life(await intent('leaving', `${stray(4711)}; sleep 0.2`))
    expect(state).toMatchObject({ reason: 'exited', exitCode: 0 })
    expect(await strays(4711)).toBe('')
    expect(await ofOurs('leaving')).toEqual([])
  }, 60_000)

  test('a cancel ends it too', async () => {
    await submit(await intent('cancelled', `${stray(4712)}; sleep 300`))
    await until('it runs', async () => (await strays(4712)) !== '', undefined, 20_000)
    await driver.cancel(['cancelled'], 1)
    expect(await strays(4712)).toBe('')
    expect((await driver.find(['cancelled'])).get('cancelled')).toMatchObject({
      state: 'ended',
      reason: 'cancelled',
    })
    expect(await ofOurs('cancelled')).toEqual([])
  }, 60_000)

  test('after a kill of its supervisor nothing of it lives on, and its folder goes with its work directory', async () => {
    await submit(await intent('orphan', `${stray(4713)}; sleep 300`))
    await until('it runs', async () => (await strays(4713)) !== '', undefined, 20_000)
    const state = (await driver.find(['orphan'])).get('orphan')
    if (state?.state !== 'running') throw new Error(`it is ${JSON.stringify(state)}`)
    const over = ends('orphan')
    await place.run(`kill -KILL ${state.externalId}`)
    await over
    await until('the stray is gone', async () => (await strays(4713)) === '', undefined, 20_000)
    expect((await driver.find(['orphan'])).get('orphan')).toMatchObject({ state: 'lost' })
    // Held for a moment, as by a process that is still dying when nothing more can be seen of it.
    const held = (await ofOurs('orphan')).map((folder) => `${folder}/held`).join(' ')
    await place.run(`mkdir ${held}; (sleep 0.4; rmdir ${held}) > /dev/null 2>&1 &`)
    await driver.remove('orphan')
    expect(await ofOurs('orphan')).toEqual([])
  }, 60_000)

  test('a hundred at once have one each', async () => {
    const names = Array.from({ length: 100 }, (_, position) => `many-${position}`)
    const over = ends(...names)
    await submit(...(await Promise.all(names.map((name) => intent(name, 'cat /proc/self/cgroup')))))
    await over
    const outputs = await Promise.all(
      names.map(async (name) => (await driver.logs(name, 'stdout', { tail: 5000 })).bytes.toString()),
    )
    for (const [position, output] of outputs.entries())
      expect(output).toMatch(new RegExp(`/orrery\\.${names[position] ?? ''}\\.`))
    expect(await ofOurs(...names)).toEqual([])
  }, 120_000)
})

describe('an account that may make no cgroup', () => {
  open(onThisKernel(false))

  test('has RLIMIT_DATA of its processes instead, and is told so', async () => {
    const { state, detail } = await life(await intent('limited', take(450 * MiB)))
    expect(state).toMatchObject({ state: 'ended', reason: 'exited' })
    expect(state).not.toMatchObject({ exitCode: 0 })
    expect(detail).toEqual({ limits: 'rlimit' })
    expect(await life(await intent('modest', take(100 * MiB)))).toMatchObject({
      state: { exitCode: 0 },
      detail: { limits: 'rlimit' },
    })
    expect(await ofOurs('limited', 'modest')).toEqual([])
  }, 60_000)
})

describe('cgroups of version 2', () => {
  let kernel: KernelHost
  beforeAll(async () => {
    kernel = await startKernelHost()
  }, 320_000)
  afterAll(async () => {
    await kernel[Symbol.asyncDispose]()
  }, 30_000)

  // All at once, and with little memory: a kernel that is a program takes 33 ms to start a process,
  // and 0.1 s to touch a MiB.
  const greedy = { memoryBytes: 16 * MiB }
  test.each([
    ['its own, which has to be emptied first', 'own', 4721],
    ['one above its own', 'below', 4731],
  ] as const)(
    'given to the account: %s',
    async (_words, port, seconds) => {
      begin(onKernel(kernel, kernel.ports[port]))
      try {
        const over = ends('greedy', 'together', 'processors', 'leaving')
        await submit(
          await intent('greedy', take(40 * MiB), greedy),
          await intent('together', `${take(40 * MiB)}; echo went on; exit 3`, greedy),
          await intent('processors', processors, { cores: 3, memoryBytes: 0 }),
          await intent('leaving', `${stray(seconds)}; sleep 1`),
          await intent('cancelled', `${stray(seconds + 1)}; sleep 300`),
        )
        await over
        const states = await driver.find(['greedy', 'together', 'processors', 'leaving'])
        expect(states.get('greedy')).toMatchObject({ state: 'ended', reason: 'memory' })
        expect(states.get('together')).toMatchObject({ state: 'ended', reason: 'memory', exitCode: 3 })
        expect(states.get('leaving')).toMatchObject({ state: 'ended', reason: 'exited', exitCode: 0 })
        expect((await driver.logs('processors', 'stdout', { tail: 1000 })).bytes.toString()).toBe(
          '300000 100000\n',
        )
        expect(await strays(seconds)).toBe('')
        await until(
          'the stray of the other runs',
          async () => (await strays(seconds + 1)) !== '',
          undefined,
          20_000,
        )
        await driver.cancel(['cancelled'], 1)
        expect(await strays(seconds + 1)).toBe('')
        expect((await driver.find(['cancelled'])).get('cancelled')).toMatchObject({
          state: 'ended',
          reason: 'cancelled',
        })
        expect((await driver.collect('greedy')).detail).toEqual({ limits: 'cgroup' })
        expect(await cgroups()).toEqual([])
      } finally {
        await end()
      }
    },
    240_000,
  )

  test.each(['own', 'below', 'session'] as const)(
    'the runner of tasks of this machine has them by the same rule: %s',
    async (port) => {
      begin(onKernel(kernel, kernel.ports[port]))
      try {
        const folder = `${await driver.root()}/runner`
        // Its file system is this machine's.
        await place.run(`cp ${await runnerProgram()} /tmp/runner && chmod 755 /tmp/runner`)
        await shell.run(`mkdir -p ${folder}/control`)
        const request = (name: string, memoryBytes: number, script: string): Buffer =>
          runnerRequest({
            ...{
              name,
              directory: `${folder}/${name}`,
              workingDirectory: '.',
              timeoutSeconds: 0,
              timeoutGraceSeconds: 1,
              facts: '{}',
            },
            ...{ memoryBytes, argv: ['/bin/sh', '-c', script], environment: {} },
          })
        const input = Buffer.concat([
          request('plain', 0, 'cat /proc/self/cgroup'),
          request('greedy', 16 * MiB, take(40 * MiB)),
          request('modest', 24 * MiB, 'cat /proc/self/cgroup'),
        ])
        await shell.run(`cat > ${folder}/requests`, { input })
        const { stdout } = await shell.run(
          `/tmp/runner ${folder}/control /proc/vmstat ${quote(roomScript)} < ${folder}/requests > /dev/null
cat ${folder}/control/*.task ${folder}/control/*.out`,
          { deadlineMs: 120_000 },
        )
        const text = stdout.toString()
        expect(text.match(/^\w+ limits \w+$/gm)).toEqual(
          expect.arrayContaining(['greedy limits cgroup', 'modest limits cgroup']),
        )
        expect(text).toMatch(/^greedy exit \S+ 137 0 memory /m)
        expect(text).toMatch(/^modest exit \S+ 0 0 exited /m)
        expect(text).toMatch(/0::\S*\/orrery\.runner-\d+-\d+-\d+$/m)
        expect(
          await place.run("find /sys/fs/cgroup -ignore_readdir_race -type d -name 'orrery.runner*'"),
        ).toBe('')
      } finally {
        await end()
      }
    },
    240_000,
  )

  test("a login's systemd gives a lingering account cgroups for its tasks, and they outlive the login, where it ends what else is left", async () => {
    const at = onKernel(kernel, kernel.ports.session)
    begin(at, 'lingering')
    await submit(
      await intent('greedy', take(40 * MiB), greedy),
      await intent('processors', processors, { cores: 3, memoryBytes: 0 }),
      await intent('leaving', `${stray(4741)}; until [ -e /tmp/over ]; do sleep 0.2; done; echo done`),
    )
    await driver.close()
    await sessions.close()
    await kernel.run('while loginctl list-sessions --no-legend | grep -qw ada; do sleep 0.3; done')
    begin(at, 'lingering')
    try {
      expect(await strays(4741)).not.toBe('')
      const over = ends('greedy', 'processors', 'leaving')
      await kernel.run('touch /tmp/over')
      await over
      const states = await driver.find(['greedy', 'leaving'])
      expect(states.get('greedy')).toMatchObject({ state: 'ended', reason: 'memory' })
      expect(states.get('leaving')).toMatchObject({ state: 'ended', reason: 'exited', exitCode: 0 })
      expect((await driver.logs('processors', 'stdout', { tail: 1000 })).bytes.toString()).toBe(
        '300000 100000\n',
      )
      expect((await driver.logs('leaving', 'stdout', { tail: 1000 })).bytes.toString()).toBe('done\n')
      expect((await driver.collect('leaving')).detail).toEqual({ limits: 'cgroup' })
      expect(await strays(4741)).toBe('')
      expect(await cgroups()).toEqual([])
    } finally {
      await end()
    }
  }, 240_000)

  test('one that does not linger gets none, and RLIMIT_DATA holds', async () => {
    await kernel.run('mv /var/lib/systemd/linger/ada /tmp/ada')
    begin(onKernel(kernel, kernel.ports.session))
    try {
      expect(await life(await intent('limited', 'true'))).toMatchObject({
        state: { exitCode: 0 },
        detail: { limits: 'rlimit' },
      })
    } finally {
      await end()
      await kernel.run('mv /tmp/ada /var/lib/systemd/linger/ada')
    }
  }, 120_000)
})
