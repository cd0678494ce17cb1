import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import { DriverError, type Intent, type RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { openSshDriver } from '../../src/drivers/runtime/remote/ssh.ts'
import { startSlurm } from '../../sites/slurm.ts'
import { startSshServer, type SshServer } from '../support/ssh-server.ts'
import type { Failures } from '../../bench/tally.ts'

const roundSeconds = 120
/**
 * Beyond the longest life of a task, so that all its jobs are still known; squeue's answers, which
 * drivers read, grow with it.
 */
const minJobAgeSeconds = 240

/** An SSH server with a work directory and a ledger of its own, for one task after the other. */
interface Lane {
  server: SshServer
  root: string
  ledger: string
}

/** What became of one task. */
interface Life {
  name: string
  violations: string[]
  /** Messages of the server from the first to the last of the task. */
  messages: number
  /** The name of its array, at Slurm. */
  array?: string
}

/** As the engine does: a site that does not answer is asked again. */
async function patiently<T>(what: string, ask: () => Promise<T>): Promise<T> {
  for (const end = performance.now() + roundSeconds * 1000; ; await sleep(50)) {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof DriverError) || error.trouble !== 'unknown' || performance.now() > end)
        throw error
      if (error.message === '') throw new Error(`${what} fails without words`, { cause: error })
    }
  }
}

/**
 * One task from submit to its collected files over a link that is cut at one message of the server,
 * which is the last to arrive or the first to be lost, in turn. Each case is one cut; the driver
 * goes on over the next link, and the task must have run once. A round is a case in each lane, all
 * at once, as a case mostly waits.
 *
 * @param laneCount cases at once
 */
export async function openCutLinks(kind: 'ssh' | 'slurm', laneCount = 12): Promise<Failures> {
  const cluster = kind === 'slurm' ? await startSlurm({ nodes: 3, minJobAgeSeconds }) : undefined
  const scratch = mkdtempSync(join(cluster?.scratch ?? tmpdir(), 'orrery-cuts-'))
  const path = `${cluster === undefined ? '' : `${cluster.commands}:`}/usr/local/bin:/usr/bin:/bin`
  const lanes: Lane[] = []
  let tasks = 0

  const openLane = async (index: number): Promise<void> => {
    const home = join(scratch, `lane-${index}`)
    mkdirSync(home)
    const server = await startSshServer({
      run: (command) =>
        spawn('/bin/sh', ['-c', command], {
          stdio: 'pipe',
          detached: true,
          cwd: '/',
          env: { PATH: path, HOME: home },
        }),
    })
    lanes.push({ server, root: join(home, 'root'), ledger: join(home, 'ledger') })
  }

  const open = ({ server, root }: Lane): { driver: RuntimeDriver; close: () => Promise<void> } => {
    const sessions = openSshSessions({ backOffMs: { first: 1, longest: 20 } })
    const shell = sessions.shell({
      host: '127.0.0.1',
      port: server.port,
      username: 'somebody',
      credential: 'key',
      secret: async () => ({ privateKey: server.privateKey }),
      hostKeys: { policy: 'strict', knownHosts: `[127.0.0.1]:${server.port} ${server.hostKey}` },
    })
    const options = { shell, root, runtime: kind, taskVariable: 'ORRERY_TASK', pollMilliseconds: 300 }
    const driver =
      kind === 'ssh'
        ? openSshDriver(options)
        : openSlurmDriver({
            ...options,
            configuration: { settleSeconds: 2, commandSeconds: 10, claimSeconds: 1 },
          })
    return {
      driver,
      close: async () => {
        await driver.close()
        await shell.close()
        await sessions.close()
      },
    }
  }

  const live = async (lane: Lane, cutAt?: SshServer['cutAt']): Promise<Life> => {
    const { server, root, ledger } = lane
    const name = `cut-${process.pid}-${++tasks}`
    const life: Life = { name, violations: [], messages: 0 }
    const { driver, close } = open(lane)
    server.writes = 0
    server.cutAt = cutAt
    try {
      await submitAndCollect(driver, name, root, ledger, life.violations)
      const lines = existsSync(ledger) ? readFileSync(ledger, 'utf8').split('\n') : []
      const times = lines.filter((line) => line === name).length
      if (times !== 1) life.violations.push(`${name} ran ${times} times`)
      if (cluster !== undefined)
        life.array = readFileSync(join(root, 'tasks', `${name}.array`), 'utf8').split(' ')[0] ?? ''
    } catch (error) {
      life.violations.push(`${name}: ${String(error)}`)
    } finally {
      server.cutAt = undefined
      life.messages = server.writes
      await close()
    }
    return life
  }

  const submitAndCollect = async (
    driver: RuntimeDriver,
    name: string,
    root: string,
    ledger: string,
    violations: string[],
  ): Promise<void> => {
    const task: Intent = {
      name,
      directory: join(root, 'work', name, '1'),
      argv: ['/bin/sh', '-c', 'echo "$1" >> "$2"; echo made > product; echo said', 'sh', name, ledger],
      ...{
        environment: {},
        stage: [],
        expectedOutputs: ['product'],
        cores: 1,
        memoryBytes: 0,
        timeoutSeconds: 60,
      },
    }
    await patiently('submit', async () => {
      const [outcome] = await driver.submit([task])
      if (outcome?.ok === false) throw outcome.error
      if (outcome === undefined) throw new Error('submit has no outcome')
    })
    const late = sleep(roundSeconds * 1000, 'late', { ref: false })
    const ended = new Promise<string>((resolve) => driver.watch([name], () => resolve('ended')))
    if ((await Promise.race([ended, late])) === 'late')
      throw new Error(`not told to have ended within ${roundSeconds} s`)
    const { state, manifest, missingOutputs } = await patiently('collect', () => driver.collect(name))
    if (state.state !== 'ended' || state.exitCode !== 0)
      violations.push(`${name} is ${JSON.stringify(state)}`)
    if (missingOutputs.length > 0 || manifest.files.map((one) => one.path).join() !== 'product')
      violations.push(`${name} left ${JSON.stringify(manifest.files)}`)
    const { bytes } = await patiently('logs', () => driver.logs(name, 'stdout', { tail: 100 }))
    if (bytes.toString() !== 'said\n') violations.push(`${name} said ${JSON.stringify(bytes.toString())}`)
  }

  /** Adds to the violations of tasks that are not in exactly one job. */
  const countJobs = async (lives: readonly Life[]): Promise<void> => {
    if (cluster === undefined) return
    const jobs = (await cluster.slurm(`squeue -h -t all -o '%F %j'`))
      .split('\n')
      .map((line) => line.split(' '))
    for (const { name, array, violations } of lives) {
      const ids = new Set(jobs.flatMap(([id, jobName]) => (jobName === array ? [id] : [])))
      if (array !== undefined && ids.size !== 1) violations.push(`${name} is in ${ids.size} jobs`)
    }
  }

  const close = async (): Promise<void> => {
    await Promise.all(lanes.map(({ server }) => server.close()))
    await cluster?.stop()
    rmSync(scratch, { recursive: true, force: true })
  }

  /**
   * Messages of a task that nothing disturbs: the median, as a task that happens to wait asks more
   * often.
   */
  const measure = async (): Promise<number> => {
    const counts: number[] = []
    for (let undisturbed = 0; undisturbed < 3; undisturbed++) {
      const lives = await Promise.all(lanes.map((lane) => live(lane)))
      await countJobs(lives)
      const violations = lives.flatMap((life) => life.violations)
      if (violations.length > 0) throw new Error(`without any cut: ${violations.join('; ')}`)
      // The first contact installs the supervisor: it has more messages than any after it.
      if (undisturbed > 0) counts.push(...lives.map((life) => life.messages))
    }
    return counts.toSorted((one, other) => one - other)[Math.floor(counts.length / 2)] ?? 1
  }

  try {
    for (let index = 0; index < laneCount; index++) await openLane(index)
    const messages = await measure()

    /**
     * A task that was over before its message is followed by one that is cut at the last it had.
     */
    const cut = async (lane: Lane, number: number): Promise<Life & { write: number }> => {
      for (let write = 1 + (number % messages); ;) {
        const life = await live(lane, { write, lost: Math.floor(number / messages) % 2 === 0 })
        if (life.violations.length > 0 || life.messages >= write) return { ...life, write }
        write = life.messages
      }
    }

    return {
      what:
        `link cut at a message of submit, poll or fetch, ${kind}: one job, re-attached (each of some ` +
        `${kind === 'ssh' ? 280 : 430} messages × 20)`,
      async play(number) {
        const lives = await Promise.all(lanes.map((lane, index) => cut(lane, number + index)))
        await countJobs(lives)
        const bad = lives.filter(({ violations }) => violations.length > 0)
        return {
          counted: lives.length,
          violations: bad.map(
            ({ write, violations }) => `at message ${write} of ${messages}: ${violations.join('; ')}`,
          ),
        }
      },
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}
