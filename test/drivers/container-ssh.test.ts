import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { copyFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SshSessions } from '../../src/clients/ssh/target.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { withContainers } from '../../src/drivers/runtime/container.ts'
import type { Collected, Intent, RuntimeDriver } from '../../src/drivers/runtime/driver.ts'
import { openSshDriver } from '../../src/drivers/runtime/ssh.ts'
import type { SiteShell } from '../../src/drivers/shell.ts'
import { startHostEngine, type HostEngine } from '../sites/docker.ts'
import { kubernetesImages } from '../sites/kubernetes-images.ts'
import { startSsh, type SshSite } from '../sites/ssh.ts'

/** Docker of a host that is reached over sshd by an account without rights of its own. */

const image = 'local/bb:1'
const root = '/home/ada/orrery'
let site: SshSite
let engine: HostEngine
let sessions: SshSessions
let count = 0

beforeAll(async () => {
  site = await startSsh({ hosts: 1 })
  const [host] = site.hosts
  engine = await startHostEngine(host, site.user)
  const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
  copyFileSync(busybox, join(host.folder, 'srv/image.tar'))
  await engine.docker('load', '--quiet', '--input', '/srv/image.tar')
  sessions = openSshSessions()
}, 300_000)
afterAll(async () => {
  await sessions?.close()
  await site?.stop()
  await engine?.leave()
}, 60_000)

/** Logs in anew. */
const open = async (use: (driver: RuntimeDriver, shell: SiteShell) => Promise<void>): Promise<void> => {
  const [host] = site.hosts
  const shell = sessions.shell({
    host: host.address,
    port: host.port,
    username: site.user,
    credential: `login-${++count}`,
    secret: () => Promise.resolve({ privateKey: site.key.privateKey }),
    hostKeys: { policy: 'strict', knownHosts: host.knownHosts() },
  })
  const plain = openSshDriver({ shell, root, runtime: 'ssh', taskVariable: 'ORRERY_TASK', pollMilliseconds: 500 })
  const driver = withContainers(plain, { shell, root: () => Promise.resolve(root), engine: 'docker', taskVariable: 'ORRERY_TASK' })
  try {
    await use(driver, shell)
    await driver.closeScope('login')
  } finally {
    await driver.close()
    await shell.close()
  }
}

const intent = (script: string, reuse = false): Intent => {
  const name = `task-${++count}`
  return {
    ...{ name, directory: `${root}/work/run/${name}/1`, argv: ['/bin/sh', '-c', script], environment: {}, stage: [] },
    ...{ expectedOutputs: [], cores: 1, memoryBytes: 64 * 1024 ** 2, timeoutSeconds: 60 },
    container: { image, network: false, reuse, scope: 'login' },
  }
}

const run = async (driver: RuntimeDriver, what: Intent): Promise<Collected> => {
  const [outcome] = await driver.submit([what])
  if (outcome?.ok !== true) throw outcome?.error ?? new Error('no outcome')
  await new Promise<void>((resolve) => {
    driver.watch([what.name], () => resolve())
  })
  return driver.collect(what.name)
}

test('an account that may use the engine by its group has its tasks in containers, as itself and with nothing of the engine', async () => {
  await open(async (driver, shell) => {
    const uid = (await shell.run('id -u')).stdout.toString()
    expect(Number(uid)).toBeGreaterThan(0)
    for (const reuse of [false, true]) {
      const task = intent(
        'id -u; [ -e /run/docker.sock ] || [ -e /var/run/docker.sock ] || echo no socket; ls /home/ada; echo made > made; exit 3',
        reuse,
      )
      const { state, detail, manifest } = await run(driver, task)
      expect(state).toMatchObject({ state: 'ended', exitCode: 3, reason: 'exited' })
      expect(detail).toMatchObject({ engine: 'docker', image, containerReused: false })
      expect(manifest.files.map(({ path }) => path)).toEqual(['made'])
      // Of the account's home the path of the work directory, and no more.
      expect((await driver.logs(task.name, 'stdout', { tail: 1000 })).bytes.toString()).toBe(`${uid}no socket\norrery\n`)
      expect(statSync(site.hosts[0].see(join(task.directory, 'made'))).uid).toBe(Number(uid))
    }
    expect((await run(driver, intent('exit 0', true))).detail).toMatchObject({ containerReused: true })
  })
}, 120_000)

test('an account that may not is told so, and its task is not tried again', async () => {
  engine.admit(false)
  await open(async (driver) => {
    await expect(run(driver, intent('exit 0'))).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('permission denied'),
    })
  })
}, 120_000)
