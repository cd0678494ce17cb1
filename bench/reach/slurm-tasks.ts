import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { slurmMissing, startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { startDaemon } from '../daemon.ts'
import { allMissing, rootMissing } from '../needs.ts'
import { timedRun } from '../planned-run.ts'
import { pythonProgram, pythonProgramMissing, type PythonProgram } from '../python.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio } from '../rounds.ts'
import { bag, checkLedgers, importKey, notingScript, planOn, versionOf } from './places.ts'

const fullCount = 1_000
/**
 * A snakemake job starts Python on its node, about two seconds of a core, so 1,000 jobs take an
 * hour here. The benchmark therefore ends snakemake while it still submits.
 */
const fullSnakemakeSeconds = 40
const versions = { snakemake: '9.27.1', plugin: '2.8.0' }

const snakemake: PythonProgram = {
  name: `snakemake-${versions.snakemake}`,
  packages: [`snakemake==${versions.snakemake}`, `snakemake-executor-plugin-slurm==${versions.plugin}`],
  program: 'snakemake',
  probe: ['--version'],
}

export const prepareSnakemake = (): Promise<string> => pythonProgram(snakemake)

interface Measured {
  /** From the start to the controller's last record of a submission. */
  submittedSeconds: number
  /** To the end of the last task. */
  seconds: number
  /** Calls of sbatch, squeue, sacct and the other commands. */
  calls: number
}

/**
 * Seconds from `since` to the last submission that the controller logged (with milliseconds, this
 * machine's clock).
 */
const lastSubmission = (site: SlurmSite, since: number): number => {
  const times = [
    ...readFileSync(join(site.folder, 'log', 'slurmctld.log'), 'utf8').matchAll(
      /^\[([^\]]+)\] _slurm_rpc_submit_batch_job/gm,
    ),
  ]
  const last = Math.max(...times.map(([, text]) => new Date(text!).getTime()))
  if (!(last >= since - 1_000)) throw new Error('the controller logged no submission')
  return (last - since) / 1_000
}

/** Errors in the nodes' own logs. */
const nodeErrors = (site: SlurmSite): string[] =>
  readdirSync(join(site.folder, 'log'))
    .filter((file) => file !== 'slurmctld.log')
    .flatMap((file) =>
      readFileSync(join(site.folder, 'log', file), 'utf8')
        .split('\n')
        .filter((line) => /error:/.test(line)),
    )
    .slice(-20)

const measure = async (
  who: string,
  site: SlurmSite,
  tasks: readonly string[],
  work: () => Promise<unknown>,
): Promise<Measured> => {
  site.forgetCalls()
  const since = Date.now()
  await work()
  const seconds = (Date.now() - since) / 1_000
  const calls = site.calls().length
  await checkLedgers(who, [site.login], tasks)
  return { submittedSeconds: lastSubmission(site, since), seconds, calls }
}

const perMinute = ({ calls, seconds }: Measured): number => calls / (seconds / 60)

/**
 * Calls sbatch once per task on the login node, as a user's script does, then polls squeue every
 * second.
 */
const loop = (site: SlurmSite, tasks: readonly string[]): Promise<unknown> =>
  site.login.run(
    `cd; PATH=${site.commands}:$PATH; while read -r task; do
  sbatch -Q -o /dev/null --mem 1 --wrap 'echo '"$task"' >> "$HOME"/ledger'; done
     while [ -n "$(squeue -h -u ${site.user} -o %i | head -1)" ]; do sleep 1; done`,
    'account',
    { input: `${tasks.join('\n')}\n`, deadlineMs: 1_800_000 },
  )

/**
 * Calls in the first seconds of a snakemake run over all tasks, while it submits at its full rate.
 */
const withSnakemake = async (
  site: SlurmSite,
  program: string,
  tasks: readonly string[],
  snakemakeSeconds: number,
): Promise<Measured & { submitted: number }> => {
  const { login, user } = site
  const file = join(login.home, 'Snakefile')
  const names = tasks.map((task) => `"${task}"`).join(', ')
  writeFileSync(
    login.see(file),
    `TASKS = [${names}]\nrule all:\n    input: expand("done/{task}", task=TASKS)\nrule note:\n    ` +
      `output: "done/{task}"\n    shell: "echo {wildcards.task} >> $HOME/ledger; touch {output}"\n`,
  )
  const options = [
    '--executor slurm',
    `--jobs ${tasks.length}`,
    '--latency-wait 60',
    '--quiet',
    '--default-resources',
  ]
  site.forgetCalls()
  const running = login.run(
    `cd; rm -rf done .snakemake; PATH=${site.commands}:$PATH timeout -k 5 ${snakemakeSeconds + 5} ` +
      `${program} -s ${file} ${options.join(' ')} slurm_account=lab slurm_partition=main mem_mb=10 ` +
      'runtime=5 >snakemake.log 2>&1',
    'account',
    { deadlineMs: 120_000, mayFail: true },
  )
  await sleep(snakemakeSeconds * 1_000)
  const calls = site.calls()
  const submitted = calls.filter((line) => line.startsWith('sbatch ')).length
  await running
  if (submitted === 0)
    throw new Error(
      `snakemake submitted nothing: ${(await login.run('tail -30 ~/snakemake.log', 'account')).stdout}`,
    )
  await login.run(`PATH=${site.commands}:$PATH scancel -u ${user}`, 'account', { mayFail: true })
  await site.idle()
  await login.run('rm -rf ~/ledger ~/done ~/.snakemake', 'account')
  return { submittedSeconds: 0, seconds: snakemakeSeconds, calls: calls.length, submitted }
}

export const slurmTasks: Benchmark = {
  about:
    `${fullCount} short tasks through Slurm: time to all submitted against a loop of sbatch, calls ` +
    'of the scheduler against snakemake',
  missing: async () =>
    rootMissing() ?? allMissing(await slurmMissing({ accounting: true }), pythonProgramMissing(snakemake)),
  async run({ rounds, tiny }) {
    const count = tiny ? 10 : fullCount
    const snakemakeSeconds = tiny ? 25 : fullSnakemakeSeconds
    const program = await prepareSnakemake()
    await using site = await startSlurm({
      accounting: true,
      slurmConf: ['MaxArraySize=10001', 'MaxJobCount=50000'],
    })
    const daemon = await startDaemon()
    try {
      const dag = bag(count)
      const tasks = Object.keys(dag)
      const planned = await planOn(daemon, {
        name: 'slurm-tasks',
        dag,
        command: (task) => ({
          entrypoint: 'sh',
          arguments: ['-c', `HOME=${site.login.home}; ${notingScript(task)}`],
        }),
        // The cluster has 8 CPUs. Waiting tasks are in its queue, not in ours.
        places: [{ host: site.login, driver: 'slurm', cores: count, configuration: { partition: 'main' } }],
        credentialRef: await importKey(daemon, 'bench', site.key.privateKey),
      })
      let number = 0
      const all: Record<'Orrery' | 'loop', Measured[]> = { Orrery: [], loop: [] }
      // Slurm once failed one element of 5,000 before its script began. A second attempt is
      // correct, and the ledger holds one start.
      let lost = 0
      const checkLosses = async (_: unknown, runId: string): Promise<void> => {
        const { run, activities } = await daemon.ok('GET', `/execution-runs/${runId}/?attempts=all`)
        if (run.status !== 'completed')
          throw new Error(`${runId} is ${String(run.status)}: ${String(run.failureReason)}`)
        const failed = activities.filter((activity: any) => activity.status !== 'completed')
        const own = failed.find((activity: any) => activity.failureClass !== 'infrastructure')
        if (own !== undefined || activities.length !== count + failed.length)
          throw new Error(
            `${runId} has ${String(activities.length)} attempts of ${count} activities; ${JSON.stringify(own)}`,
          )
        lost += failed.length
        if (failed.length > 0)
          process.stderr.write(
            `  ${failed.map((one: any) => one.failureReason).join('\n  ')}\n${nodeErrors(site).join('\n')}\n`,
          )
      }
      const noted = async (side: keyof typeof all, work: () => Promise<unknown>): Promise<number> => {
        const measured = await measure(side, site, tasks, work)
        all[side].push(measured)
        return measured.submittedSeconds
      }
      const others: (Measured & { submitted: number })[] = []
      for (let time = 0; time < Math.min(2, rounds); time++)
        others.push(await withSnakemake(site, program, tasks, snakemakeSeconds))
      const { cold, warm } = await interleaved(rounds, {
        Orrery: () => noted('Orrery', () => timedRun(daemon, planned, `run-${++number}`, 50, checkLosses)),
        loop: () => noted('loop', () => loop(site, tasks)),
      })
      const rows = (side: keyof typeof all, name: string) => {
        const [first, ...rest] = all[side] as [Measured, ...Measured[]]
        return [
          { name: `${name}: to all submitted`, unit: 's', cold: cold[side], warm: warm[side] },
          {
            name: `${name}: to all done`,
            unit: 's',
            cold: first.seconds,
            warm: rest.map(({ seconds }) => seconds),
          },
          {
            name: `${name}: calls of the scheduler`,
            unit: 'calls',
            cold: first.calls,
            warm: rest.map(({ calls }) => calls),
          },
          {
            name: `${name}: calls per minute`,
            unit: '/min',
            cold: perMinute(first),
            warm: rest.map(perMinute),
          },
        ]
      }
      const ours = all.Orrery.slice(1)
      const perTask = others.map(({ calls, submitted }) => calls / submitted)
      return {
        sides: [
          ...rows('Orrery', 'Orrery'),
          ...rows('loop', 'loop of sbatch'),
          {
            name: `snakemake, first ${snakemakeSeconds} s: jobs submitted`,
            unit: '',
            warm: others.map(({ submitted }) => submitted),
          },
          { name: 'snakemake: calls per minute', unit: '/min', warm: others.map(perMinute) },
          { name: 'snakemake: calls per task', unit: 'calls', warm: perTask },
        ],
        goals: [
          {
            what: 'speed to all submitted against the loop',
            unit: '×',
            measured: medianRatio(warm.loop, warm.Orrery),
            sense: 'least',
            goal: 10,
          },
          {
            what: 'calls per minute against snakemake',
            unit: '×',
            measured: median(ours.map(perMinute)) / median(others.map(perMinute)),
            sense: 'most',
            goal: 1 / 20,
          },
          {
            what: 'calls per task against snakemake',
            unit: '×',
            measured: median(ours.map(({ calls }) => calls / count)) / median(perTask),
            sense: 'most',
            goal: 1 / 20,
          },
        ],
        notes: [
          'with Orrery and the loop each task noted itself once in a ledger; submissions are timed ' +
            'by the controller’s log, calls are counted by wrappers of the commands',
          `snakemake is counted in its first ${snakemakeSeconds} s, while it submits the same ` +
            `${count} tasks, and ended then: each of its jobs starts Python on the node; Orrery is counted ` +
            'from the start to the end of its run',
          `elements that Slurm failed before they began, repeated by a second attempt: ${lost} of ${count * number}`,
          `two nodes of 4 CPUs by name, on ${String(navigator.hardwareConcurrency)} cores`,
        ],
        versions: {
          Slurm: versionOf(await site.slurm('sinfo --version')),
          snakemake: versions.snakemake,
          'snakemake-executor-plugin-slurm': versions.plugin,
        },
      }
    } finally {
      await daemon.stop()
    }
  },
}
