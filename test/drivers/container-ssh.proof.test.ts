import { expect } from '@jest/globals'
import { copyFileSync, existsSync, realpathSync, statSync } from 'node:fs'
import { basename, dirname, join, relative, resolve } from 'node:path'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SshSessions } from '../../src/clients/ssh/target.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { quoteAll } from '../../src/shell/quote.ts'
import { withContainers, type ContainerDriver } from '../../src/drivers/runtime/container/driver.ts'
import type {
  Collected,
  ContainerRequest,
  Intent,
  RuntimeDriver,
} from '../../src/drivers/runtime/contract/driver.ts'
import { openSshDriver } from '../../src/drivers/runtime/remote/ssh.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { allowApptainer, haveApptainer } from '../../sites/apptainer.ts'
import { startHostEngine, type HostEngine } from '../../sites/docker.ts'
import { run as runProgram, until } from '../../sites/ground.ts'
import { systemSif } from '../../sites/image-files.ts'
import { startDaemon } from '../../sites/kubernetes-daemon.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { startSsh, type SshHost, type SshSite } from '../../sites/ssh.ts'
import { runnerProgram } from '../support/runner-program.ts'
import type { ContainerSiteOptions } from './container-site.ts'
import { plainIntent, taskName } from './intent.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.ssh, 'debootstrap')

/**
 * Engines of a host that is reached over sshd by an account without rights of its own. The host has
 * two GPUs.
 */

const image = 'local/bb:1'
const root = '/home/ada/orrery'
let site: SshSite
let host: SshHost
let engine: HostEngine
let sessions: SshSessions
let sif: string
let busybox: string
let count = 0

beforeAll(async () => {
  await haveApptainer()
  ;[site, sif, { busybox }] = await Promise.all([
    startSsh({ hosts: 1 }),
    systemSif(),
    kubernetesImages(configFromEnvironment().cacheDir),
  ])
  host = site.hosts[0]
  await allowApptainer(host, 2)
  engine = await startHostEngine(host, site.user)
  copyFileSync(busybox, join(host.folder, 'srv/image.tar'))
  await engine.docker('load', '--quiet', '--input', '/srv/image.tar')
  sessions = openSshSessions()
}, 900_000)
afterAll(async () => {
  await sessions?.close()
  await site?.stop()
  await engine?.leave()
}, 60_000)

/** Logs in anew. */
const open = async (use: (driver: ContainerDriver, shell: SiteShell) => Promise<void>): Promise<void> => {
  const shell = sessions.shell({
    host: host.address,
    port: host.port,
    username: site.user,
    credential: `login-${++count}`,
    secret: () => Promise.resolve({ privateKey: site.key.privateKey }),
    hostKeys: { policy: 'strict', knownHosts: host.knownHosts() },
  })
  const plain = openSshDriver({
    shell,
    root,
    runtime: 'ssh',
    taskVariable: 'ORRERY_TASK',
    pollMilliseconds: 500,
  })
  const driver = withContainers(plain, {
    shell,
    root: () => Promise.resolve(root),
    engine: 'docker',
    taskVariable: 'ORRERY_TASK',
  })
  try {
    await use(driver, shell)
  } finally {
    await driver.close()
    await shell.close()
  }
}

const intent = (
  script: string,
  container: Partial<ContainerRequest> = {},
  more: Partial<Intent> = {},
): Intent => {
  const name = taskName(++count)
  return {
    ...plainIntent(name, `${root}/work/run/${name}/1`, ['/bin/sh', '-c', script]),
    ...{ memoryBytes: 64 * 1024 ** 2, timeoutSeconds: 60 },
    ...more,
    container: { image, network: false, reuse: false, scope: 'login', ...container },
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
const text = async (driver: RuntimeDriver, { name }: Intent): Promise<string> =>
  (await driver.logs(name, 'stdout', { tail: 1000 })).bytes.toString()
const refusal = (words: readonly string[]): object => ({
  trouble: 'refused',
  message: expect.stringMatching(
    new RegExp(words.map((word) => word.replaceAll(/[.()]/g, '\\$&')).join('.*')),
  ),
})

/** The name of the account by its number and by the environment; root, and how often the number is there. */
const named =
  'echo "$(id -un) $USER $LOGNAME"; echo "$(grep -c ^root: /etc/passwd) $(grep -c ":$(id -u):" /etc/passwd)"'

describe('Docker', () => {
  test('an account that may use the engine by its group has its tasks in containers, as itself and with nothing of the engine', async () => {
    await open(async (driver, shell) => {
      const uid = (await shell.run('id -u')).stdout.toString()
      expect(Number(uid)).toBeGreaterThan(0)
      for (const reuse of [false, true]) {
        const task = intent(
          'id -u; [ -e /run/docker.sock ] || [ -e /var/run/docker.sock ] || echo no socket; ls ' +
            '/home/ada; echo made > made; exit 3',
          { reuse },
        )
        const { state, detail, manifest } = await run(driver, task)
        expect(state).toMatchObject({ state: 'ended', exitCode: 3, reason: 'exited' })
        expect(detail).toMatchObject({ engine: 'docker', image, containerReused: false })
        expect(manifest.files.map(({ path }) => path)).toEqual(['made'])
        // Of the account's home the path of the work directory, and no more.
        expect(await text(driver, task)).toBe(`${uid}no socket\norrery\n`)
        expect(statSync(host.see(join(task.directory, 'made'))).uid).toBe(Number(uid))
      }
      expect((await run(driver, intent('exit 0', { reuse: true }))).detail).toMatchObject({
        containerReused: true,
      })
      await driver.closeScope('login')
    })
  }, 120_000)

  test('a task has the name of its account, though its image has none for the number', async () => {
    await open(async (driver) => {
      for (const reuse of [false, true]) {
        const task = intent(named, { reuse })
        expect(await run(driver, task)).toMatchObject({ state: { exitCode: 0 } })
        expect(await text(driver, task)).toBe(`${site.user} ${site.user} ${site.user}\n1 1\n`)
      }
      // A user's own file of accounts stays.
      const mounts = ['/etc/passwd:ro']
      const other = intent('grep -c ^sshd: /etc/passwd', { mounts })
      expect(await run(driver, other)).toMatchObject({ state: { exitCode: 0 } })
      await driver.closeScope('login')
    })
  }, 120_000)

  test('a task has as many GPUs as it asks for, and none without asking; more than there are is refused', async () => {
    await open(async (driver) => {
      const seen = async (gpus: number, reuse = false): Promise<string> => {
        const task = intent('ls /dev | grep nvidia; true', { reuse }, { gpus })
        await run(driver, task)
        return text(driver, task)
      }
      expect(await Promise.all([seen(0), seen(1), seen(2)])).toEqual(['', 'nvidia0\n', 'nvidia0\nnvidia1\n'])
      // A container that is kept has those of its tasks.
      expect([await seen(1, true), await seen(2, true), await seen(0, true)]).toEqual([
        'nvidia0\n',
        'nvidia0\nnvidia1\n',
        '',
      ])
      await expect(run(driver, intent('exit 0', {}, { gpus: 3 }))).rejects.toMatchObject(
        refusal(['2: unknown device', 'needs GPU 0,1,2 of th1', 'ask for fewer GPUs']),
      )
      await driver.closeScope('login')
    })
    expect(await engine.docker('ps', '--all', '--quiet', '--filter', 'status=created')).toBe('')
  }, 120_000)

  test('an account that may not is told so, and its task is not tried again', async () => {
    engine.admit(false)
    await open(async (driver) => {
      for (const scope of ['login', 'other'])
        await expect(run(driver, intent('exit 0', { scope }))).rejects.toMatchObject(
          refusal(['permission denied']),
        )
    })
  }, 120_000)
})

describe('Apptainer', () => {
  const inSif = (script: string, more: Partial<Intent> = {}): Intent =>
    intent(script, { engine: 'apptainer', image: sif }, more)

  test('has the tasks of an account in namespaces of its own: as itself, with its work directory, without network, until they end or are cancelled', async () => {
    await open(async (driver, shell) => {
      const uid = (await shell.run('id -u')).stdout.toString()
      const task = inSif(
        'id -u; grep -c : /proc/net/dev; ls /home/ada; echo > /usr/x 2>/dev/null || echo read only; ' +
          'echo made > made; exit 3',
      )
      const { state, detail, manifest } = await run(driver, task)
      expect(state).toMatchObject({ state: 'ended', exitCode: 3, reason: 'exited' })
      expect(detail).toMatchObject({
        engine: 'apptainer',
        image: sif,
        imageDigest: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
      })
      expect(manifest.files.map(({ path }) => path)).toEqual(['made'])
      expect(await text(driver, task)).toBe(`${uid}1\norrery\nread only\n`)
      expect(statSync(host.see(join(task.directory, 'made'))).uid).toBe(Number(uid))

      const long = inSif(': > up; exec sleep 300')
      await driver.submit([long])
      await until('the task runs', () => Promise.resolve(existsSync(host.see(`${long.directory}/up`))))
      await driver.cancel([long.name], 1)
      expect((await driver.find([long.name])).get(long.name)).toMatchObject({
        state: 'ended',
        reason: 'cancelled',
      })
      const living = async (pattern: string): Promise<string> =>
        (await shell.run(`pgrep -f '${pattern}'`)).stdout.toString()
      expect(await living('^sleep 300$')).toBe('')
      await until('nobody serves the image any more', async () => (await living('^[^ ]*squashfuse')) === '')
    })
  }, 120_000)

  test('gives a task the name of its account', async () => {
    await open(async (driver) => {
      const task = inSif(named)
      await run(driver, task)
      expect(await text(driver, task)).toMatch(new RegExp(`^${site.user} ${site.user} ${site.user}\n`))
    })
  }, 120_000)

  test('makes its image from that of a registry, without rights', async () => {
    const settings = {
      version: 0.1,
      log: { level: 'warn', accesslog: { disabled: true } },
      storage: { filesystem: { rootdirectory: '/srv/registry' } },
      http: { addr: '0.0.0.0:5000' },
    }
    await host.run('cat > /srv/registry.json', 'root', { input: JSON.stringify(settings) })
    const registry = await startDaemon(host, '/srv/registry.log', [
      'docker-registry',
      'serve',
      '/srv/registry.json',
    ])
    const answers = (): Promise<boolean> =>
      fetch(`http://${host.address}:5000/v2/`).then(
        ({ ok }) => ok,
        () => false,
      )
    await registry.ready(answers)
    const plain = ['--insecure-policy', 'copy', '--quiet', '--dest-tls-verify=false']
    await runProgram('skopeo', [
      ...plain,
      `docker-archive:${busybox}`,
      `docker://${host.address}:5000/app/tool:1`,
    ])
    await open(async (driver) => {
      const task = intent('cat /etc/passwd', {
        engine: 'apptainer',
        image: 'docker://127.0.0.1:5000/app/tool:1',
      })
      const { state, detail } = await run(driver, task)
      expect(state).toMatchObject({ exitCode: 0 })
      expect(detail?.pullSeconds).toBeGreaterThan(0)
      expect(await text(driver, task)).toMatch(/^root:x:0:0:/)
    })
  }, 120_000)

  test('lets a task see as many GPUs as it asks for; more than there are is refused', async () => {
    await open(async (driver) => {
      const seen = async (gpus: number): Promise<string> => {
        const task = inSif('echo "$(ls /dev | grep -c nvidia) $CUDA_VISIBLE_DEVICES"', { gpus })
        await run(driver, task)
        return text(driver, task)
      }
      // All are there, as Apptainer does it; CUDA keeps to those that it is told.
      expect(await Promise.all([seen(0), seen(1), seen(2)])).toEqual(['0 \n', '2 0\n', '2 0,1\n'])
      await expect(run(driver, inSif('exit 0', { gpus: 3 }))).rejects.toMatchObject(
        refusal(["asks for 3 of NVIDIA's GPUs and th1 has 2", 'install their driver', 'ask for fewer GPUs']),
      )
    })
  }, 120_000)

  test('runs tasks of this machine too where the service is an account without rights', async () => {
    const checkout = resolve(import.meta.dirname, '../..')
    const runner = await runnerProgram()
    // Its way to the checkout and to the runner may be closed to the account, or covered by the
    // host's own folders, as it is below /srv.
    await host.run(`show() {
  mkdir -p "$2"
  from=$1
  [ -e "$from/$3" ] || from=/run/below$from
  mount --bind "$from" "$2"
}
mkdir -p /run/below
mount --bind / /run/below
show ${quoteAll([checkout, '/srv/checkout', 'package.json'])}
show ${quoteAll([dirname(runner), `/srv/cache/runner/${basename(dirname(runner))}`, basename(runner)])}
umount /run/below`)
    const node = relative(checkout, realpathSync(process.execPath))
    const task = inSif('id -u; echo made > made; exit 3')
    const options: ContainerSiteOptions = {
      kind: 'local',
      root,
      environment: { PATH: '/usr/bin:/bin', HOME: '/home/ada' },
      container: task.container!,
    }
    const program = `
      const { openContainerSite } = await import('/srv/checkout/test/drivers/container-site.ts')
      const [options, task] = process.argv.slice(1).map((each) => JSON.parse(each))
      const { driver, shell } = openContainerSite(options)
      const [outcome] = await driver.submit([task])
      if (!outcome.ok) throw outcome.error
      await new Promise((resolve) => driver.watch([task.name], resolve))
      const { state, detail } = await driver.collect(task.name)
      const { bytes } = await driver.logs(task.name, 'stdout', { tail: 100 })
      console.log(JSON.stringify({ state, detail, text: bytes.toString() }))
      await driver.close()
      await shell.close()`
    const words = [
      'env',
      'SERVICE_CACHE_DIR=/srv/cache',
      node.startsWith('..') ? process.execPath : `/srv/checkout/${node}`,
      '--input-type=module',
      '-e',
      program,
    ]
    const { stdout } = await host.run(
      quoteAll([...words, JSON.stringify(options), JSON.stringify(task)]),
      'account',
    )
    const { uid } = statSync(host.see(join(task.directory, 'made')))
    expect(uid).toBeGreaterThan(0)
    expect(JSON.parse(stdout)).toMatchObject({
      state: { state: 'ended', exitCode: 3, reason: 'exited' },
      detail: { engine: 'apptainer', image: sif },
      text: `${uid}\n`,
    })
  }, 120_000)

  test('is refused where the account may not use FUSE, with the remedy', async () => {
    await host.run('chmod 600 /dev/fuse')
    await open(async (driver) => {
      // An image that is known there, and one that is to be looked at.
      for (const scope of ['login', 'other'])
        await expect(
          run(driver, intent('exit 0', { engine: 'apptainer', image: sif, scope })),
        ).rejects.toMatchObject(refusal(['/dev/fuse: Permission denied', 'let accounts use /dev/fuse']))
    })
  }, 120_000)
})
