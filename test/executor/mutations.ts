import { cpSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { mutated, type Mutation } from '../support/mutation.ts'

const checkout = join(import.meta.dirname, '../..')

interface NamedMutation extends Mutation {
  name: string
}

const ahead = 'src/executor/scheduling-ahead.ts'
const choosing = 'src/executor/scheduling-starts.ts'
const ends = 'src/executor/scheduling-ends.ts'
const opening = 'src/executor/scheduling-state.ts'
const adoption = 'src/executor/scheduling-adoption.ts'

/** Deletions and swaps in the scheduling, each of which breaks a law. */
export const mutations: readonly NamedMutation[] = [
  {
    name: 'what is ahead starts however old the flags are',
    file: ahead,
    function: 'startAhead',
    replace: ' || state.ms > state.leaseUntil',
    by: '',
  },
  {
    name: 'what is taken back while its commit is under way stays intended',
    file: ahead,
    function: 'takeBack',
    replace: 'if (state.stage[i] === stages.aheadOffered) state.stage[i] = stages.aheadRevoked',
    by: '',
  },
  {
    name: 'a task whose turn has come is forgotten with its intent',
    file: ahead,
    function: 'forget',
    replace: 'if (state.turn[i] === 1 && isWaiting(state, i)) state.queue.push(i)',
    by: '',
  },
  {
    name: 'what was not acquired ahead is not taken back',
    file: ahead,
    function: 'aheadAnswered',
    replace: 'state.entry.takenBack.push(id)',
    by: '',
  },
  {
    name: 'what did not acquire its lanes is started',
    file: choosing,
    function: 'commitAnswered',
    replace: 'if (!has.has(task.id)) {',
    by: 'if (has.size === 0) {',
  },
  {
    name: 'cores of a refused task are not given back',
    file: choosing,
    function: 'refuse',
    replace: '  freeCores(state, i)\n',
    by: '',
  },
  {
    name: 'lanes are passed on to a task that is over',
    file: choosing,
    function: 'heirAfter',
    replace: 'while (heir >= 0 && state.ends.has(heir)) heir = state.heirTo[heir] as number',
    by: '',
  },
  {
    name: 'a cancel is not seen',
    file: choosing,
    function: 'flagsSeen',
    replace: 'flags.cancelled || ',
    by: '',
  },
  {
    name: 'a pause keeps no task from being intended',
    file: choosing,
    function: 'choose',
    replace: ' || state.paused',
    by: '',
  },
  {
    name: 'tasks that an earlier holder started ahead are taken for waiting',
    file: adoption,
    function: 'aheadFound',
    replace: 'if (startedAt === undefined) {',
    by: 'if (startedAt !== null) {',
  },
  {
    name: 'a cancel is not seen at a take-over',
    file: adoption,
    function: 'holdsRead',
    replace: 'if (stopping) {',
    by: 'if (state.draining) {',
  },
  {
    name: 'a pause is not seen at a take-over',
    file: adoption,
    function: 'holdsRead',
    replace: 'state.paused = paused',
    by: '',
  },
  {
    name: 'the lease of the holder before is not waited out',
    file: adoption,
    function: 'begin',
    replace: 'afterMs: 2 * startLeaseMs',
    by: 'afterMs: 0',
  },
  {
    name: 'a site that is opened again begins tasks that have completed',
    file: opening,
    function: 'stateOf',
    replace: "if (status === 'completed') return completed",
    by: "if (status === 'completed') return waiting",
  },
  {
    name: 'a task that is tried again stays in flight',
    file: ends,
    function: 'tryAgain',
    replace: 'state.frontier.putBack(i)',
    by: '',
  },
  {
    name: 'adopted starts are recorded before the ends they follow',
    file: ends,
    function: 'followsOpenAttempt',
    replace: 'if (before >= 0 && isInFlight(state, before)) return true',
    by: '',
  },
  {
    name: 'lanes and cores of a completed task are kept from everybody where it has no heir',
    file: ahead,
    function: 'handOver',
    replace: '    freeCores(state, i)\n',
    by: '',
  },
  {
    name: 'what needs more than what is under way is intended ahead',
    file: ahead,
    function: 'mayInherit',
    replace: '      return false\n  return (',
    by: '      void p\n  return (',
  },
  {
    name: 'what completes elsewhere counts as failed',
    file: 'src/executor/scheduling.ts',
    function: 'foreignEnds',
    replace: "status === 'completed'",
    by: "status !== 'completed'",
  },
  {
    name: 'what completes elsewhere left its files where its first attempt was',
    file: 'src/executor/scheduling.ts',
    function: 'foreignEnds',
    replace: 'Object.assign(taskAt(state, i), end)',
    by: 'taskAt(state, i).finished_at = end.finished_at',
  },
]

/**
 * Writes the executor with a mutation into a folder of its own below `parent`, beside links to the
 * rest of the source. @returns the path of its scheduling
 */
export const mutatedScheduling = (mutation: Mutation, parent: string): string => {
  const folder = mkdtempSync(join(parent, 'mutated-'))
  const source = join(checkout, 'src')
  for (const name of readdirSync(source))
    if (name !== 'executor') symlinkSync(join(source, name), join(folder, name))
  cpSync(join(source, 'executor'), join(folder, 'executor'), { recursive: true })
  const file = join(folder, 'executor', basename(mutation.file))
  writeFileSync(file, mutated(readFileSync(file, 'utf8'), mutation))
  return join(folder, 'executor/scheduling.ts')
}
