import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { openSlurmCommands } from '../../src/drivers/runtime/slurm/commands.ts'
import type { SlurmRequest } from '../../src/drivers/runtime/slurm/request.ts'
import { NoRoom } from '../../src/drivers/runtime/batch/scheduler.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { until } from '../failures/programs.ts'
import { runFolder } from '../support/run-folder.ts'
import { runsOf } from '../support/share.ts'
import { plainIntent } from './intent.ts'

let folder: string
let shell: SiteShell

/** A command on PATH in the place of Slurm's. */
const command = (name: string, script: string): void => {
  writeFileSync(join(folder, 'bin', name), `#!/bin/sh\n${script}\n`)
  chmodSync(join(folder, 'bin', name), 0o755)
}
const scheduler = () =>
  openSlurmCommands({ shell, root: async () => folder, requeue: false, deadlineSeconds: 20 })
const array = (name: string, request: Partial<SlurmRequest> = {}) => ({
  name,
  request: { cores: 1, gpus: 0, ...request },
  tasks: ['t'],
})

beforeAll(() => {
  folder = mkdtempSync(join(runFolder(), 'orrery-slurm-commands-'))
  mkdirSync(join(folder, 'bin'))
  shell = openLocalShell({ environment: { PATH: `${join(folder, 'bin')}:/usr/bin:/bin` } })
})
afterAll(async () => {
  await shell.close()
  rmSync(folder, { recursive: true, force: true })
})

test('strings of metacharacters reach sbatch as they are, in every value; nothing of them is executed', async () => {
  const bait = join(folder, 'bait')
  const pieces = [
    '$(',
    '`',
    ')',
    ';',
    '&',
    '|',
    '>',
    '<',
    '\\',
    "'",
    '"',
    '*',
    '?',
    '~',
    '!',
    '#',
    '{',
    '}',
    '$HOME',
    '${IFS}',
    ' ',
    '-',
    '=',
    '%s',
    'é',
    '😀',
  ]
  const hostile = fc
    .array(fc.constantFrom(...pieces, `touch ${bait}`, `>${bait}`, '\n', '\t'), {
      minLength: 1,
      maxLength: 12,
    })
    .map((parts) => parts.join(''))
  const strings = fc.sample(hostile, { seed: 20261121, numRuns: runsOf(750, 5_000) })
  command(
    'sbatch',
    `for each; do printf '%s\\0' "$each"; done > "\${0%/bin/*}/arrays/$(printf '%s\\n' "$@" | sed ` +
      `-n 's/^--job-name=//p' | tail -n 1)/words"\necho 12`,
  )
  const words = ['partition', 'account', 'qos', 'reservation', 'constraint'] as const
  const groups = Array.from({ length: strings.length / words.length }, (_, at) =>
    strings.slice(at * words.length, (at + 1) * words.length),
  )
  const work = async (mine: Iterable<[number, string[]]>): Promise<void> => {
    for (const [at, values] of mine) {
      const name = `orrery-${at}`
      mkdirSync(join(folder, 'arrays', name), { recursive: true })
      const request = Object.fromEntries(words.map((word, position) => [word, values[position] ?? '']))
      expect(await scheduler().submit(array(name, request), [0])).toBe('12')
      const seen = readFileSync(join(folder, 'arrays', name, 'words'), 'utf8').split('\0')
      for (const [position, word] of words.entries()) expect(seen).toContain(`--${word}=${values[position]}`)
      expect(readFileSync(join(folder, 'arrays', name, 'job'), 'utf8')).toBe('12\n')
    }
  }
  const queue = groups.entries()
  await Promise.all([work(queue), work(queue), work(queue)])
  expect(existsSync(bait)).toBe(false)
}, 300_000)

test('what sbatch says decides what is to be done', async () => {
  mkdirSync(join(folder, 'arrays', 'orrery-x'), { recursive: true })
  const says = async (script: string): Promise<unknown> => {
    command('sbatch', script)
    return scheduler()
      .submit(array('orrery-x'), [0])
      .catch((error: unknown) => error)
  }
  const error = (text: string): string => `echo 'sbatch: error: ${text}' >&2; exit 1`
  expect(await says(error('Batch job submission failed: Invalid partition name specified'))).toMatchObject({
    trouble: 'refused',
    message: expect.stringContaining('Invalid partition name specified'),
  })
  for (const text of [
    'Unable to contact slurm controller (connect failure)',
    'Batch job submission failed: Socket timed out on send/recv operation',
    'Batch job submission failed: I/O error writing script/environment to file',
    'Batch job submission failed: Invalid authentication credential',
    'Batch job submission failed: Unspecified error',
  ])
    expect(await says(error(text))).toMatchObject({ trouble: 'unknown' })
  const [own, code] = [
    'You must always specify a type of GPU',
    'Batch job submission failed: Unspecified error',
  ]
  expect(await says(`echo 'sbatch: error: ${own}' >&2; ${error(code)}`)).toMatchObject({
    trouble: 'refused',
    message: expect.stringContaining(own),
  })
  expect(await says(error('QOSMaxSubmitJobPerUserLimit'))).toBeInstanceOf(NoRoom)
  // It may have taken the array all the same.
  const job = join(folder, 'arrays', 'orrery-x', 'job')
  const babbles = ['exit 0', 'exit 3', `echo '17|0|orrery-of-somebody'`, `echo 'Submitted batch job 17'`]
  command('squeue', 'exit 1')
  for (const babble of babbles) expect(await says(babble)).toMatchObject({ trouble: 'unknown' })
  expect(existsSync(job)).toBe(false)
  // Then the job with the array's name counts, if there is one.
  command('squeue', 'printf "%s\\n" "$@" > "${0%/*}/asked"; printf "31\\n32\\n"')
  for (const babble of babbles) expect(await says(babble)).toMatchObject({ trouble: 'unknown' })
  command('squeue', 'printf "%s\\n" "$@" > "${0%/*}/asked"; printf "31\\n31\\n"')
  for (const babble of [...babbles, `echo 'Quota:'; echo 500; echo 'Have a nice day'`, error('the prolog')]) {
    rmSync(job, { force: true })
    expect(await says(babble)).toBe('31')
    expect(readFileSync(job, 'utf8')).toBe('31\n')
  }
  const asked = readFileSync(join(folder, 'bin', 'asked'), 'utf8').split('\n')
  expect(asked).toEqual(expect.arrayContaining(['--all', '-u', '-n', 'orrery-x']))
  rmSync(join(folder, 'bin', 'squeue'))
  for (const wrapped of [
    'echo 17',
    'echo "17;cluster"',
    'echo Welcome; echo 17',
    'echo Budget: 99; echo; echo 3; echo 17; echo Bye',
    'printf "Welcome\\r\\n17;cluster\\r\\n"',
  ])
    expect(await says(wrapped)).toBe('17')
  rmSync(join(folder, 'bin', 'sbatch'))
  expect(await says(`exec /no/such/program`)).toMatchObject({
    trouble: 'refused',
    message: expect.stringContaining('cannot be run'),
  })
})

test('a status command that fails in any way, or hangs, has said nothing', async () => {
  command('squeue', 'exit 1')
  await expect(scheduler().queue()).rejects.toMatchObject({ trouble: 'unknown' })
  command('squeue', 'echo "1|0|orrery-a|RUNNING|1|2|n1|None"; exit 1')
  await expect(scheduler().queue()).rejects.toMatchObject({ trouble: 'unknown' })
  command('squeue', 'sleep 100')
  await expect(
    openSlurmCommands({ shell, root: async () => folder, requeue: false, deadlineSeconds: 1 }).queue(),
  ).rejects.toMatchObject({
    trouble: 'unknown',
    message: expect.stringContaining('within 1 s'),
  })
  command('squeue', 'exit 0')
  expect(await scheduler().queue()).toEqual([])
})

test('jobs are asked for by their ids where the list lacks them, those of hidden partitions too', async () => {
  command('squeue', 'printf "%s\\n" "$@" > "${0%/*}/asked"')
  expect(await scheduler().queue()).toEqual([])
  expect(readFileSync(join(folder, 'bin', 'asked'), 'utf8')).toContain('--all')
  const denies = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
  command('squeue', denies)
  command('scontrol', denies)
  expect(await scheduler().jobs(['5', '6'])).toEqual([])
  const record = 'JobId=6 ArrayJobId=6 ArrayTaskId=1 JobName=orrery-b JobState=RUNNING'
  command('scontrol', `case "$*" in *--all*' 6') echo "${record}" ;; *) ${denies} ;; esac`)
  expect(await scheduler().jobs(['5', '6'])).toMatchObject([{ job: '6', indexes: [1], state: 'RUNNING' }])
  command('squeue', 'echo "5|0|orrery-a|PENDING|N/A|N/A||JobHeldAdmin"')
  expect(await scheduler().jobs(['5'])).toMatchObject([{ job: '5', reason: 'JobHeldAdmin' }])
  command('scontrol', 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
  await expect(scheduler().jobs(['5', '6'])).rejects.toMatchObject({ trouble: 'unknown' })
})

test('sacct is asked for a span that midnight does not cut, in seconds since epoch', async () => {
  command(
    'sacct',
    'printf "%s\\n" "$SLURM_TIME_FORMAT" "$@" > "${0%/*}/asked"; echo "5_0|orrery-a|TIMEOUT|10|20|n1|"',
  )
  const [job] = await scheduler().history(['5'], 120)
  expect(job).toMatchObject({ job: '5', indexes: [0], state: 'TIMEOUT' })
  const asked = readFileSync(join(folder, 'bin', 'asked'), 'utf8').split('\n')
  expect(asked[0]).toBe('%s')
  expect(asked[asked.indexOf('-S') + 1]).toBe('now-86520seconds')
})

test.each([0, 1, 137])(
  'Slurm’s word that memory ran out counts for a task with exit code %d, at every collect',
  async (code) => {
    command(
      'sbatch',
      `for each; do case $each in --job-name=*) echo "\${each#*=}" > "\${0%/*}/name" ;; esac; done
SLURM_ARRAY_TASK_ID=0 setsid sh "$each" > /dev/null 2>&1 < /dev/null &
echo 7`,
    )
    command('squeue', 'echo "7|0|$(cat "${0%/*}/name")|OUT_OF_MEMORY|1|2|n1|OutOfMemory"')
    for (const name of ['sinfo', 'scontrol', 'sacct', 'scancel']) command(name, 'exit 0')
    const root = join(folder, `memory-${code}`)
    const driver = openSlurmDriver({
      ...{ shell, root, runtime: 'cluster', taskVariable: 'ORRERY_TASK', pollMilliseconds: 300 },
      configuration: { settleSeconds: 1 },
    })
    const task = plainIntent(`memory-${code}`, join(root, 'work', '1'), ['sh', '-c', `exit ${code}`])
    expect(await driver.submit([task])).toMatchObject([{ ok: true, externalId: '7_0' }])
    await new Promise<void>((resolve) => void driver.watch([task.name], () => resolve()))
    for (let times = 0; times < 2; times++)
      expect((await driver.collect(task.name)).state).toMatchObject({ state: 'ended', reason: 'memory' })
    expect((await driver.find([task.name])).get(task.name)).toMatchObject({
      reason: 'memory',
      exitCode: code,
    })
    await driver.close()
  },
)

/** A task whose job has no known id, as the answer to `sbatch` was lost; it ends at `go`. */
const openUnanswered = async (name: string) => {
  for (const each of ['sinfo', 'scontrol', 'sacct', 'scancel']) command(each, 'exit 0')
  command(
    'sbatch',
    `for each; do case $each in --job-name=*) echo "\${each#*=}" > "\${0%/*}/name" ;; esac; done
SLURM_ARRAY_TASK_ID=0 setsid sh "$each" > /dev/null 2>&1 < /dev/null &
exit 124`,
  )
  const root = join(folder, name)
  const driver = openSlurmDriver({
    ...{ shell, root, runtime: 'cluster', taskVariable: 'ORRERY_TASK', pollMilliseconds: 300 },
    configuration: { settleSeconds: 0, claimSeconds: 0 },
  })
  const go = join(folder, `${name}-go`)
  const script = 'until [ -e "$1" ]; do sleep 0.1; done'
  const task = plainIntent(name, join(root, 'work', '1'), ['sh', '-c', script, 'sh', go])
  await driver.submit([task])
  const found = async () => (await driver.find([name])).get(name)
  await until('its start', 120, async () => (await found())?.state === 'running')
  return { driver, found, end: () => writeFileSync(go, '') }
}

test('why the id of a job is not found is the reason of the wait, for the user', async () => {
  command('squeue', 'echo "the queue is closed" >&2; exit 1')
  const { driver, found, end } = await openUnanswered('unnamed')
  for (let times = 0; times < 3; times++)
    expect(await found()).toEqual({
      ...{ state: 'running', externalId: expect.any(String), startedAt: expect.any(Number) },
      cause: 'squeue: the queue is closed',
    })
  end()
  await until('its end', 120, async () => (await found())?.state === 'ended')
  await driver.close()
})

test('all jobs of an array’s name are known: one that runs counts, and a cancel ends them all', async () => {
  const states = join(folder, 'states')
  writeFileSync(states, 'PENDING RUNNING')
  command(
    'squeue',
    `[ -e "\${0%/*}/name" ] || exit 0
id=7; for state in $(cat ${states}); do echo "$id|0|$(cat "\${0%/*}/name")|$state|1|2|n1|None"; id=8; done`,
  )
  const { driver, found, end } = await openUnanswered('namesakes')
  expect(await found()).toMatchObject({ state: 'running', externalId: '7_0' })
  // The other job has found the record of the start.
  writeFileSync(states, 'COMPLETED RUNNING')
  for (let times = 0; times < 3; times++) expect(await found()).toMatchObject({ state: 'running' })
  writeFileSync(states, 'PENDING RUNNING')
  const calls = join(folder, 'cancels')
  command('scancel', `echo "$*" >> ${calls}`)
  const cancelled = driver.cancel(['namesakes'], 60)
  await until('a cancel of both', 120, () => {
    const lines = existsSync(calls) ? readFileSync(calls, 'utf8').split('\n') : []
    return (
      lines.includes('--state=PENDING 7_[0]') && lines.includes('--batch --signal=USR2 --state=RUNNING 8_[0]')
    )
  })
  end()
  await cancelled
  await driver.close()
})

test('a recorded id that another array has by now: a cancel ends the task in the job of its own array', async () => {
  const lines = join(folder, 'lines')
  writeFileSync(lines, '7 RUNNING\n')
  command(
    'squeue',
    `[ -e "\${0%/*}/name" ] || exit 0
while read -r id state name; do
  echo "$id|0|\${name:-$(cat "\${0%/*}/name")}|$state|1|2|n1|None"
done < ${lines}`,
  )
  const { driver, found, end } = await openUnanswered('reused')
  expect(await found()).toMatchObject({ state: 'running', externalId: '7_0' })
  writeFileSync(lines, '7 RUNNING orrery-other\n8 RUNNING\n')
  const calls = join(folder, 'own-cancels')
  command('scancel', `echo "$*" >> ${calls}`)
  const cancelled = driver.cancel(['reused'], 60)
  await until('a cancel of its own job', 120, () => existsSync(calls))
  end()
  await cancelled
  expect(readFileSync(calls, 'utf8')).not.toContain('7_')
  expect(readFileSync(calls, 'utf8')).toContain('--batch --signal=USR2 --state=RUNNING 8_[0]\n')
  await driver.close()
})

test('while the queue does not answer, a cancel names the array, so that it ends no job of another one', async () => {
  const lists = join(folder, 'lists')
  writeFileSync(lists, '')
  command(
    'squeue',
    `[ -e ${lists} ] || { echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1; }
[ ! -e "\${0%/*}/name" ] || echo "7|0|$(cat "\${0%/*}/name")|RUNNING|1|2|n1|None"`,
  )
  const { driver, found, end } = await openUnanswered('silent')
  expect(await found()).toMatchObject({ state: 'running', externalId: '7_0' })
  rmSync(lists)
  const calls = join(folder, 'named-cancels')
  command('scancel', `echo "$*" >> ${calls}`)
  const cancelled = driver.cancel(['silent'], 60)
  await until('a cancel', 120, () => existsSync(calls))
  writeFileSync(lists, '')
  end()
  await cancelled
  expect(readFileSync(calls, 'utf8').split('\n')[0]).toMatch(
    /^--batch --signal=USR2 --state=RUNNING --name=orrery-[0-9a-f]{32} 7_\[0\]$/,
  )
  await driver.close()
})

test('times of a cluster whose clock is an hour wrong are this machine’s', async () => {
  const now = Math.floor(Date.now() / 1000)
  command('date', `echo ${now - 3600}`)
  command('squeue', `echo "1|0|orrery-a|RUNNING|${now - 3660}|${now}|n1|None"`)
  const [job] = await scheduler().queue()
  rmSync(join(folder, 'bin', 'date'))
  // A minute before the answer, which came between these two.
  expect(job?.startedAt).toBeGreaterThanOrEqual(now - 60)
  expect(job?.startedAt).toBeLessThanOrEqual(Math.ceil(Date.now() / 1000) - 60)
})
