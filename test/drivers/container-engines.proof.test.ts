import { expect } from '@jest/globals'
import {
  copyFileSync,
  createReadStream,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { archiveImageId } from '../../src/drivers/build/archive.ts'
import { withContainers, type ContainerDriver } from '../../src/drivers/runtime/container/driver.ts'
import type {
  Collected,
  ContainerRequest,
  Intent,
  RuntimeDriver,
} from '../../src/drivers/runtime/contract/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { openSshDriver } from '../../src/drivers/runtime/remote/ssh.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { allowApptainer, haveApptainer } from '../../sites/apptainer.ts'
import { startLoopbackRegistry } from '../../sites/docker.ts'
import { until } from '../../sites/ground.ts'
import { bareArchive, systemSif } from '../../sites/image-files.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { gpuSpecification, startPodman, type Podman } from '../../sites/podman.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { runFolder } from '../support/run-folder.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'
import { openContainerSite } from './container-site.ts'
import { manyCases, tortureConformance } from './torture.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.slurm, ...sites.podman, 'debootstrap')

/**
 * The engines besides Docker, over a shell and inside Slurm's jobs: what a task in them does and
 * what is told of it.
 */

const sh = (script: string, ...args: string[]): string[] => ['/bin/sh', '-c', script, 'sh', ...args]
const usual = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

let podman: Podman
let slurm: SlurmSite
let sif: string
let count = 0
const closing: (() => Promise<void>)[] = []
const folder = mkdtempSync(join(runFolder(), 'orrery-engines-'))
const gpuFile = '/run/cdi/orrery-test.json'

beforeAll(async () => {
  await haveApptainer()
  ;[podman, slurm, sif] = await Promise.all([startPodman(), startSlurm({ nodes: 1 }), systemSif()])
  mkdirSync('/run/cdi', { recursive: true })
  writeFileSync(gpuFile, gpuSpecification(2))
  // The node of the cluster has two too.
  const [node] = slurm.nodes
  await node?.run('mkdir -p /run/cdi && cat > /run/cdi/orrery-test.json', 'root', {
    input: gpuSpecification(2),
  })
  if (node !== undefined) await allowApptainer(node, 2)
}, 900_000)
afterAll(async () => {
  for (const close of closing) await close()
  await Promise.all([podman?.stop(), slurm?.stop()])
  rmSync(gpuFile, { force: true })
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

const requestOf = (engine: string): ContainerRequest => ({
  ...{ engine, network: false, reuse: false, scope: 'engines' },
  image: engine === 'podman' ? podman.image : sif,
})

const openSite = (kind: 'ssh' | 'slurm'): { driver: ContainerDriver; root: string } => {
  const root = mkdtempSync(join(kind === 'slurm' ? slurm.scratch : folder, 'root-'))
  const shell = openLocalShell({
    environment: {
      PATH: `${podman.commands}:${kind === 'slurm' ? `${slurm.commands}:` : ''}${usual}`,
      HOME: root,
      SLURM_CONF: slurm.conf,
    },
  })
  const remote = { shell, root, runtime: kind, taskVariable: 'ORRERY_TASK', pollMilliseconds: 500 }
  const own =
    kind === 'ssh'
      ? openSshDriver(remote)
      : openSlurmDriver({ ...remote, configuration: { settleSeconds: 3 } })
  const site = {
    shell,
    root: () => Promise.resolve(root),
    engine: 'auto' as const,
    taskVariable: 'ORRERY_TASK',
  }
  const driver = withContainers(own, { ...site, endsDescendants: kind === 'slurm' })
  closing.push(async () => {
    await driver.close()
    await shell.close()
  })
  return { driver, root }
}

const opened = new Map<string, ReturnType<typeof openSite>>()
/** One site of a kind for many tests, so that an image is looked at once. */
const siteOf = (kind: 'ssh' | 'slurm'): ReturnType<typeof openSite> => {
  const site = opened.get(kind) ?? openSite(kind)
  opened.set(kind, site)
  return site
}

const intentAt = (
  root: string,
  container: ContainerRequest,
  argv: string[],
  more: Partial<Intent> = {},
): Intent => {
  const name = `engine-${String(++count)}`
  return {
    ...{
      name,
      argv,
      container,
      environment: {},
      stage: [],
      expectedOutputs: [],
      cores: 1,
      memoryBytes: 256 * 1024 ** 2,
      timeoutSeconds: 60,
    },
    directory: join(root, 'work', name, '1'),
    ...more,
  }
}
const ended = (driver: RuntimeDriver, name: string): Promise<void> =>
  new Promise((resolve) => {
    driver.watch([name], () => resolve())
  })
const run = async (driver: RuntimeDriver, intent: Intent): Promise<Collected> => {
  const [outcome] = await driver.submit([intent])
  if (outcome?.ok !== true) throw outcome?.error ?? new Error('no outcome')
  await ended(driver, intent.name)
  return driver.collect(intent.name)
}

/** Waits until a task has made `up`. */
const up = ({ name, directory }: Intent): Promise<void> =>
  until(`${name} runs`, () => Promise.resolve(existsSync(join(directory, 'up'))))
const text = async (driver: RuntimeDriver, { name }: Intent): Promise<string> =>
  (await driver.logs(name, 'stdout', { tail: 10_000 })).bytes.toString()

describe.each([
  ['podman', 'ssh'],
  ['apptainer', 'ssh'],
  ['apptainer', 'slurm'],
] as const)('%s at a site of kind %s', (engine, kind) => {
  test('runs the task in its image, with its files, its exit code and what the place cost', async () => {
    const { driver, root } = siteOf(kind)
    const task = intentAt(root, requestOf(engine), sh('cat /etc/passwd; echo "$GREETING" > made; exit 3'), {
      environment: { GREETING: "it's $HOME" },
      expectedOutputs: ['made'],
    })
    const collected = await run(driver, task)
    expect(collected.state).toMatchObject({ state: 'ended', exitCode: 3, reason: 'exited' })
    // The image's own, not this machine's.
    expect(await text(driver, task)).toMatch(/^root:x:0:0:root:\/root:\/bin\/sh\n/)
    expect(readFileSync(join(task.directory, 'made'), 'utf8')).toBe("it's $HOME\n")
    expect(collected.manifest.files.map(({ path }) => path)).toEqual(['made'])
    expect(collected.detail).toMatchObject({
      engine,
      image: requestOf(engine).image,
      coldStartSeconds: expect.any(Number),
    })
  }, 120_000)

  test('shows it nothing of the machine but its work directory, and no way to write elsewhere', async () => {
    const { driver, root } = siteOf(kind)
    const secret = join(root, 'secret')
    writeFileSync(secret, 'secret')
    const task = intentAt(
      root,
      requestOf(engine),
      sh(
        'cat "$1" 2>/dev/null && exit 1; echo x > /usr/bin/x 2>/dev/null && exit 2; echo x > /tmp/x',
        secret,
      ),
    )
    expect((await run(driver, task)).state).toMatchObject({ exitCode: 0 })
  }, 120_000)

  test('ends it when it is cancelled', async () => {
    const { driver, root } = siteOf(kind)
    const task = intentAt(root, requestOf(engine), sh(': > up; exec sleep 300'))
    await driver.submit([task])
    await up(task)
    await driver.cancel([task.name], 1)
    expect((await driver.find([task.name])).get(task.name)).toMatchObject({
      state: 'ended',
      reason: 'cancelled',
    })
  }, 150_000)
})

test('podman loads an archive that was brought, once, by the id of its image; another image is refused', async () => {
  const { driver, root } = siteOf('ssh')
  const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
  const id = await archiveImageId(createReadStream(busybox) as AsyncIterable<Buffer>)
  const archive = join(root, `it's "an" image.tar`)
  copyFileSync(busybox, archive)
  const outcomeOf = (wanted: string): Promise<unknown> =>
    run(
      driver,
      intentAt(root, { ...requestOf('podman'), image: `archive:${archive}@${wanted}` }, sh('exit 3')),
    ).catch((error: unknown) => error)
  const exited = { state: { state: 'ended', exitCode: 3 } }
  expect(await outcomeOf(id)).toMatchObject(exited)
  rmSync(archive)
  expect(await outcomeOf(id)).toMatchObject(exited)
  expect(await podman.podman('images', '--format', '{{.Repository}}')).toMatch(/orrery-artifact$/m)
  copyFileSync(busybox, archive)
  expect(await outcomeOf(`sha256:${'0'.repeat(64)}`)).toMatchObject({
    message: expect.stringMatching(/differs: asked for/),
  })
}, 240_000)

test('apptainer brings an image from a registry once a host, by the digest asked for; what cannot be is refused, a registry that is away is waited for', async () => {
  const registry = await startLoopbackRegistry(join(folder, 'registry'))
  closing.push(() => registry.stop())
  const { driver, root } = siteOf('ssh')
  const images = await kubernetesImages(configFromEnvironment().cacheDir)
  const digest = await registry.push(images.busybox, 'app/tool:1')
  const bare = `docker://${registry.address}/app/bare:1`
  await registry.push(await bareArchive(folder), 'app/bare:1')
  const taskIn = (image: string, argv: string[]): Intent =>
    intentAt(root, { ...requestOf('apptainer'), image }, argv)
  const outcomeIn = (image: string): Promise<unknown> =>
    run(driver, taskIn(image, sh('exit 0'))).catch((error: unknown) => error)

  const pinned = `docker://${registry.address}/app/tool:1@${digest}`
  const tasks = Array.from({ length: 3 }, () => taskIn(pinned, sh('cat /etc/passwd; exit 3')))
  for (const outcome of await driver.submit(tasks)) expect(outcome).toMatchObject({ ok: true })
  const details = []
  for (const { name } of tasks) {
    await ended(driver, name)
    const { state, detail } = await driver.collect(name)
    expect([state, detail]).toMatchObject([
      { state: 'ended', exitCode: 3 },
      { engine: 'apptainer', image: pinned, imageDigest: digest },
    ])
    expect((await driver.logs(name, 'stdout', { tail: 10_000 })).bytes.toString()).toMatch(/^root:x:0:0:/)
    details.push(detail)
  }
  expect(details.filter((detail) => (detail?.pullSeconds ?? 0) > 0)).toHaveLength(1)

  // Neither a shell nor env: the host lends its own.
  const lent = taskIn(bare, ['/app/busybox', 'echo', 'lent'])
  expect((await run(driver, lent)).state).toMatchObject({ exitCode: 0 })
  expect((await driver.logs(lent.name, 'stdout', { tail: 100 })).bytes.toString()).toBe('lent\n')

  const other = `docker://${registry.address}/app/tool:1@sha256:${'0'.repeat(64)}`
  for (const image of [`docker://${registry.address}/no/such:1`, other])
    expect(await outcomeIn(image)).toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining(image),
    })

  await registry.push(images.busybox, 'app/away:1')
  const away = `docker://${registry.address}/app/away:1`
  await registry.stop()
  expect(await outcomeIn(away)).toMatchObject({
    state: { state: 'lost', cause: expect.stringContaining('connection refused') },
  })
  await registry.start()
  expect(await outcomeIn(away)).toMatchObject({ state: { state: 'ended', exitCode: 0 } })
}, 180_000)

describe('GPUs', () => {
  test('podman gives a task as many as it asks for, and none without asking; more than there are is refused with the remedy', async () => {
    const { driver, root } = siteOf('ssh')
    const seen = async (gpus: number): Promise<string> => {
      const task = intentAt(root, requestOf('podman'), sh('ls /dev | grep nvidia; true'), { gpus })
      await run(driver, task)
      return text(driver, task)
    }
    expect([await seen(0), await seen(1), await seen(2)]).toEqual(['', 'nvidia0\n', 'nvidia0\nnvidia1\n'])
    await expect(
      run(driver, intentAt(root, requestOf('podman'), sh('exit 0'), { gpus: 3 })),
    ).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringMatching(
        /nvidia\.com\/gpu=2.*needs GPU 0,1,2 of .*nvidia-ctk cdi generate.*ask for fewer GPUs/,
      ),
    })
    expect(await podman.podman('ps', '--all', '--quiet')).toBe('')
  }, 120_000)

  test('apptainer is refused where there are none, with the remedy, before anything is started', async () => {
    const { driver, root } = siteOf('ssh')
    const task = intentAt(root, requestOf('apptainer'), sh(': > made'), { gpus: 1 })
    await expect(run(driver, task)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringMatching(/asks for 1 of NVIDIA's GPUs and .* has 0 .*install their driver there/),
    })
    expect(readdirSync(task.directory)).toEqual([])
  }, 120_000)

  test.each([
    ['podman', 'ls /dev | grep nvidia', ['nvidia0\n', 'nvidia1\n']],
    ['apptainer', 'echo "$CUDA_VISIBLE_DEVICES"', ['0\n', '1\n']],
  ])(
    '%s gives two tasks of one node the GPU each that Slurm gave their jobs',
    async (engine, script, expected) => {
      const { driver, root } = siteOf('slurm')
      const tasks = [1, 2].map(() =>
        intentAt(root, requestOf(engine), sh(`${script}; : > up; while [ ! -e go ]; do sleep 0.1; done`), {
          gpus: 1,
        }),
      )
      for (const outcome of await driver.submit(tasks)) expect(outcome).toMatchObject({ ok: true })
      await Promise.all(tasks.map(up))
      for (const { directory } of tasks) writeFileSync(join(directory, 'go'), '')
      await Promise.all(tasks.map(({ name }) => ended(driver, name)))
      for (const { name } of tasks) expect((await driver.collect(name)).state).toMatchObject({ exitCode: 0 })
      expect((await Promise.all(tasks.map((task) => text(driver, task)))).sort()).toEqual(expected)
    },
    120_000,
  )
})

describe('Podman that is killed while tasks run', () => {
  const processOf = (word: string, name: string): number[] =>
    readdirSync('/proc')
      .filter((pid) => {
        try {
          const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')
          return words[0]?.endsWith(word) === true && words.includes(name)
        } catch {
          return false
        }
      })
      .map(Number)
  const kill = (pids: readonly number[]): void => {
    expect(pids).not.toEqual([])
    for (const pid of pids) {
      try {
        process.kill(pid, 'SIGKILL')
      } catch {
        // It has ended with one before it.
      }
    }
  }
  /** The client of `podman run`. */
  const client = (name: string): number[] => processOf('podman', name)
  const monitor = (name: string): number[] => processOf('conmon', name)
  /** The launcher, and the shells in the container. */
  const shells = (name: string): number[] => processOf('sh', name)
  const expectNothing = async (): Promise<void> => {
    expect(await podman.podman('ps', '--all', '--quiet')).toBe('')
    expect(podman.mounts()).toEqual([])
  }
  const waiting = 'echo one; : > up; while [ ! -e go ]; do sleep 0.1; done; echo two; exit 3'

  test('the tasks go on to their end, lose nothing, and leave no container and no mount', async () => {
    const { driver, root } = siteOf('ssh')
    const tasks = [1, 2, 3].map(() => intentAt(root, requestOf('podman'), sh(waiting)))
    await driver.submit(tasks)
    await Promise.all(tasks.map(up))
    const [first, second, third] = tasks.map(({ name }) => name) as [string, string, string]
    kill([...client(first), ...monitor(second), ...client(third), ...monitor(third)])
    for (const { directory } of tasks) writeFileSync(join(directory, 'go'), '')
    await Promise.all(tasks.map(({ name }) => ended(driver, name)))
    for (const task of tasks) {
      expect((await driver.collect(task.name)).state).toMatchObject({
        state: 'ended',
        exitCode: 3,
        reason: 'exited',
      })
      expect(await text(driver, task)).toBe('one\ntwo\n')
    }
    await expectNothing()
  }, 120_000)

  test('with everything that belongs to the task: the end of its run removes what stayed mounted, and so does the next run there', async () => {
    const { driver, root } = siteOf('ssh')
    const killed = async (): Promise<void> => {
      const task = intentAt(root, requestOf('podman'), sh(waiting))
      await driver.submit([task])
      await up(task)
      kill([...client(task.name), ...monitor(task.name), ...shells(task.name)])
      await ended(driver, task.name)
      expect(podman.mounts()).not.toEqual([])
    }
    await killed()
    await driver.closeScope('engines')
    await expectNothing()
    await killed()
    const { driver: next, root: elsewhere } = openSite('ssh')
    await run(next, intentAt(elsewhere, requestOf('podman'), sh('exit 0')))
    await expectNothing()
  }, 120_000)
})

describe('in containers of Podman', () => {
  // The local driver keeps none of Podman's containers: each has its work directory as a mount.
  tortureConformance(
    'local',
    () => {
      const root = mkdtempSync(join(folder, 'root-'))
      const scratch = mkdtempSync(join(folder, 'scratch-'))
      const { driver, shell } = openContainerSite({
        ...{ kind: 'local', root, environment: { PATH: `${podman.commands}:${usual}`, HOME: root } },
        container: requestOf('podman'),
        containers: { mounts: [scratch], idleSeconds: 20 },
      })
      return {
        ...{ scratch, tellsSignals: false, directoryStays: true },
        open: () => driver,
        submitter: [],
        close: () => shell.close(),
      }
    },
    manyCases,
  )
})
