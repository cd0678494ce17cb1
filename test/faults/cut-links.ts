import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import { DriverError, type Intent, type RuntimeDriver } from '../../src/drivers/runtime/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm.ts'
import { openSshDriver } from '../../src/drivers/runtime/ssh.ts'
import { startSlurm } from '../sites/slurm.ts'
import { startSshServer } from '../support/ssh-server.ts'
import type { Trouble } from './tally.ts'

const roundSeconds = 120

/** As the engine does: a site that does not answer is asked again. */
async function patiently<T>(what: string, ask: () => Promise<T>): Promise<T> {
  for (const end = performance.now() + roundSeconds * 1000; ; await sleep(50)) {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof DriverError) || error.trouble !== 'unknown' || performance.now() > end) throw error
      if (error.message === '') throw new Error(`${what} fails without words`, { cause: error })
    }
  }
}

/**
 * One task from submit to its collected files over a link that is cut at one message of the server, which is the last to arrive or the first to
 * be lost, in turn. Each case is one cut; the driver goes on over the next link, and the task must have run once.
 */
export async function openCutLinks(kind: 'ssh' | 'slurm'): Promise<Trouble> {
  const cluster = kind === 'slurm' ? await startSlurm() : undefined
  const scratch = mkdtempSync(join(cluster?.scratch ?? tmpdir(), 'orrery-cuts-'))
  const path = `${cluster === undefined ? '' : `${cluster.commands}:`}/usr/local/bin:/usr/bin:/bin`
  const server = await startSshServer({
    run: (command) => spawn('/bin/sh', ['-c', command], { stdio: 'pipe', detached: true, cwd: '/', env: { PATH: path, HOME: scratch } }),
  })
  const ledger = join(scratch, 'ledger')
  const root = join(scratch, 'root')
  let tasks = 0

  const open = (): { driver: RuntimeDriver; close: () => Promise<void> } => {
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
        : openSlurmDriver({ ...options, configuration: { settleSeconds: 2, commandSeconds: 10, claimSeconds: 1 } })
    return {
      driver,
      close: async () => {
        await driver.close()
        await shell.close()
        await sessions.close()
      },
    }
  }

  /** @returns what is wrong. */
  const life = async (name: string): Promise<string[]> => {
    const faults: string[] = []
    const task: Intent = {
      name,
      directory: join(root, 'work', name, '1'),
      argv: ['/bin/sh', '-c', 'echo "$1" >> "$2"; echo made > product; echo said', 'sh', name, ledger],
      ...{ environment: {}, stage: [], expectedOutputs: ['product'], cores: 1, memoryBytes: 0, timeoutSeconds: 60 },
    }
    const { driver, close } = open()
    try {
      const [outcome] = await patiently('submit', async () => {
        const outcomes = await driver.submit([task])
        const [first] = outcomes
        if (first?.ok === false && first.error.trouble === 'unknown') throw first.error
        return outcomes
      })
      if (outcome?.ok !== true) return [`${name} was refused: ${outcome?.error.message ?? 'no outcome'}`]
      const late = sleep(roundSeconds * 1000, 'late', { ref: false })
      const ended = new Promise<string>((resolve) => driver.watch([name], () => resolve('ended')))
      if ((await Promise.race([ended, late])) === 'late') return [`${name} was not told to have ended within ${roundSeconds} s`]
      const collected = await patiently('collect', () => driver.collect(name))
      const { state, manifest, missingOutputs } = collected
      if (state.state !== 'ended' || state.exitCode !== 0) faults.push(`${name} is ${JSON.stringify(state)}`)
      if (missingOutputs.length > 0 || manifest.files.map((one) => one.path).join() !== 'product')
        faults.push(`${name} left ${JSON.stringify(manifest.files)}`)
      const { bytes } = await patiently('logs', () => driver.logs(name, 'stdout', { tail: 100 }))
      if (bytes.toString() !== 'said\n') faults.push(`${name} said ${JSON.stringify(bytes.toString())}`)
      const lines = existsSync(ledger) ? readFileSync(ledger, 'utf8').split('\n') : []
      const times = lines.filter((line) => line === name).length
      if (times !== 1) faults.push(`${name} ran ${times} times`)
      if (cluster !== undefined) {
        const [array = ''] = readFileSync(join(root, 'tasks', `${name}.array`), 'utf8').split(' ')
        const jobs = (await cluster.slurm(`squeue -h -t all -o '%F %j'`)).split('\n').filter((line) => line.endsWith(` ${array}`))
        if (jobs.length !== 1) faults.push(`${name} is in ${jobs.length} jobs`)
      }
      return faults
    } finally {
      server.cutAt = undefined
      await close()
    }
  }

  const close = async (): Promise<void> => {
    await server.close()
    await cluster?.stop()
    rmSync(scratch, { recursive: true, force: true })
  }

  // The first contact installs the supervisor: it has more messages than any after it.
  let messages = 0
  for (let undisturbed = 0; undisturbed < 3; undisturbed++) {
    server.writes = 0
    const faults = await life(`whole-${undisturbed}`)
    if (faults.length > 0) throw new Error(`without any cut: ${faults.join('; ')}`)
    messages = undisturbed === 0 ? 0 : Math.max(messages, server.writes)
  }

  return {
    what: `link cut at a message of submit, poll or fetch, ${kind}: one job, re-attached (each of some ${kind === 'ssh' ? 240 : 430} messages × 20)`,
    async play(number) {
      server.writes = 0
      const write = 1 + (number % messages)
      server.cutAt = { write, lost: Math.floor(number / messages) % 2 === 0 }
      const faults = await life(`cut-${number}-${++tasks}`)
      return { counted: 1, faults: faults.map((fault) => `at message ${write} of ${messages}: ${fault}`) }
    },
    close,
  }
}
