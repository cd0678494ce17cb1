import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openLocalShell } from '../../src/drivers/local-shell.ts'
import { withContainers } from '../../src/drivers/runtime/container.ts'
import type { Collected, ContainerRequest, Intent, RuntimeDriver } from '../../src/drivers/runtime/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm.ts'
import { openSshDriver } from '../../src/drivers/runtime/ssh.ts'
import { haveApptainer } from '../sites/apptainer.ts'
import { systemSif } from '../sites/image-files.ts'
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
