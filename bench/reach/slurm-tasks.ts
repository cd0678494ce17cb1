import { execFile, spawnSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { startSlurm, type SlurmSite } from '../../test/sites/slurm.ts'
import { startDaemon } from '../daemon.ts'
import { timedRun } from '../planned-run.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio } from '../rounds.ts'
import { bag, checkLedgers, importKey, notingScript, planOn, versionOf } from './places.ts'

const count = 1_000
/** A job of snakemake starts Python on its node, about two seconds of a core: of 1,000 that is an hour. Its calls are counted per minute. */
const snakemakeCount = 60
const versions = { snakemake: '9.27.1', plugin: '2.8.0' }

const cacheFolder = (): string =>
  process.getuid?.() === 0 ? '/var/cache/orrery' : join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'orrery')

/** The program `snakemake` of an environment with its Slurm plugin in the cache folder, made at first use (about a minute). */
const snakemake = async (): Promise<string> => {
  const folder = join(cacheFolder(), 'bench', `snakemake-${versions.snakemake}`)
  const program = join(folder, 'bin/snakemake')
  if (existsSync(program) && spawnSync(program, ['--version']).status === 0) return program
  process.stderr.write(`  installing snakemake ${versions.snakemake} into ${folder}\n`)
  const run = promisify(execFile)
  await run(existsSync('/usr/bin/python3') ? '/usr/bin/python3' : 'python3', ['-m', 'venv', '--clear', folder])
  const wanted = [`snakemake==${versions.snakemake}`, `snakemake-executor-plugin-slurm==${versions.plugin}`]
  await run(join(folder, 'bin/pip'), ['install', '--quiet', '--disable-pip-version-check', ...wanted])
  return program
}

interface Measured {
  /** From the start to the controller's last record of a submission. */
  submittedSeconds: number
  /** To the end of the last task. */
  seconds: number
  /** Of sbatch, squeue, sacct and the others. */
  calls: number
}

/** Seconds from `since` to the last submission that the controller logged (with milliseconds, this machine's clock). */
const lastSubmission = (site: SlurmSite, since: number): number => {
  const times = [...readFileSync(join(site.folder, 'log', 'slurmctld.log'), 'utf8').matchAll(/^\[([^\]]+)\] _slurm_rpc_submit_batch_job/gm)]
  const last = Math.max(...times.map(([, text]) => new Date(text!).getTime()))
  if (!(last >= since - 1_000)) throw new Error('the controller logged no submission')
  return (last - since) / 1_000
}

const measure = async (who: string, site: SlurmSite, tasks: readonly string[], work: () => Promise<unknown>): Promise<Measured> => {
  site.forgetCalls()
  const since = Date.now()
  await work()
  const seconds = (Date.now() - since) / 1_000
  const calls = site.calls().length
  await checkLedgers(who, [site.login], tasks)
  return { submittedSeconds: lastSubmission(site, since), seconds, calls }
}

const perMinute = ({ calls, seconds }: Measured): number => calls / (seconds / 60)

/** One sbatch after the other, as a user's script does it on the login node; then it waits by squeue every second. */
const loop = (site: SlurmSite, tasks: readonly string[]): Promise<unknown> =>
  site.login.run(
    `cd; PATH=${site.commands}:$PATH; while read -r task; do sbatch -Q -o /dev/null --mem 1 --wrap 'echo '"$task"' >> "$HOME"/ledger'; done
     while [ -n "$(squeue -h -u ${site.user} -o %i | head -1)" ]; do sleep 1; done`,
    'account',
    { input: `${tasks.join('\n')}\n`, deadlineMs: 1_800_000 },
  )

const withSnakemake = async (site: SlurmSite, program: string, tasks: readonly string[]): Promise<void> => {
  const file = join(site.login.home, 'Snakefile')
  const names = tasks.map((task) => `"${task}"`).join(', ')
  writeFileSync(
    site.login.see(file),
    `TASKS = [${names}]\nrule all:\n    input: expand("done/{task}", task=TASKS)\nrule note:\n    output: "done/{task}"\n    shell: "echo {wildcards.task} >> $HOME/ledger; touch {output}"\n`,
  )
  const options = ['--executor slurm', `--jobs ${count}`, '--latency-wait 60', '--quiet', '--default-resources']
  await site.login.run(
    `cd; rm -rf done .snakemake; PATH=${site.commands}:$PATH ${program} -s ${file} ${options.join(' ')} slurm_account=lab slurm_partition=main mem_mb=10 runtime=5 >snakemake.log 2>&1 || { tail -30 snakemake.log >&2; exit 1; }`,
    'account',
    { deadlineMs: 1_800_000 },
  )
}

export const slurmTasks: Benchmark = {
  about: `${count} short tasks through Slurm: time to all submitted against a loop of sbatch, calls of the scheduler per minute against snakemake`,
  async run({ rounds }) {
    const program = await snakemake()
    await using site = await startSlurm({ accounting: true, slurmConf: ['MaxArraySize=10001', 'MaxJobCount=50000'] })
    const daemon = await startDaemon()
    try {
      const dag = bag(count)
      const tasks = Object.keys(dag)
      const planned = await planOn(daemon, {
        name: 'slurm-tasks',
        dag,
        command: (task) => ({ entrypoint: 'sh', arguments: ['-c', `HOME=${site.login.home}; ${notingScript(task)}`] }),
        // The cluster has 8 CPUs; what waits, waits in its queue and not in ours.
        places: [{ host: site.login, driver: 'slurm', cores: count, configuration: { partition: 'main' } }],
        credentialRef: await importKey(daemon, 'bench', site.key.privateKey),
      })
      let number = 0
      const all: Record<'Orrery' | 'loop' | 'snakemake', Measured[]> = { Orrery: [], loop: [], snakemake: [] }
      const noted = async (side: keyof typeof all, names: readonly string[], work: () => Promise<unknown>): Promise<number> => {
        const measured = await measure(side, site, names, work)
        all[side].push(measured)
        return measured.submittedSeconds
      }
      const few = tasks.slice(0, snakemakeCount)
      const { cold, warm } = await interleaved(rounds, {
        Orrery: () => noted('Orrery', tasks, () => timedRun(daemon, planned, `run-${++number}`, 50)),
        loop: () => noted('loop', tasks, () => loop(site, tasks)),
        snakemake: () => noted('snakemake', few, () => withSnakemake(site, program, few)),
      })
      const rates = (side: keyof typeof all): number[] => all[side].slice(1).map(perMinute)
      const rows = (side: keyof typeof all, name: string) => [
        { name: `${name}: to all submitted`, unit: 's', cold: cold[side], warm: warm[side] },
        { name: `${name}: to all done`, unit: 's', cold: all[side][0]!.seconds, warm: all[side].slice(1).map(({ seconds }) => seconds) },
        {
          name: `${name}: calls of the scheduler`,
          unit: 'calls',
          cold: all[side][0]!.calls,
          warm: all[side].slice(1).map(({ calls }) => calls),
        },
        { name: `${name}: calls per minute`, unit: '/min', cold: perMinute(all[side][0]!), warm: rates(side) },
      ]
      return {
        sides: [...rows('Orrery', 'Orrery'), ...rows('loop', 'loop of sbatch'), ...rows('snakemake', `snakemake, ${snakemakeCount} tasks`)],
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
            measured: median(rates('Orrery')) / median(rates('snakemake')),
            sense: 'most',
            goal: 1 / 20,
          },
        ],
        notes: [
          'each task noted itself once in a ledger on every side; submissions are timed by the controller’s log, calls are counted by wrappers of the commands',
          `snakemake does ${snakemakeCount} tasks, since each of its jobs starts Python on the node; what is compared is its rate`,
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
