import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openLocalShell } from '../../src/drivers/local-shell.ts'
import { withContainers } from '../../src/drivers/runtime/container.ts'
import type { Collected, ContainerRequest, Intent, RuntimeDriver } from '../../src/drivers/runtime/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm.ts'
import { openSshDriver } from '../../src/drivers/runtime/ssh.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { haveApptainer } from '../sites/apptainer.ts'
import { startLoopbackRegistry } from '../sites/docker.ts'
import { bareArchive, systemSif } from '../sites/image-files.ts'
import { kubernetesImages } from '../sites/kubernetes-images.ts'
import { startPodman, type Podman } from '../sites/podman.ts'
import { startSlurm, type SlurmSite } from '../sites/slurm.ts'

/** The engines besides Docker, over a shell and inside Slurm's jobs: what a task in them does and what is told of it. */

const sh = (script: string, ...args: string[]): string[] => ['/bin/sh', '-c', script, 'sh', ...args]
const usual = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

let podman: Podman
let slurm: SlurmSite
let sif: string
let count = 0
const closing: (() => Promise<void>)[] = []
const folder = mkdtempSync(join(tmpdir(), 'orrery-engines-'))

beforeAll(async () => {
  await haveApptainer()
  ;[podman, slurm, sif] = await Promise.all([startPodman(), startSlurm({ nodes: 1 }), systemSif()])
}, 900_000)
afterAll(async () => {
  for (const close of closing) await close()
  await Promise.all([podman?.stop(), slurm?.stop()])
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

const requestOf = (engine: string): ContainerRequest => ({
  ...{ engine, network: false, reuse: false, scope: 'engines' },
  image: engine === 'podman' ? podman.image : sif,
})

const openSite = (kind: 'ssh' | 'slurm'): { driver: RuntimeDriver; root: string } => {
  const root = mkdtempSync(join(kind === 'slurm' ? slurm.scratch : folder, 'root-'))
  const shell = openLocalShell({
    environment: { PATH: `${podman.commands}:${kind === 'slurm' ? `${slurm.commands}:` : ''}${usual}`, HOME: root, SLURM_CONF: slurm.conf },
  })
  const remote = { shell, root, runtime: kind, taskVariable: 'ORRERY_TASK', pollMilliseconds: 500 }
  const own = kind === 'ssh' ? openSshDriver(remote) : openSlurmDriver({ ...remote, configuration: { settleSeconds: 3 } })
  const site = { shell, root: () => Promise.resolve(root), engine: 'auto' as const, taskVariable: 'ORRERY_TASK' }
  const driver = withContainers(own, { ...site, endsDescendants: kind === 'slurm' })
  closing.push(async () => {
    await driver.close()
    await shell.close()
  })
  return { driver, root }
}

const intentAt = (root: string, container: ContainerRequest, argv: string[], more: Partial<Intent> = {}): Intent => {
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

describe.each([
  ['podman', 'ssh'],
  ['apptainer', 'ssh'],
  ['apptainer', 'slurm'],
] as const)('%s at a site of kind %s', (engine, kind) => {
  test('runs the task in its image, with its files, its exit code and what the place cost', async () => {
    const { driver, root } = openSite(kind)
    const task = intentAt(root, requestOf(engine), sh('cat /etc/passwd; echo "$GREETING" > made; exit 3'), {
      environment: { GREETING: "it's $HOME" },
      expectedOutputs: ['made'],
    })
    const collected = await run(driver, task)
    expect(collected.state).toMatchObject({ state: 'ended', exitCode: 3, reason: 'exited' })
    // The image's own, not this machine's.
    expect((await driver.logs(task.name, 'stdout', { tail: 10_000 })).bytes.toString()).toMatch(/^root:x:0:0:root:\/root:\/bin\/sh\n/)
    expect(readFileSync(join(task.directory, 'made'), 'utf8')).toBe("it's $HOME\n")
    expect(collected.manifest.files.map(({ path }) => path)).toEqual(['made'])
    expect(collected.detail).toMatchObject({ engine, image: requestOf(engine).image, coldStartSeconds: expect.any(Number) })
  }, 120_000)

  test('shows it nothing of the machine but its work directory, and no way to write elsewhere', async () => {
    const { driver, root } = openSite(kind)
    const secret = join(root, 'secret')
    const task = intentAt(
      root,
      requestOf(engine),
      sh('cat "$1" 2>/dev/null && exit 1; echo x > /usr/bin/x 2>/dev/null && exit 2; echo x > /tmp/x', secret),
    )
    expect((await run(driver, task)).state).toMatchObject({ exitCode: 0 })
  }, 120_000)

  test('ends it when it is cancelled', async () => {
    const { driver, root } = openSite(kind)
    const task = intentAt(root, requestOf(engine), sh('echo up > up; exec sleep 300'))
    await driver.submit([task])
    const up = (): boolean => {
      try {
        return readFileSync(join(task.directory, 'up'), 'utf8') === 'up\n'
      } catch {
        return false
      }
    }
    for (let tries = 0; !up(); tries++) {
      if (tries === 600) throw new Error('the task did not start within 60 s')
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
    await driver.cancel([task.name], 1)
    expect((await driver.find([task.name])).get(task.name)).toMatchObject({ state: 'ended', reason: 'cancelled' })
  }, 150_000)
})

test('apptainer brings an image from a registry once a host, by the digest asked for; what cannot be is refused, a registry that is away is waited for', async () => {
  const registry = await startLoopbackRegistry(join(folder, 'registry'))
  closing.push(() => registry.stop())
  const { driver, root } = openSite('ssh')
  const images = await kubernetesImages(configFromEnvironment().cacheDir)
  const digest = await registry.push(images.busybox, 'app/tool:1')
  const bare = `docker://${registry.address}/app/bare:1`
  await registry.push(await bareArchive(folder), 'app/bare:1')
  const taskIn = (image: string, argv: string[]): Intent => intentAt(root, { ...requestOf('apptainer'), image }, argv)
  const outcomeIn = (image: string): Promise<unknown> => run(driver, taskIn(image, sh('exit 0'))).catch((error: unknown) => error)

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
    expect(await outcomeIn(image)).toMatchObject({ trouble: 'refused', message: expect.stringContaining(image) })

  await registry.push(images.busybox, 'app/away:1')
  const away = `docker://${registry.address}/app/away:1`
  await registry.stop()
  expect(await outcomeIn(away)).toMatchObject({ state: { state: 'lost', cause: expect.stringContaining('connection refused') } })
  await registry.start()
  expect(await outcomeIn(away)).toMatchObject({ state: { state: 'ended', exitCode: 0 } })
}, 180_000)
