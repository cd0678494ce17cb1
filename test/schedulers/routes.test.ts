import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { routeSeconds, networkRoutesOf } from '../../src/schedulers/routes.ts'
import { fastest } from './checker.ts'
import { instance, problem } from './instances.ts'

describe('routes', () => {
  test('for every pair and size the fastest of all paths, along links that exist in that direction', () => {
    fc.assert(
      fc.property(instance({ connected: false }), fc.integer({ min: 1, max: 5_000_000 }), (given, bytes) => {
        const routes = networkRoutesOf(given)
        for (let source = 0; source < given.resources.length; source++) {
          for (let target = 0; target < given.resources.length; target++) {
            if (source === target) continue
            const route = routes.between(source, target, bytes)
            const best = fastest(given, source, target, bytes)
            expect(routes.reachable(source, target)).toBe(route !== undefined)
            expect(route === undefined ? Infinity : routeSeconds(route, bytes)).toBeCloseTo(best.seconds, 9)
            if (route === undefined || given.links === undefined) continue
            let at = source
            let price = 0
            route.links.forEach((index, hop) => {
              const link = given.links![index]!
              const forward = route.forward[hop]!
              expect(forward || link.bidirectional).toBe(true)
              expect(forward ? link.source : link.target).toBe(at)
              at = forward ? link.target : link.source
              price += link.pricePerByte
            })
            expect(at).toBe(target)
            expect(route.pricePerByte).toBeCloseTo(price, 15)
          }
        }
      }),
      { numRuns: 300, seed: 20261121 },
    )
  })

  test('equal paths: the cheaper one, then the one with fewer links', () => {
    const links = [
      { source: 0, target: 1, pricePerByte: 2 },
      { source: 0, target: 2, pricePerByte: 0 },
      { source: 2, target: 1, pricePerByte: 1 },
    ]
    const given = problem({ durations: [[1, 1, 1]], edges: [], links })
    expect(networkRoutesOf(given).between(0, 1, 5)!.links).toEqual([1, 2])
    given.links![0]!.pricePerByte = 1
    expect(networkRoutesOf(given).between(0, 1, 5)!.links).toEqual([0])
  })

  test('a full mesh of 64 resources with 2,016 different links', () => {
    const width = 64
    const links = Array.from({ length: width * width }, (_, k) => ({
      source: Math.floor(k / width),
      target: k % width,
    }))
      .filter(({ source, target }) => source < target)
      .map((ends, k) => ({
        ...ends,
        bandwidthBitsPerSecond: 1e8 + ((k * 7919) % 2016) * 1e6,
        latencySeconds: 0.001 + ((k * 104_729) % 2016) * 1e-6,
      }))
    const routes = networkRoutesOf(
      problem({ durations: [new Array<number>(width).fill(1)], edges: [], links }),
    )
    let candidates = 0
    for (let source = 0; source < width; source++)
      for (let target = 0; target < width; target++) candidates += routes.all(source, target).length
    expect(candidates).toBeGreaterThanOrEqual(width * width)
  })
})
