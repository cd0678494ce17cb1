import { spawn, type ChildProcess } from 'node:child_process'
import { createServer, request, type Server } from 'node:http'
import {
  DriverError,
  type Capability,
  type RuntimeDriver,
} from '../../src/drivers/runtime/contract/driver.ts'
import { arrayScript } from '../../src/drivers/runtime/batch/array-script.ts'
import { openBatchDriver } from '../../src/drivers/runtime/batch/driver.ts'
import {
  elementId,
  type BatchEvidence,
  type BatchJudgement,
  type BatchScheduler,
} from '../../src/drivers/runtime/batch/scheduler.ts'
import { openBatchSite } from '../../src/drivers/runtime/batch/site.ts'
import { stateOfVerdict, type Verdict } from '../../src/drivers/runtime/batch/verdict.ts'
import { buriedEnd, endedState } from '../../src/drivers/runtime/contract/results.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'

/**
 * The smallest batch scheduler there is: a table in memory, asked over HTTP at a socket, that runs
 * the script of an array once for each element, so many at once. It knows arrays by their names,
 * tells what waits, runs and has ended, and forgets nothing. `tableAdapter` is all that a driver of
 * it takes.
 */

interface Row {
  array: string
  job: string
  index: number
  state: 'waiting' | 'running' | 'over'
  startedAt?: number
  endedAt?: number
  exitCode?: number | null
}
interface Submission {
  array: string
  script: string
  indexes: readonly number[]
}
interface Cancel {
  elements: readonly { job: string; index: number }[]
  how: 'waiting' | 'polite' | 'forced'
}

const clock = (): number => Date.now() / 1000

/**
 * A node gives a script no open files of its own; what this process was started with is none of the
 * script's business.
 */
const onNode =
  'for each in /proc/$$/fd/*; do n=${each##*/}; [ "$n" -le 2 ] || eval "exec $n<&-"; done; exec /bin/sh "$1"'

/**
 * Starts a scheduler whose nodes are this machine; `slots`: elements that run at once. Calls are
 * `POST /submit`, `POST /cancel` and `POST /list`.
 */
export async function startTable(socket: string, slots: number): Promise<{ close(): Promise<void> }> {
  const rows: (Row & { script: string; child?: ChildProcess })[] = []
  let jobs = 0
  let over = false

  const schedule = (): void => {
    for (const row of rows) {
      if (over || rows.filter(({ state }) => state === 'running').length >= slots) return
      if (row.state === 'waiting') start(row)
    }
  }
  const start = (row: (typeof rows)[number]): void => {
    const child = spawn('bash', ['-c', onNode, 'node', row.script], {
      env: { PATH: '/usr/local/bin:/usr/bin:/bin', TABLE_INDEX: String(row.index) },
      stdio: 'ignore',
      detached: true,
      cwd: '/',
    })
    Object.assign(row, { state: 'running', startedAt: clock(), child })
    child.once('close', (exitCode) => {
      Object.assign(row, { state: 'over', endedAt: clock(), exitCode })
      schedule()
    })
  }
  const cancel = ({ elements, how }: Cancel): void => {
    for (const row of rows) {
      if (!elements.some(({ job, index }) => job === row.job && index === row.index)) continue
      if (row.state === 'waiting' && how !== 'polite')
        Object.assign(row, { state: 'over', endedAt: clock(), exitCode: null })
      if (row.state !== 'running' || row.child?.pid === undefined) continue
      if (how === 'polite') row.child.kill('SIGUSR2')
      if (how === 'forced') process.kill(-row.child.pid, 'SIGKILL')
    }
    schedule()
  }
  const answer = (path: string, body: string): unknown => {
    if (path === '/cancel') return cancel(JSON.parse(body) as Cancel)
    if (path === '/submit') {
      const { array, script, indexes } = JSON.parse(body) as Submission
      const job = `table.${++jobs}`
      for (const index of indexes) rows.push({ array, job, index, script, state: 'waiting' })
      schedule()
      return job
    }
    return rows.map(({ child: _child, script: _script, ...row }) => row)
  }
  const server: Server = createServer((incoming, outgoing) => {
    let body = ''
    incoming.on('data', (bytes: Buffer) => (body += bytes.toString()))
    incoming.on('end', () => outgoing.end(JSON.stringify(answer(incoming.url ?? '', body) ?? null)))
  })
  await new Promise<void>((resolve) => server.listen(socket, resolve))
  return {
    async close() {
      over = true
      for (const { child, state } of rows)
        if (state === 'running' && child?.pid !== undefined) process.kill(-child.pid, 'SIGKILL')
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

const ask = <T>(socket: string, path: string, body: unknown): Promise<T> =>
  new Promise((resolve, reject) => {
    const silent = (error: Error): void =>
      reject(new DriverError('unknown', `the table does not answer: ${error.message}`))
    const sent = request({ socketPath: socket, path, method: 'POST', timeout: 20_000 }, (response) => {
      let text = ''
      response.on('data', (bytes: Buffer) => (text += bytes.toString()))
      response.on('end', () => resolve(JSON.parse(text) as T))
    })
    sent.on('error', silent)
    sent.end(JSON.stringify(body))
  })

const capabilities: Readonly<Record<Capability, boolean>> = {
  batch: true,
  interactive: false,
  container: false,
  serverless: false,
  gpu: false,
  mpi: false,
  sharedStorage: true,
  dataStaging: true,
  cancellation: true,
  logStreaming: true,
  simulation: false,
}

/** An end that the record does not tell: the table's word, once it is a second old. */
const judge = (
  { sight, place, cancelAsked, overSince }: BatchEvidence,
  rows: readonly Row[] | undefined,
): BatchJudgement => {
  const id = elementId(place)
  if (sight.form === 'buried') return { state: buriedEnd(sight.at, id), over: false }
  if (sight.form === 'ended' && sight.reason !== 'stopped')
    return { state: endedState(sight, id, sight.reason), over: false }
  if (sight.form === 'ended' && cancelAsked) return { state: endedState(sight, id, 'cancelled'), over: false }
  const row = rows?.find(
    ({ job, index, array }) => job === place.job && index === place.index && array === place.array,
  )
  const startedAt = sight.form === 'started' || sight.form === 'ended' ? sight.startedAt : row?.startedAt
  const state: BatchJudgement['state'] =
    startedAt === undefined || row?.state === 'waiting'
      ? { state: 'queued', externalId: id, submittedAt: place.submittedAt }
      : { state: 'running', externalId: id, startedAt }
  if (row?.state !== 'over') return { state, over: false }
  if (overSince === undefined || performance.now() - overSince < 1000) return { state, over: true }
  const end = sight.form === 'none' ? 'never' : cancelAsked ? 'cancelled' : 'lost'
  const verdict: Verdict = {
    end,
    cause: `the table ended it with ${row.exitCode ?? 'no code'}`,
    at: row.endedAt ?? place.submittedAt,
  }
  return { state: stateOfVerdict(verdict, sight, id), over: true, verdict }
}

export interface TableOptions {
  shell: SiteShell
  root: string
  runtime: string
  taskVariable: string
  /** Of the scheduler. */
  socket: string
  /** Loses the answers of submits: the table has the array, the driver gets no id. */
  losesAnswers?: boolean
  /** Whether the table answers without mentioning anything now. */
  hides?: () => boolean
  /** After which a submitter that has not reported counts as dead; default 60. */
  claimSeconds?: number
}

export function openTableDriver(options: TableOptions): RuntimeDriver {
  const { socket, losesAnswers = false, hides = () => false, claimSeconds = 60 } = options
  // Its files are on one host: none arrives late.
  const site = openBatchSite({ ...options, outputPatienceSeconds: 0 })
  const list = async (): Promise<Row[]> => (hides() ? [] : ask<Row[]>(socket, '/list', null))
  const adapter: BatchScheduler<{ cores: number }, Row[] | undefined> = {
    kind: 'table',
    capabilities,
    claimSeconds: () => claimSeconds,
    terms: () => Promise.resolve({ requestOf: ({ cores }) => ({ cores }), arraySize: 100 }),
    hopeless: (_, words) => words,
    script: async ({ name }, elements, pack) =>
      arrayScript(elements, {
        array: name,
        pack,
        folder: `${await site.root()}/tasks`,
        command: await site.tasks.foregroundCommand('"$script"'),
        index: '$TABLE_INDEX',
      }),
    leavesOut: true,
    async submit(array, indexes) {
      const script = `${await site.root()}/arrays/${array.name}/script`
      const job = await ask<string>(socket, '/submit', { array: array.name, script, indexes })
      if (losesAnswers) throw new DriverError('unknown', 'the answer was lost')
      await site.submissions.accepted(array.name, job)
      return job
    },
    find: async (array) => (await list()).find((row) => row.array === array)?.job,
    list: () => list().catch(() => undefined),
    judge,
    answersPromptly: true,
    cancel: (elements, how) => ask(socket, '/cancel', { elements, how }),
    cancelSteps: { politeAgain: 1, forcedAfterGrace: 3 },
  }
  return openBatchDriver(site, adapter, { pollMilliseconds: 500 })
}
