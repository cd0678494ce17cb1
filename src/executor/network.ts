import { networkRoutesOf } from '../schedulers/routes.ts'
import { problemOf, type PlannedLink, type PlannedResource } from '../domains/schedule-plans/problem.ts'

/** The route between two resources through the topology of a run. */
export interface RunRoute {
  /** Ids, in the direction of travel. */
  links: readonly string[]
  /** Σ over the links. */
  pricePerByte: number
}

/** The route from one resource to another for so many bytes. */
export type RouteOf = (source: string, target: string, bytes: number) => RunRoute

const none: RunRoute = { links: [], pricePerByte: 0 }

/**
 * The routes of a run, by the rule of planner and simulator: the fastest one for the size. Without
 * a topology, or where there is no way (the data moved all the same), no links and no price.
 * Computed at first use.
 */
export const runNetwork = (
  resources: readonly PlannedResource[],
  links: readonly PlannedLink[] | undefined,
): RouteOf => {
  let ask: RouteOf | undefined
  const open = (): RouteOf => {
    const problem = problemOf({
      graph: { activities: [], edges: [] },
      resources,
      versions: [],
      profiles: [],
      links,
      runtimes: [],
    })
    const routes = networkRoutesOf(problem)
    const index = new Map(problem.resources.map(({ id }, position) => [id, position]))
    return (source, target, bytes) => {
      const [from, to] = [index.get(source), index.get(target)]
      const route =
        from === undefined || to === undefined || from === to ? undefined : routes.between(from, to, bytes)
      if (route === undefined) return none
      return {
        links: route.links.map((link) => problem.links?.[link]?.id ?? ''),
        pricePerByte: route.pricePerByte,
      }
    }
  }
  return (source, target, bytes) => (links === undefined ? none : (ask ??= open())(source, target, bytes))
}
