import { expect } from '@jest/globals'
import fc from '../support/fast-check.ts'
import type { PlanningProblem, ProblemLink } from '../../src/schedulers/problem.ts'
import { choicesOf } from '../../src/schedulers/fit.ts'
import { algorithms } from '../../src/schedulers/registry.ts'
import { networkModels } from '../../src/simulator/channel.ts'
import { simulate } from '../../src/simulator/simulate.ts'
import type { Placed } from '../../src/simulator/simulate.ts'
import { instance } from '../schedulers/instances.ts'
import { documents, placedFrom, replay } from './documents.ts'
import { needs } from '../support/needs.ts'

const { describe, test } = needs('python3-simgrid')

/**
 * SimGrid takes links both ways only and knows no limit of transfers; paths of equal length would
 * be a matter of taste.
 */
function comparable(given: PlanningProblem): PlanningProblem {
  const links = given.links?.map((link, k): ProblemLink => ({
    ...link,
    bidirectional: true,
    bandwidthBitsPerSecond: link.bandwidthBitsPerSecond * (1 + k / 97),
    latencySeconds: link.latencySeconds * (1 + k / 89),
  }))
  return { ...given, links }
}

/** A plan no planner would make: activities in order on resources and lanes drawn by chance. */
function arbitraryPlan(given: PlanningProblem, draws: readonly number[]): Placed[] {
  return given.activities.map((_, activity) => {
    const draw = draws[activity]!
    const resource = draw % given.resources.length
    const lane = Math.floor(draw / 10) % given.resources[resource]!.lanes
    const second = (lane + 1) % given.resources[resource]!.lanes
    return {
      resource,
      lanes: draw % 7 === 0 && second !== lane ? [`core-${lane}`, `core-${second}`] : [`core-${lane}`],
      orderOnResource: activity,
    }
  })
}

describe('against SimGrid', () => {
  test.each(networkModels)(
    '%s: makespan and every start, finish and arrival of generated plans',
    (model) => {
      let compared = 0
      fc.assert(
        fc.property(
          instance({ maxActivities: 30, limits: false }),
          fc.array(fc.nat(9999), { minLength: 30, maxLength: 30 }),
          (generated, draws) => {
            const given = comparable(generated)
            const plans = [arbitraryPlan(given, draws)]
            if (choicesOf(given).every(({ resources }) => resources.length > 0))
              plans.push(placedFrom([...algorithms.heft.plan(given, {})].at(-1)!.best!))
            for (const placed of plans) {
              const ours = simulate(given, placed, model)
              if (ours.state === 'failed') throw new Error(ours.reason)
              const theirs = replay(documents(given, placed, model))
              const relative = model === 'contention-free' ? 1e-9 : 1e-6
              const scale = Math.max(1, theirs.makespanSeconds)
              expect(Math.abs(ours.makespanSeconds - theirs.makespanSeconds)).toBeLessThanOrEqual(
                relative * scale,
              )
              expect(ours.tasks).toHaveLength(given.activities.length)
              for (const { activity, startedAt, finishedAt } of ours.tasks) {
                const [start, finish] = theirs.tasks[given.activities[activity]!.id]!
                expect(Math.abs(startedAt - start)).toBeLessThanOrEqual(relative * scale)
                expect(Math.abs(finishedAt - finish)).toBeLessThanOrEqual(relative * scale)
              }
              expect(Object.keys(theirs.transfers)).toHaveLength(ours.transfers.length)
              for (const { producer, consumer, finishedAt } of ours.transfers) {
                const arrival =
                  theirs.transfers[`${given.activities[producer]!.id}>${given.activities[consumer]!.id}`]!
                expect(Math.abs(finishedAt - arrival)).toBeLessThanOrEqual(relative * scale)
              }
              compared++
            }
          },
        ),
        { numRuns: 15, seed: 20261121, endOnFailure: true },
      )
      expect(compared).toBeGreaterThanOrEqual(15)
    },
    240_000,
  )
})
