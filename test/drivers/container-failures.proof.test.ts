import { expect } from '@jest/globals'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { ContainerDriver } from '../../src/drivers/runtime/container/driver.ts'
import type { Collected, ContainerRequest, Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { loadSystemImage, openDockerEngine, startLoopbackRegistry } from '../../sites/docker.ts'
import { run as runProgram, until } from '../../sites/ground.ts'
import { bareArchive } from '../../sites/image-files.ts'
import { openContainerSite } from './container-site.ts'
import { programsWithout } from './in-containers.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'
import { runFolder } from '../support/run-folder.ts'
import { plainIntent, taskName } from './intent.ts'

const { afterAll, afterEach, beforeAll, beforeEach, describe, test } = needs(...sites.docker)

/** One engine and one registry for all tests of this file. */
let ground: string
let engine: Awaited<ReturnType<typeof openDockerEngine>>
let image: string
let registry: Awaited<ReturnType<typeof startLoopbackRegistry>>
beforeAll(async () => {
  ground = mkdtempSync(join(runFolder(), 'orrery-failures-'))
  engine = await openDockerEngine({ data: '/var/cache/orrery/test-tasks', kind: 'tasks' })
  image = await loadSystemImage(engine)
  registry = await startLoopbackRegistry(join(ground, 'registry'))
}, 300_000)
afterAll(async () => {
  await registry.stop()
  await engine[Symbol.asyncDispose]()
  rmSync(ground, { recursive: true, force: true })
}, 120_000)

const seconds = 120_000
let scratch: string
let site: ReturnType<typeof openContainerSite>
let driver: ContainerDriver
let count = 0

interface Place {
  idleSeconds?: number
  /** Folders for its PATH: what calls the engine, and the machine's programs. */
  commands?: string
  programs?: string
}

/** One root for all sites of a kind, so that an image is looked at once. */
const open = (
  kind: 'local' | 'ssh',
  { idleSeconds = 60, commands = engine.commands, programs = '/usr/sbin:/usr/bin' }: Place = {},
): void => {
  scratch = mkdtempSync(join(ground, 'site-'))
  site = openContainerSite({
    kind,
    root: join(ground, kind),
    environment: { PATH: `${commands}:${programs}` },
    container: { image, network: false, reuse: false, scope: 'failures' },
    containers: { idleSeconds },
  })
  driver = site.plain
}
beforeEach(() => open('local'))
afterEach(async () => {
  await driver.close()
  await site.shell.close()
  rmSync(scratch, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
})

const intent = (
  script: string,
  more: Partial<Intent> = {},
  container: Partial<ContainerRequest> = {},
): Intent => {
  const name = taskName(++count)
  return {
    ...plainIntent(name, join(scratch, 'work/run', name, '1'), ['/bin/sh', '-c', script]),
    timeoutSeconds: 90,
    ...more,
    container: { engine: 'docker', image, network: false, reuse: false, scope: 'failures', ...container },
  }
}
const ended = (names: readonly string[]): Promise<void> => {
  const waiting = new Set(names)
  return new Promise((resolve) => {
    driver.watch(names, (name) => {
      waiting.delete(name)
      if (waiting.size === 0) resolve()
    })
  })
}
const submit = async (...intents: Intent[]): Promise<void> => {
  for (const outcome of await driver.submit(intents)) if (!outcome.ok) throw outcome.error
}
const run = async (what: Intent): Promise<Collected> => {
  await submit(what)
  await ended([what.name])
  return driver.collect(what.name)
}
const text = async (name: string, stream: 'stdout' | 'stderr' = 'stdout'): Promise<string> =>
  (await driver.logs(name, stream, { tail: 100_000 })).bytes.toString()
const started = (what: Intent): Promise<void> =>
  until(
    `${what.name} runs`,
    () => Promise.resolve(existsSync(join(what.directory, 'ready'))),
    () => '',
    60_000,
  )

describe('what a task in a container can see and do', () => {
  test(
    'its work directory, and nothing else of the host; no network, no capability, no socket, a root that is read only',
    async () => {
      const secret = join(scratch, 'secret')
      writeFileSync(secret, 'secret')
      const task = intent(
        `[ ! -e ${secret} ] && echo hidden
         [ ! -e /var/run/docker.sock ] && [ ! -e /run/docker.sock ] && echo 'no socket'
         echo > /new 2> /dev/null || echo 'read only'
         echo made > made; echo > /tmp/own && echo 'tmp'
         ls /sys/class/net
         id -u; id -g
         grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status
         [ "$(ls /proc | grep -c '^[0-9]')" -lt 20 ] && echo 'own processes'`,
      )
      const { manifest, detail } = await run(task)
      const said = (await text(task.name)).trim().split('\n')
      expect(said).toEqual([
        ...[
          'hidden',
          'no socket',
          'read only',
          'tmp',
          'lo',
          String(process.getuid?.()),
          String(process.getgid?.()),
        ],
        ...['CapBnd:\t0000000000000000', 'NoNewPrivs:\t1', 'own processes'].flatMap((line, i) =>
          i === 0 ? ['CapEff:\t0000000000000000', line] : [line],
        ),
      ])
      expect(manifest.files.map(({ path }) => path)).toEqual(['made'])
      expect(statSync(join(task.directory, 'made')).uid).toBe(process.getuid?.())
      expect(detail).toMatchObject({
        engine: 'docker',
        image,
        imageDigest: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
        pullSeconds: 0,
        containerReused: false,
      })
    },
    seconds,
  )

  test(
    'the memory and processors that its plan gives; more memory ends it for that reason, a full disk of its own says so',
    async () => {
      const memoryBytes = 64 * 1024 * 1024
      const limits = intent(
        'cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2> ' +
          '/dev/null || cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max',
        { memoryBytes, cores: 0.5 },
      )
      // A small program: of a large one the kernel gives pages back and reads them again, 2 to 90 s
      // long, before it ends anything.
      const hungry = intent('exec tail /dev/zero', { memoryBytes })
      const full = intent('dd if=/dev/zero of=/tmp/big bs=1M count=100', { memoryBytes })
      const [first, second, third] = [await run(limits), await run(hungry), await run(full)]
      expect(first.state).toMatchObject({ exitCode: 0 })
      expect(await text(limits.name)).toMatch(new RegExp(`^${memoryBytes}\\n50000`))
      expect(second.state).toMatchObject({ state: 'ended', signal: 'SIGKILL', reason: 'memory' })
      expect(third.state).toMatchObject({ state: 'ended', exitCode: 1, reason: 'exited' })
      expect(third.stderrTail).toContain('No space left on device')
    },
    seconds,
  )

  test('an image that is no name of one, an engine that there is not, a scope with other letters are refused before anything is made', async () => {
    const bait = join(scratch, 'bait')
    const bad: [Partial<ContainerRequest>, string][] = [
      ...[
        '--privileged',
        `x; touch ${bait}`,
        `$(touch ${bait})`,
        '',
        'a\nb',
        'a b',
        `\`touch ${bait}\``,
        'x@sha256:12',
      ].map((name): [Partial<ContainerRequest>, string] => [{ image: name }, 'image']),
      [{ image: '/some/file.sif' }, 'containerRuntime'],
      [{ engine: 'rkt' }, 'engine'],
      [{ scope: '../x' }, 'scope'],
    ]
    const intents = bad.map(([container]) => intent('true', {}, container))
    const outcomes = await driver.submit(intents)
    for (const [i, outcome] of outcomes.entries())
      expect(outcome).toMatchObject({
        ok: false,
        error: { trouble: 'refused', message: expect.stringContaining(bad[i]?.[1] ?? '') },
      })
    expect(existsSync(bait)).toBe(false)
    expect(existsSync(join(scratch, 'work'))).toBe(false)
  })
})

describe('images', () => {
  const push = async (name: string): Promise<string> => {
    const remote = `${registry.address}/${name}`
    // Its own content, so that its digest is its own.
    await engine.docker(
      'import',
      '--change',
      'ENV PATH=/bin',
      '--change',
      `LABEL name=${name}`,
      await archive(),
      remote,
    )
    await engine.docker('push', remote)
    const digests = await engine.docker('image', 'inspect', '--format', '{{join .RepoDigests " "}}', remote)
    await engine.docker('rmi', '--force', remote)
    return digests.split('@')[1] ?? ''
  }
  let archiveFile: string | undefined
  /** A small image: busybox alone. */
  const archive = async (): Promise<string> => {
    if (archiveFile !== undefined) return archiveFile
    archiveFile = join(ground, 'busybox.tar')
    await runProgram('/bin/sh', [
      '-c',
      'mkdir -p "$1/bin" && cp /bin/busybox "$1/bin/" && for each in sh env true cat sleep; do ln ' +
        '-sf busybox "$1/bin/$each"; done && tar -C "$1" -cf "$2" .',
      'sh',
      join(ground, 'busybox'),
      archiveFile,
    ])
    return archiveFile
  }

  test(
    'one is pulled once a host, whoever needs it, by the digest asked for; another digest is refused with both',
    async () => {
      const digest = await push('app/tool:1')
      const name = `${registry.address}/app/tool:1@${digest}`
      const tasks = Array.from({ length: 6 }, () => intent('exit 0', {}, { image: name }))
      await submit(...tasks)
      await ended(tasks.map((task) => task.name))
      const details = await Promise.all(tasks.map((task) => driver.collect(task.name)))
      for (const { state, detail } of details) {
        expect(state).toMatchObject({ state: 'ended', exitCode: 0 })
        expect(detail).toMatchObject({ imageDigest: digest, image: name })
      }
      expect(details.filter(({ detail }) => (detail?.pullSeconds ?? 0) > 0)).toHaveLength(1)
      const other = `sha256:${'0'.repeat(64)}`
      const wrong = intent('exit 0', {}, { image: `${registry.address}/app/tool:1@${other}` })
      await submit(wrong)
      await ended([wrong.name])
      const refusal = await driver.collect(wrong.name).catch((error: unknown) => error)
      expect(refusal).toMatchObject({ trouble: 'refused', message: expect.stringContaining(other) })
      expect(refusal).toMatchObject({ message: expect.stringContaining(digest) })
    },
    seconds,
  )

  test(
    'one that must be in place is refused while the engine lacks it or has other bytes, and nothing is pulled',
    async () => {
      const name = `${registry.address}/app/placed:1`
      const digest = await push('app/placed:1')
      const placed = (of: string): Intent => intent('exit 0', {}, { image: `${name}@${of}`, inPlace: true })
      const refusalOf = async (of: string): Promise<unknown> =>
        run(placed(of)).catch((error: unknown) => error)
      expect(await refusalOf(digest)).toMatchObject({
        trouble: 'refused',
        message: expect.stringMatching(/does not have .*app\/placed:1.*use-in-place brings nothing; load it/),
      })
      expect(await engine.docker('images', '--quiet', name)).toBe('')
      await engine.docker('pull', name)
      expect((await run(placed(digest))).state).toMatchObject({ state: 'ended', exitCode: 0 })
      expect(await refusalOf(`sha256:${'0'.repeat(64)}`)).toMatchObject({
        trouble: 'refused',
        message: expect.stringMatching(new RegExp(`asked for sha256:0+, but .* is ${digest}`)),
      })
    },
    seconds,
  )

  test(
    'one that does not exist is refused; a registry that is away is a failure of the site, and the next attempt finds it back',
    async () => {
      const absent = intent('exit 0', {}, { image: `${registry.address}/no/such:1` })
      await submit(absent)
      await ended([absent.name])
      await expect(driver.collect(absent.name)).rejects.toMatchObject({
        trouble: 'refused',
        message: expect.stringContaining('no/such:1'),
      })
      await push('app/away:1')
      await registry.stop()
      const image = `${registry.address}/app/away:1`
      const early = intent('exit 0', {}, { image })
      await submit(early)
      await ended([early.name])
      expect((await driver.find([early.name])).get(early.name)).toMatchObject({
        state: 'lost',
        cause: expect.stringContaining('connection refused'),
      })
      expect((await driver.collect(early.name)).state).toMatchObject({ state: 'lost' })
      await registry.start()
      expect((await run(intent('exit 0', {}, { image }))).state).toMatchObject({ exitCode: 0 })
    },
    seconds,
  )

  test(
    'a task has the environment of its image, and finds its programs there',
    async () => {
      await archive()
      const root = join(ground, 'busybox')
      mkdirSync(join(root, 'opt/tool/bin'), { recursive: true })
      writeFileSync(join(root, 'opt/tool/bin/tool'), '#!/bin/sh\nenv\n', { mode: 0o755 })
      const file = join(ground, 'tool.tar')
      await runProgram('tar', ['-C', root, '-cf', file, '.'])
      const given = ['PATH=/opt/tool/bin:/bin', 'MARK=1', 'LD_LIBRARY_PATH=/opt/tool/lib', 'BOTH=image']
      const changes = given.flatMap((each) => ['--change', `ENV ${each}`])
      await engine.docker('import', ...changes, file, 'local/tool:1')
      const task = intent('', { argv: ['tool'], environment: { BOTH: 'task' } }, { image: 'local/tool:1' })
      expect((await run(task)).state).toMatchObject({ exitCode: 0 })
      const seen = (await text(task.name)).trim().split('\n')
      expect(seen).toEqual(expect.arrayContaining([...given.slice(0, 3), 'BOTH=task', 'LANG=C.UTF-8']))
      expect(seen.filter((line) => line.startsWith('HOSTNAME='))).toEqual([])
    },
    seconds,
  )

  test(
    'one without shell and env runs its programs with what the host lends',
    async () => {
      await engine.docker('load', '--quiet', '--input', await bareArchive(ground))
      const task = intent(
        '',
        {
          argv: ['/app/busybox', 'sh', '-c', 'echo "$GREETING"; exit 3'],
          environment: { GREETING: "it's $HOME" },
        },
        { image: 'local/bare:1' },
      )
      expect((await run(task)).state).toMatchObject({ exitCode: 3 })
      expect(await text(task.name)).toBe("it's $HOME\n")
    },
    seconds,
  )

  test.each([
    ['no busybox', undefined],
    ['a busybox that needs libraries', '/usr/bin/true'],
  ])(
    'one without shell and env is refused, with the remedy, where the host has %s to lend; nothing is started',
    async (_, busybox) => {
      await engine.docker('load', '--quiet', '--input', await bareArchive(ground))
      await driver.close()
      const programs = programsWithout('busybox', mkdtempSync(join(ground, 'programs-')) + '/bin')
      if (busybox !== undefined) copyFileSync(busybox, join(programs, 'busybox'))
      open('local', { programs })
      const task = intent(
        '',
        { argv: ['/app/busybox', 'touch', 'made'] },
        { image: 'local/bare:1', scope: 'lent' },
      )
      await submit(task)
      await ended([task.name])
      await expect(driver.collect(task.name)).rejects.toMatchObject({
        trouble: 'refused',
        message: expect.stringMatching(
          /^local\/bare:1 has no \/bin\/sh and env, and .* has no static busybox to lend it; install busybox-static/,
        ),
      })
      expect(existsSync(join(task.directory, 'made'))).toBe(false)
      expect(await engine.containers()).toEqual([])
    },
    seconds,
  )
})

test(
  'GPUs of an engine without NVIDIA’s hook are refused, with the remedy; no container is left',
  async () => {
    const task = intent(': > made', { gpus: 2 })
    await submit(task)
    await ended([task.name])
    await expect(driver.collect(task.name)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringMatching(
        /could not select device driver.*needs GPU 0,1 of .*install NVIDIA's driver and container toolkit/,
      ),
    })
    expect(existsSync(join(task.directory, 'made'))).toBe(false)
    expect(await engine.containers()).toEqual([])
  },
  seconds,
)

test(
  'a disk that is full where the records of containers are is a failure of the site',
  async () => {
    const records = join(ground, 'local/containers/records')
    await run(intent('exit 0'))
    await runProgram('mount', ['-t', 'tmpfs', '-o', 'size=4k', 'tmpfs', records])
    try {
      writeFileSync(join(records, 'large'), 'x'.repeat(4096))
      expect((await run(intent('exit 0'))).state).toMatchObject({
        state: 'lost',
        cause: expect.stringContaining('disk'),
      })
    } finally {
      await runProgram('umount', [records])
    }
  },
  seconds,
)

describe('failures of the engine', () => {
  test(
    'killed while containers run: they go on to their end, and nothing of their output is lost',
    async () => {
      const task = intent('echo one; : > ready; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 4')
      await submit(task)
      await started(task)
      await engine.kill()
      writeFileSync(join(task.directory, 'go'), '')
      await ended([task.name])
      await engine.start()
      expect((await driver.collect(task.name)).state).toMatchObject({ state: 'ended', exitCode: 4 })
      expect(await text(task.name)).toBe('one\ntwo\n')
      expect((await run(intent('exit 0'))).state).toMatchObject({ exitCode: 0 })
    },
    seconds,
  )

  test(
    'restarted so that it stops its containers: their tasks are lost by a failure of the site, not failed by their own',
    async () => {
      const task = intent(': > ready; sleep 60')
      await submit(task)
      await started(task)
      const end = ended([task.name])
      await engine.stop()
      await end
      await engine.start()
      expect((await driver.collect(task.name)).state).toMatchObject({
        state: 'lost',
        cause: expect.stringMatching(/told the container to stop|ended from outside/),
      })
    },
    seconds,
  )

  test(
    'restarted so that it lets its containers live: tasks go on, also to their end while it is away',
    async () => {
      await engine.stop()
      await engine.start({ liveRestore: true })
      const tasks = [{}, { reuse: true }, {}].map((container) =>
        // Looked at anew, as the engine is another now.
        intent(
          'echo one; : > ready; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 4',
          {},
          { ...container, scope: 'live' },
        ),
      )
      const [first, ...others] = tasks
      await submit(...tasks)
      await Promise.all(tasks.map(started))
      await engine.stop()
      writeFileSync(join(first!.directory, 'go'), '')
      await ended([first!.name])
      await engine.start({ liveRestore: true })
      for (const task of others) writeFileSync(join(task.directory, 'go'), '')
      await ended(others.map(({ name }) => name))
      for (const { name } of tasks) {
        expect((await driver.collect(name)).state).toEqual(
          expect.objectContaining({ state: 'ended', exitCode: 4, reason: 'exited' }),
        )
        expect(await text(name)).toBe('one\ntwo\n')
      }
      // Nobody could remove the one that ended while the engine was away.
      expect((await engine.containers()).filter((name) => name !== first!.name)).toEqual([])
      await engine.docker('rm', first!.name)
      await engine.stop()
      await engine.start()
    },
    seconds,
  )

  test(
    'away when a task comes: a failure of the site, in words',
    async () => {
      await engine.stop()
      const task = intent('exit 0', {}, { scope: 'away' })
      await submit(task)
      await ended([task.name])
      await engine.start()
      expect((await driver.collect(task.name)).state).toMatchObject({
        state: 'lost',
        cause: expect.stringContaining('docker'),
      })
    },
    seconds,
  )

  test(
    'no container outlives its launcher, also when that is killed by force',
    async () => {
      open('ssh')
      const task = intent(': > ready; (trap "" TERM HUP; env -i PATH=/bin sleep 300) & sleep 300')
      await submit(task)
      await started(task)
      const launchers = readdirSync('/proc').filter((pid) => {
        try {
          return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').includes(task.name)
        } catch {
          return false
        }
      })
      expect(launchers).not.toEqual([])
      for (const pid of launchers) {
        try {
          process.kill(Number(pid), 'SIGKILL')
        } catch {
          // What the launcher had started to help it has ended meanwhile.
        }
      }
      await until(
        'the container is gone',
        async () => !(await engine.containers()).includes(task.name),
        () => '',
        60_000,
      )
      await ended([task.name])
    },
    seconds,
  )
})

describe('a container that is kept', () => {
  afterEach(() => driver.closeScope('failures'))

  const kept: Partial<ContainerRequest> = { reuse: true }

  test.each(['local', 'ssh'] as const)(
    '%s: runs the tasks of its run one after the other, each alone, and says so; it ends with the run',
    async (kind) => {
      open(kind)
      const first = intent(
        'echo $$; echo > /tmp/left; (sleep 100 &) ; (setsid sleep 100 &); echo "$TMPDIR"',
        {},
        kept,
      )
      const before = await run(first)
      expect(before.detail).toMatchObject({ containerReused: false })
      const second = intent(
        'ls /proc | grep -c "^[0-9]"; ls "$TMPDIR"; echo "$GREETING"; exit 3',
        { environment: { GREETING: '$HOME `id`' } },
        kept,
      )
      const after = await run(second)
      expect(after.detail).toMatchObject({ containerReused: true })
      expect(after.state).toMatchObject({ exitCode: 3 })
      const [processes, ...rest] = (await text(second.name)).split('\n')
      // The container's shell, who listens for the task's end, the task and what it started to
      // count.
      expect(Number(processes)).toBeLessThanOrEqual(6)
      expect(rest).toEqual(['$HOME `id`', ''])
      expect(await engine.containers()).toHaveLength(1)
      await driver.closeScope('failures')
      await until(
        'the container is gone',
        async () => (await engine.containers()).length === 0,
        () => '',
        30_000,
      )
    },
    seconds,
  )

  test(
    'four tasks at once have one each; a cancelled one ends alone; a second wave takes no more',
    async () => {
      const wave = (): Intent[] =>
        Array.from({ length: 4 }, (_, i) =>
          intent(`: > ready; ${i === 0 ? 'sleep 100' : 'while [ ! -e go ]; do sleep 0.05; done'}`, {}, kept),
        )
      for (const tasks of [wave(), wave()]) {
        await submit(...tasks)
        await Promise.all(tasks.map(started))
        await driver.cancel([tasks[0]!.name], 10)
        for (const task of tasks) writeFileSync(join(task.directory, 'go'), '')
        await ended(tasks.map((task) => task.name))
        const states = await driver.find(tasks.map((task) => task.name))
        expect(tasks.map(({ name }) => states.get(name))).toMatchObject([
          { reason: 'cancelled', signal: 'SIGTERM' },
          ...Array.from({ length: 3 }, () => ({ exitCode: 0, reason: 'exited' })),
        ])
        expect(await engine.containers()).toHaveLength(4)
      }
    },
    seconds,
  )

  test(
    'is taken away: its task is lost by a failure of the site, the next one gets another',
    async () => {
      const task = intent(': > ready; sleep 100', {}, kept)
      await submit(task)
      await started(task)
      const end = ended([task.name])
      await engine.docker('rm', '--force', ...(await engine.containers()))
      await end
      expect((await driver.collect(task.name)).state).toMatchObject({ state: 'lost' })
      expect((await run(intent('exit 0', {}, kept))).state).toMatchObject({ exitCode: 0 })
    },
    seconds,
  )

  test(
    'is so slow that its task is given to another: it does not start it too when it wakes',
    async () => {
      await driver.close()
      const [commands, asleep] = [join(ground, 'late'), join(ground, 'asleep')]
      mkdirSync(commands)
      // Wakes it when it is to be taken away, and leaves it a moment.
      writeFileSync(
        join(commands, 'docker'),
        `#!/bin/sh\n[ "$1" != rm ] || { kill -CONT "$(cat ${asleep})"; sleep 0.3; }\nexec ` +
          `${engine.commands}/docker "$@"\n`,
        { mode: 0o755 },
      )
      open('local', { commands })
      await run(intent('exit 0', {}, kept))
      const pid = await engine.docker('inspect', '--format', '{{.State.Pid}}', ...(await engine.containers()))
      writeFileSync(asleep, pid)
      process.kill(Number(pid), 'SIGSTOP')
      const task = intent('echo started >> ledger; sleep 1', { timeoutSeconds: 30 }, kept)
      expect(await run(task)).toMatchObject({
        state: { exitCode: 0, reason: 'exited' },
        detail: { containerReused: false },
      })
      expect(readFileSync(join(task.directory, 'ledger'), 'utf8')).toBe('started\n')
    },
    seconds,
  )

  test(
    'ends by itself when nobody needs it',
    async () => {
      await driver.close()
      open('local', { idleSeconds: 1 })
      await run(intent('exit 0', {}, kept))
      await until(
        'the container is gone',
        async () => (await engine.containers()).length === 0,
        () => '',
        30_000,
      )
      await sleep(100)
      expect((await run(intent('exit 0', {}, kept))).detail).toMatchObject({ containerReused: false })
    },
    seconds,
  )
})
