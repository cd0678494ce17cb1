import { expect } from '@jest/globals'
import { algorithms } from '../../src/schedulers/registry.ts'
import { simulate } from '../../src/simulator/simulate.ts'
import { documents, placedFrom, replay } from '../simulator/documents.ts'
import { shared, traceProblem } from './trace.ts'
import { needs } from '../support/needs.ts'

const { describe, test } = needs('shared', 'python3-simgrid')

/** Real traces from 10 to 2,122 tasks of all shapes; the replay in Python takes about a second for the largest. */
const traces = [
  'helloworld-forkjoin-10-chameleon',
  'montage-chameleon-2mass-005d-001',
  'epigenomics-chameleon-hep-1seq-50k-001',
  '1000genome-chameleon-2ch-250k-001',
  'soykb-chameleon-10fastq-10ch-001',
  'srasearch-chameleon-50a-001',
  'rnaseq-dirt02-001',
  'montage-chameleon-dss-10d-001',
  'cycles-chameleon-5l-2c-9p-001',
  'bwa-chameleon-large-001',
  'montage-chameleon-dss-15d-001',
]

describe('real traces on 16 hosts, planned with HEFT', () => {
  test.each(traces)(
    '%s: SimGrid gives the same makespan, starts and finishes',
    (name) => {
      const problem = traceProblem(shared(`wfinstances/${name}.json`), 16)
      const schedule = [...algorithms.heft.plan(problem, {})].at(-1)!.best!
      const placed = placedFrom(schedule)
      for (const model of ['contention-free', 'max-min', 'lv08'] as const) {
        const ours = simulate(problem, placed, model)
        if (ours.state === 'failed') throw new Error(ours.reason)
        const theirs = replay(documents(problem, placed, model))
        const bound = (model === 'contention-free' ? 1e-9 : 1e-6) * theirs.makespanSeconds
        expect(Math.abs(ours.makespanSeconds - theirs.makespanSeconds)).toBeLessThanOrEqual(bound)
        const worst = ours.tasks.reduce((most, { activity, startedAt, finishedAt }) => {
          const [start, finish] = theirs.tasks[problem.activities[activity]!.id]!
          return Math.max(most, Math.abs(startedAt - start), Math.abs(finishedAt - finish))
        }, 0)
        expect(worst).toBeLessThanOrEqual(Math.max(1e-6, bound))
        if (model === 'contention-free') expect(Math.abs(ours.makespanSeconds - schedule.makespanSeconds)).toBeLessThanOrEqual(bound)
      }
    },
    120_000,
  )
})
