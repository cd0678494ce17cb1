import { expect } from '@jest/globals'
import { existsSync, mkdtempSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openHttp } from '../../src/clients/http.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { Intent, RuntimeDriver, TaskState } from '../../src/drivers/runtime/contract/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { LinkError, type SiteShell } from '../../src/shell/site-shell.ts'
import { readOrUndefined } from '../../src/embedded/processes.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { plainIntent } from './intent.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, afterEach, beforeAll, describe, test } = needs(...sites.slurm)

/** What happens at real clusters, done to a real one. */

const minutes = 60_000
const sh = (script: string, ...args: string[]): string[] => ['/bin/sh', '-c', script, 'sh', ...args]

let site: SlurmSite
/**
 * Forgets ended jobs after seconds, has no accounting, and takes a silent node for lost after
 * seconds.
 */
let forgetful: SlurmSite
/**
 * Nobody disturbs it: for what takes minutes of waiting, which goes on from the beginning, beside
 * the other tests.
 */
let calm: SlurmSite
let count = 0
const http = openHttp({ addressAllowed: () => true })
const closing: (() => Promise<void>)[] = []
const meanwhile: { limit?: Promise<TaskState>; answers?: Promise<void> } = {}

beforeAll(async () => {
  ;[site, forgetful, calm] = await Promise.all([
    startSlurm({ accounting: true, rest: true }),
    startSlurm({ minJobAgeSeconds: 2, slurmdTimeoutSeconds: 10 }),
    startSlurm(),
  ])
  meanwhile.limit = reachesTheLimit()
  meanwhile.answers = losesAnswers()
  for (const work of Object.values(meanwhile)) work.catch(() => undefined)
}, 10 * minutes)
afterAll(async () => {
  http.close()
  await Promise.allSettled(Object.values(meanwhile))
  await Promise.all([site?.stop(), forgetful?.stop(), calm?.stop()])
}, 8 * minutes)
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
  for (const command of ['squeue', 'sacct', 'sbatch', 'scancel', 'scontrol', 'sinfo'] as const)
    for (const one of [site, forgetful]) one.disturb(command, undefined)
}, minutes)

const shellOf = (at: SlurmSite): SiteShell =>
  openLocalShell({
    environment: { PATH: `${at.commands}:/usr/local/bin:/usr/bin:/bin`, SLURM_CONF: at.conf },
  })

const open = (
  at: SlurmSite,
  configuration: Record<string, unknown> = {},
  more: {
    root?: string
    wrap?: (shell: SiteShell) => SiteShell
    rest?: boolean
    pollMilliseconds?: number
    ends?: typeof closing
  } = {},
): { driver: RuntimeDriver; intent: (argv: string[], more?: Partial<Intent>) => Intent; root: string } => {
  const root = more.root ?? mkdtempSync(join(at.scratch, 'root-'))
  const shell = shellOf(at)
  const driver = openSlurmDriver({
    shell: more.wrap?.(shell) ?? shell,
    root,
    runtime: 'cluster',
    taskVariable: 'ORRERY_TASK',
    pollMilliseconds: more.pollMilliseconds ?? 500,
    configuration: { settleSeconds: 4, commandSeconds: 5, claimSeconds: 1, ...configuration },
    ...(more.rest === true
      ? { slurmrestd: { http, url: at.restUrl ?? '', user: 'root', token: () => at.token('root') } }
      : {}),
  })
  ;(more.ends ?? closing).push(async () => {
    await driver.close()
    await shell.close()
  })
  const intent = (argv: string[], own: Partial<Intent> = {}): Intent => {
    const name = `failures-${++count}`
    return { ...plainIntent(name, join(root, 'work', name, '1'), argv), ...own }
  }
  return { driver, intent, root }
}

const submit = async (driver: RuntimeDriver, ...intents: Intent[]): Promise<string[]> =>
  (await driver.submit(intents)).map((outcome) => {
    if (!outcome.ok) throw outcome.error
    return outcome.externalId
  })
const stateOf = async (driver: RuntimeDriver, { name }: Intent): Promise<TaskState> =>
  (await driver.find([name])).get(name) ?? { state: 'unknown' }
const until = async (
  driver: RuntimeDriver,
  intent: Intent,
  state: TaskState['state'],
  seconds = 90,
): Promise<TaskState> => {
  const end = performance.now() + seconds * 1000
  for (;;) {
    const found = await stateOf(driver, intent)
    if (found.state === state) return found
    if (performance.now() > end) throw new Error(`${intent.name} is ${JSON.stringify(found)}, not ${state}`)
    await sleep(200)
  }
}
const seen = async (what: string, now: () => boolean, seconds = 90): Promise<void> => {
  for (const end = performance.now() + seconds * 1000; !now(); await sleep(50))
    if (performance.now() > end) throw new Error(`${what}: not within ${seconds} s`)
}
/**
 * A controller that is killed before it wrote its state down has never heard of its jobs; one that
 * saved a moment ago may wait for the next change.
 */
const savedState = async (at: SlurmSite, job: string): Promise<void> => {
  const from = Date.now()
  for (
    let tries = 0;
    (statSync(join(at.folder, 'state', 'job_state'), { throwIfNoEntry: false })?.mtimeMs ?? 0) < from;
    tries++
  ) {
    if (tries === 300) throw new Error('slurmctld did not save its jobs within 60 s')
    if (tries % 10 === 0) await at.slurm(`scontrol update jobid=${job} comment=seen-${tries}`)
    await sleep(200)
  }
}
/** Kills a task and its supervisor at once: neither writes a record of the end. */
const killAll = (root: string, name: string): void => {
  const texts = (pid: string): string =>
    ['cmdline', 'environ']
      .map((file) => readOrUndefined(() => readFileSync(`/proc/${pid}/${file}`, 'latin1')))
      .join()
  for (const pid of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    const text = texts(pid)
    const ours =
      text.includes(`ORRERY_TASK=${name}\0`) || (text.includes(root) && text.includes('\0foreground\0'))
    if (ours && Number(pid) !== process.pid) process.kill(Number(pid), 'SIGKILL')
  }
}
const over = (driver: RuntimeDriver, ...intents: Intent[]): Promise<void> =>
  new Promise((resolve, reject) => {
    const left = new Set(intents.map(({ name }) => name))
    const late = setTimeout(
      () => reject(new Error(`${[...left].join(', ')}: no end within 5 minutes`)),
      5 * minutes,
    )
    driver.watch([...left], (name) => {
      left.delete(name)
      if (left.size > 0) return
      clearTimeout(late)
      resolve()
    })
  })

/** Slurm counts time limits in minutes, and looks at them every half. */
async function reachesTheLimit(): Promise<TaskState> {
  const ends: typeof closing = []
  try {
    const { driver, intent } = open(calm, {}, { ends })
    const long = intent(['sleep', '300'], { expectedSeconds: 10 })
    await submit(driver, long)
    await over(driver, long)
    return (await driver.collect(long.name)).state
  } finally {
    for (const end of ends) await end()
  }
}

async function losesAnswers(): Promise<void> {
  const root = mkdtempSync(join(calm.scratch, 'root-'))
  const ledger = join(root, 'ledger')
  const names: Intent[] = []
  /** @returns whether a submit has as many scripts. */
  const lose = async (lost: number, moment: 'before' | 'after'): Promise<boolean> => {
    const ends: typeof closing = []
    let calls = 0
    let cut = false
    const wrap = (shell: SiteShell): SiteShell => ({
      ...shell,
      run: async (script, options) => {
        const mine = calls++ === lost
        if (mine) cut = true
        if (mine && moment === 'before') throw new LinkError('link', 'cut')
        const answer = await shell.run(script, options)
        if (mine) throw new LinkError('link', 'cut')
        return answer
      },
    })
    const { driver, intent } = open(calm, {}, { root, ends, wrap })
    const pair = ['a', 'b'].map((which) =>
      intent(sh('echo "$1" >> "$2"', `${moment}-${lost}-${which}`, ledger)),
    )
    names.push(...pair)
    for (let tries = 0; ; tries++) {
      const outcomes = await driver.submit(pair).catch(() => undefined)
      if (outcomes?.every(({ ok }) => ok) === true) break
      if (tries > 200) throw new Error(`never accepted: ${JSON.stringify(outcomes)}`)
      await sleep(300)
    }
    const within = calls
    await over(driver, ...pair)
    for (const end of ends) await end()
    return cut && lost < within
  }
  for (let from = 0, more = true; more; from += 4) {
    if (from > 40) throw new Error('a submit has more than forty scripts')
    const some = [from, from + 1, from + 2, from + 3].flatMap((lost) => [
      lose(lost, 'before'),
      lose(lost, 'after'),
    ])
    more = (await Promise.all(some)).every((cut) => cut)
  }
  const lines = readFileSync(ledger, 'utf8').trim().split('\n')
  expect(lines).toHaveLength(names.length)
  expect(new Set(lines).size).toBe(names.length)
}

describe('silence', () => {
  test(
    'the controller is killed in the middle: the task goes on, its end is told without it, and all is well when it is back',
    async () => {
      const { driver, intent, root } = open(site)
      const gate = join(root, 'gate')
      const [short, long] = [
        intent(sh('while [ ! -e "$1" ]; do sleep 0.1; done; exit 4', gate)),
        intent(['sleep', '300']),
      ]
      const [job = ''] = await submit(driver, short, long)
      await until(driver, short, 'running')
      await until(driver, long, 'running')
      await savedState(site, job)
      await site.kill('slurmctld')
      try {
        const end = over(driver, short)
        expect(await stateOf(driver, long)).toMatchObject({ state: 'running' })
        await site.slurm(`touch ${gate}`)
        await end
        expect((await driver.collect(short.name)).state).toMatchObject({
          state: 'ended',
          exitCode: 4,
          reason: 'exited',
        })
        expect(await driver.submit([intent(['true'])]).catch((error: unknown) => error)).toMatchObject([
          { ok: false, error: { trouble: 'unknown' } },
        ])
      } finally {
        await site.start('slurmctld')
      }
      expect(await stateOf(driver, long)).toMatchObject({ state: 'running' })
      await driver.cancel([long.name], 1)
      expect(await stateOf(driver, long)).toMatchObject({ state: 'ended', reason: 'cancelled' })
    },
    4 * minutes,
  )

  test.each(['echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1', 'sleep 1000'])(
    'squeue and sacct fail or hang: nothing ends, and nothing is asked twice at a time: %s',
    async (failure) => {
      const { driver, intent } = open(site, { commandSeconds: 1 })
      const task = intent(['sleep', '300'])
      await submit(driver, task)
      // Perhaps a moment before the task has a record of its own.
      await until(driver, task, 'running')
      const ends: string[] = []
      driver.watch([task.name], (name) => ends.push(name))
      site.disturb('squeue', failure)
      site.disturb('sacct', failure)
      await site.slurm(
        `scancel ${/^\d+/.exec(((await stateOf(driver, task)) as { externalId: string }).externalId)?.[0] ?? ''}`,
      )
      await sleep(6000)
      expect((await stateOf(driver, task)).state).toBe('running')
      expect(ends).toEqual([])
      site.disturb('squeue', undefined)
      expect(await until(driver, task, 'lost')).toMatchObject({ cause: expect.stringContaining('CANCELLED') })
      site.disturb('sacct', undefined)
    },
    4 * minutes,
  )

  test(
    'a job that was forgotten, without accounting: its own record counts, and without one it is waited for, until a cancel',
    async () => {
      const { driver, intent, root } = open(forgetful)
      const [quick, taken] = [intent(['true']), intent(['sleep', '300'])]
      await submit(driver, quick, taken)
      await until(driver, taken, 'running')
      forgetful.disturb('squeue', 'exit 1')
      const { externalId } = (await stateOf(driver, taken)) as { externalId: string }
      killAll(root, taken.name)
      const known = async (): Promise<boolean> =>
        (await forgetful.slurm(`squeue -h -t all -j ${externalId} 2>/dev/null || true`)).trim() !== ''
      for (let tries = 0; await known(); tries++) {
        if (tries === 300) throw new Error(`slurmctld still knows ${externalId} after 150 s`)
        await sleep(500)
      }
      expect((await stateOf(driver, taken)).state).toBe('running')
      forgetful.disturb('squeue', undefined)
      expect(await stateOf(driver, quick)).toMatchObject({ state: 'ended', exitCode: 0 })
      await stateOf(driver, taken)
      await sleep(6000)
      expect(await stateOf(driver, taken)).toMatchObject({
        state: 'running',
        cause: expect.stringMatching(/does not mention job/),
      })
      await driver.cancel([taken.name], 1)
      const cancelled = await stateOf(driver, taken)
      expect(cancelled).toMatchObject({ state: 'ended', reason: 'cancelled' })
      // What was told once stays so, also for another driver.
      expect(await stateOf(open(forgetful, {}, { root }).driver, taken)).toEqual(cancelled)
    },
    5 * minutes,
  )

  /** A list that lacks every job of ours; by its id a job is found. */
  const lacking = (at: SlurmSite): string =>
    `case " $* " in *' -j '*) ;; *) SLURM_CONF=${at.conf} /usr/bin/squeue "$@" | grep -v orrery-; exit 0 ;; esac`

  test.each(['hidden', 'unlisted', 'denied'] as const)(
    'the site answers, and does not mention the job (%s), with accounting and without: it runs once, to its end',
    async (how) => {
      for (const at of [site, forgetful]) {
        const { driver, intent, root } = open(at, { settleSeconds: 1 })
        const [ledger, gate] = [join(root, 'ledger'), join(root, 'gate')]
        const script = 'echo begun >> "$1"; while [ ! -e "$2" ]; do sleep 0.1; done; exit 4'
        const task = intent(sh(script, ledger, gate))
        await submit(driver, task)
        await until(driver, task, 'running')
        await seen('its start', () => existsSync(ledger))
        if (how === 'hidden') await at.slurm('scontrol update PartitionName=main Hidden=YES')
        else at.disturb('squeue', lacking(at))
        if (how === 'denied') {
          const denies = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
          at.disturb('squeue', `case " $* " in *' -j '*) ${denies} ;; *) exit 0 ;; esac`)
          at.disturb('scontrol', `case " $* " in *' job '*) ${denies} ;; esac`)
          at.disturb('sacct', 'exit 0')
        }
        try {
          const ends: string[] = []
          driver.watch([task.name], (name) => ends.push(name))
          await sleep(8000)
          expect((await stateOf(driver, task)).state).toBe('running')
          expect(ends).toEqual([])
        } finally {
          await at.slurm('scontrol update PartitionName=main Hidden=NO')
        }
        writeFileSync(gate, '')
        expect(await until(driver, task, 'ended')).toMatchObject({ exitCode: 4 })
        expect(readFileSync(ledger, 'utf8')).toBe('begun\n')
        for (const command of ['squeue', 'scontrol', 'sacct'] as const) at.disturb(command, undefined)
      }
    },
    5 * minutes,
  )
})

describe('sbatch that a site wraps', () => {
  test.each([
    [
      'a banner before and behind',
      'echo "Welcome"; echo 99; SLURM_CONF=$CONF /usr/bin/sbatch "$@"; echo "Bye"; exit 0',
    ],
    ['no id', 'SLURM_CONF=$CONF /usr/bin/sbatch "$@" > /dev/null; echo "Thank you"; exit 0'],
    [
      'the words for people',
      'SLURM_CONF=$CONF /usr/bin/sbatch "$@" | sed "s/^/Submitted batch job /"; exit 0',
    ],
    ['a code of its own', 'SLURM_CONF=$CONF /usr/bin/sbatch "$@"; echo "quota: no answer" >&2; exit 7'],
  ])(
    'with %s: one job, known at once, ended by a cancel',
    async (_words, wrapper) => {
      const { driver, intent, root } = open(site)
      site.disturb('sbatch', `CONF=${site.conf}; ${wrapper}`)
      const ledger = join(root, 'ledger')
      const task = intent(sh('echo begun >> "$1"; sleep 300', ledger))
      const [id = ''] = await submit(driver, task)
      expect(id).toMatch(/^\d+_0$/)
      await until(driver, task, 'running')
      await seen('its start', () => existsSync(ledger))
      await driver.cancel([task.name], 1)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', reason: 'cancelled' })
      expect(readFileSync(ledger, 'utf8')).toBe('begun\n')
      expect((await site.slurm(`squeue -h -j ${id.replace('_0', '')} 2>/dev/null || true`)).trim()).toBe('')
    },
    3 * minutes,
  )
})

test(
  'a cluster that forbids --mem: the refusal says how to leave it out, and without it tasks run',
  async () => {
    site.disturb(
      'sbatch',
      'case " $* " in *" --mem"*) echo "sbatch: error: --mem is not allowed here" >&2; exit 1 ;; esac',
    )
    const megabytes = { memoryBytes: 64 * 1024 ** 2 }
    const asking = open(site)
    expect(await asking.driver.submit([asking.intent(['true'], megabytes)])).toMatchObject([
      { ok: false, error: { message: expect.stringContaining('configuration.requests {memory: false}') } },
    ])
    const without = open(site, { requests: { memory: false } })
    for (const [{ driver }, task] of [
      [without, without.intent(['true'], megabytes)],
      [asking, asking.intent(['true'], { memoryBytes: 0 })],
    ] as const) {
      await submit(driver, task)
      expect(await until(driver, task, 'ended')).toMatchObject({ exitCode: 0, reason: 'exited' })
    }
  },
  3 * minutes,
)

describe('held', () => {
  test(
    'by an operator: taken out of the queue, lost in those words, and no job is left',
    async () => {
      const { driver, intent } = open(site, { requeue: true })
      const task = intent(['sleep', '300'])
      const [id = ''] = await submit(driver, task)
      await until(driver, task, 'running')
      await sleep(1500)
      await site.slurm(`scontrol requeuehold ${id}`)
      const lost = await until(driver, task, 'lost')
      expect(lost).toMatchObject({ cause: expect.stringMatching(/held|HOLD/i) })
      expect((await site.slurm(`squeue -h -t PENDING -j ${id} 2>/dev/null || true`)).trim()).toBe('')
    },
    4 * minutes,
  )

  test(
    'by its user: it waits and says so; released, it runs once',
    async () => {
      const { driver, intent, root } = open(site)
      const ledger = join(root, 'ledger')
      const blockers = Array.from({ length: 8 }, () => intent(['sleep', '300']))
      await submit(driver, ...blockers)
      const task = intent(sh('echo begun >> "$1"', ledger))
      const [id = ''] = await submit(driver, task)
      await site.slurm(`scontrol uhold ${id}`)
      await driver.cancel(
        blockers.map(({ name }) => name),
        0,
      )
      await sleep(4000)
      expect(await stateOf(driver, task)).toMatchObject({
        state: 'queued',
        cause: expect.stringContaining('JobHeldUser'),
      })
      await site.slurm(`scontrol release ${id}`)
      await until(driver, task, 'ended')
      expect(readFileSync(ledger, 'utf8')).toBe('begun\n')
    },
    4 * minutes,
  )
})

describe('taken away', () => {
  test(
    'by another’s scancel, while it runs and while it waits: lost with the words, and what waited never starts',
    async () => {
      const { driver, intent, root } = open(site)
      const marker = join(root, 'ran')
      const [running, waiting] = [intent(['sleep', '300']), intent(sh('echo > "$1"', marker), { cores: 4 })]
      const blockers = Array.from({ length: 8 }, () => intent(['sleep', '300']))
      await submit(driver, running, ...blockers.slice(1))
      await until(driver, running, 'running')
      await submit(driver, waiting)
      expect(await until(driver, waiting, 'queued')).toMatchObject({
        externalId: expect.stringMatching(/^\d+_0$/),
      })
      for (const one of [running, waiting])
        await site.slurm(`scancel ${((await stateOf(driver, one)) as { externalId: string }).externalId}`)
      await over(driver, running, waiting)
      for (const one of [running, waiting])
        expect(await stateOf(driver, one)).toMatchObject({ state: 'lost' })
      expect(await stateOf(driver, running)).toMatchObject({ cause: expect.stringContaining('CANCELLED') })
      await driver.cancel(
        blockers.slice(1).map(({ name }) => name),
        1,
      )
      await sleep(2000)
      expect(existsSync(marker)).toBe(false)
      await submit(driver, waiting)
      expect(await stateOf(driver, waiting)).toMatchObject({ state: 'lost' })
    },
    4 * minutes,
  )

  test(
    'with its node, set down by an operator or dead',
    async () => {
      const { driver, intent } = open(forgetful, { settleSeconds: 2 })
      // Too large for one node together.
      const [down, dead] = [intent(['sleep', '300'], { cores: 3 }), intent(['sleep', '300'], { cores: 3 })]
      await submit(driver, down, dead)
      const nodeOf = async (task: Intent): Promise<SlurmSite['nodes'][number]> => {
        await until(driver, task, 'running')
        const { externalId } = (await stateOf(driver, task)) as { externalId: string }
        const name = (await forgetful.slurm(`squeue -h -j ${externalId} -o %N`)).trim()
        const node = forgetful.nodes.find((one) => one.name === name)
        if (node === undefined) throw new Error(`no node ${name}`)
        return node
      }
      const [one, other] = [await nodeOf(down), await nodeOf(dead)]
      await forgetful.slurm(`scontrol update nodename=${one.name} state=down reason=test`)
      await other.crash()
      for (const task of [down, dead])
        expect(await until(driver, task, 'lost', 150)).toMatchObject({
          cause: expect.stringMatching(/NODE_FAIL|no longer knows|stopped/),
        })
      await forgetful.slurm(`scontrol update nodename=${one.name} state=resume || true`)
      await other.boot()
      await other.startSlurmd()
      await forgetful.idle()
    },
    8 * minutes,
  )

  test(
    'for a more urgent job: displaced, lost with that word',
    async () => {
      const { driver, intent } = open(site)
      const task = intent(['sleep', '300'], { site: { partition: 'spare' } })
      await submit(driver, task)
      await until(driver, task, 'running')
      await site.slurm('sbatch -p main -n8 -o /dev/null --wrap "sleep 3"')
      expect(await until(driver, task, 'lost')).toMatchObject({
        cause: expect.stringMatching(/PREEMPTED|CANCELLED/),
      })
    },
    3 * minutes,
  )

  test(
    'and put back into the queue: not without leave; with it the task runs again, once at a time, and ends once',
    async () => {
      const strict = open(site)
      const once = strict.intent(['sleep', '300'])
      const [id = ''] = await submit(strict.driver, once)
      await until(strict.driver, once, 'running')
      expect(await site.slurm(`scontrol requeue ${id} 2>&1 || true`)).toContain('disabled')
      await strict.driver.cancel([once.name], 1)

      const { driver, intent, root } = open(site, { requeue: true })
      const ledger = join(root, 'ledger')
      const task = intent(
        sh('echo begun >> "$1"; if [ "$(wc -l < "$1")" -gt 1 ]; then exit 6; fi; sleep 300', ledger),
      )
      const [again = ''] = await submit(driver, task)
      await until(driver, task, 'running')
      const begun = (times: number) => () =>
        existsSync(ledger) && readFileSync(ledger, 'utf8') === 'begun\n'.repeat(times)
      await seen('the first start in the ledger', begun(1))
      // Within the second of its start or of its requeue Slurm has the credentials of both mixed
      // up, and a job that is still ending keeps its pause.
      await sleep(1500)
      await site.slurm(`scontrol requeue ${again}`)
      const hurrying = setInterval(
        () => void site.slurm(`scontrol update jobid=${again} starttime=now || true`).catch(() => undefined),
        2000,
      )
      await seen('the second start in the ledger', begun(2), 150).finally(() => clearInterval(hurrying))
      expect(await until(driver, task, 'ended', 200)).toMatchObject({ exitCode: 6, reason: 'exited' })
      expect(readFileSync(ledger, 'utf8')).toBe('begun\nbegun\n')
    },
    6 * minutes,
  )

  test(
    'at the site’s time limit, and for memory by the scheduler’s word',
    async () => {
      const { driver, intent } = open(site)
      const large = intent(['sleep', '300'])
      await submit(driver, large)
      await until(driver, large, 'running')
      const { externalId } = (await stateOf(driver, large)) as { externalId: string }
      site.disturb(
        'squeue',
        `SLURM_CONF=${site.conf} /usr/bin/squeue "$@" | sed 's/|CANCELLED|/|OUT_OF_MEMORY|/'; exit 0`,
      )
      await site.slurm(`scancel ${externalId}`)
      expect(await until(driver, large, 'ended')).toMatchObject({ reason: 'memory' })
      expect(await meanwhile.limit).toMatchObject({ state: 'ended', reason: 'walltime' })
    },
    6 * minutes,
  )
})

describe('refused', () => {
  test(
    'with Slurm’s own words, or before it is asked',
    async () => {
      const { driver, intent } = open(site)
      const cases: [Partial<Intent>, RegExp][] = [
        [{ site: { partition: 'nowhere' } }, /[Ii]nvalid partition/],
        [{ site: { partition: 'drained' } }, /not available/],
        [{ site: { constraint: 'unheard-of' } }, /[Ii]nvalid feature/],
        [{ site: { reservation: 'none-such' } }, /reservation/],
        [{ site: { partition: 'short' }, expectedSeconds: 3600 }, /3600 s.*300 s/],
        [{ cores: 64 }, /64 cores.*4 cores/],
      ]
      const outcomes = await driver.submit(cases.map(([more]) => intent(['true'], more)))
      for (const [position, [, words]] of cases.entries())
        expect(outcomes[position]).toMatchObject({
          ok: false,
          error: { trouble: 'refused', message: expect.stringMatching(words) },
        })
    },
    2 * minutes,
  )
})

test(
  'two tasks of one node see the GPU each that Slurm gave their jobs',
  async () => {
    const { driver, intent } = open(calm)
    const script = 'echo "$CUDA_VISIBLE_DEVICES"; while [ ! -e go ]; do sleep 0.1; done'
    // Without a request the first task gets all memory of the node, and the second one waits.
    const memoryBytes = 64 * 1024 ** 2
    const tasks = [1, 2].map(() => intent(['/bin/sh', '-c', script], { gpus: 1, memoryBytes }))
    await submit(driver, ...tasks)
    for (const task of tasks) await until(driver, task, 'running')
    for (const { directory } of tasks) writeFileSync(join(directory, 'go'), '')
    await over(driver, ...tasks)
    const told = tasks.map(async ({ name }) =>
      (await driver.logs(name, 'stdout', { tail: 100 })).bytes.toString(),
    )
    expect((await Promise.all(told)).sort()).toEqual(['0\n', '1\n'])
  },
  2 * minutes,
)

test(
  'an answer is lost at each script of a submit, once after, once before it ran: submitted again, each task runs once',
  () => meanwhile.answers,
  10 * minutes,
)

describe('how much it costs', () => {
  test(
    'a thousand tasks are one call of sbatch; their states one call of squeue an interval',
    async () => {
      const { driver, intent } = open(site, {}, { pollMilliseconds: 2000 })
      const tasks = Array.from({ length: 1000 }, () => intent(['sleep', '300']))
      site.forgetCalls()
      await submit(driver, ...tasks)
      expect(site.calls().filter((line) => line.startsWith('sbatch'))).toHaveLength(1)
      site.forgetCalls()
      const stop = driver.watch(
        tasks.map(({ name }) => name),
        () => undefined,
      )
      await sleep(8000)
      stop()
      expect(site.calls().length).toBeLessThanOrEqual(6)
      await driver.cancel(
        tasks.map(({ name }) => name),
        0,
      )
      for (const state of (await driver.find(tasks.map(({ name }) => name))).values())
        expect(state).toMatchObject({ state: 'ended', reason: 'cancelled' })
    },
    6 * minutes,
  )
})

describe('over slurmrestd', () => {
  test(
    'submits, watches, cancels and refuses as by commands',
    async () => {
      const { driver, intent } = open(site, {}, { rest: true })
      site.forgetCalls()
      const [quick, long] = [intent(sh('echo done; exit 3')), intent(['sleep', '300'])]
      const ids = await submit(driver, quick, long)
      expect(ids).toEqual([expect.stringMatching(/^\d+_0$/), expect.stringMatching(/^\d+_1$/)])
      await over(driver, quick)
      expect((await driver.collect(quick.name)).state).toMatchObject({ exitCode: 3 })
      await until(driver, long, 'running')
      await driver.cancel([long.name], 1)
      expect(await stateOf(driver, long)).toMatchObject({ state: 'ended', reason: 'cancelled' })
      expect(await driver.submit([intent(['true'], { site: { partition: 'nowhere' } })])).toMatchObject([
        { ok: false, error: { trouble: 'refused', message: expect.stringMatching(/partition/i) } },
      ])
      expect(site.calls().filter((line) => !line.startsWith('scontrol token'))).toEqual([])
    },
    3 * minutes,
  )
})
