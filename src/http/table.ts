import type { Method, Route } from './route.ts'

/** One pair of the table. */
export interface TableEntry {
  method: Method
  /** As declared, prefix included; for the log, the document and the tests. */
  template: string
  route: Route
  names: readonly string[]
  /** The last name takes all remaining segments. */
  tail: boolean
}

interface Node {
  fixed: Map<string, Node>
  any: Node | undefined
  here: Map<Method, TableEntry>
  rest: Map<Method, TableEntry>
}

export interface Match {
  entry: TableEntry
  /** Segments as sent, still percent-encoded, in the order of `entry.names`. */
  values: string[]
}

const node = (): Node => ({ fixed: new Map(), any: undefined, here: new Map(), rest: new Map() })

/**
 * The routes as a tree of path segments: a look-up costs the path's segments, whatever the number
 * of routes (one regular expression per route and layer makes a router of 120 routes slow). Fixed
 * segments precede names. A path whose fixed form lacks the method falls back to the named one
 * (`GET /workflow-definitions/import/` reads the workflow named import).
 */
export const createTable = (pairs: readonly { method: Method; path: string; route: Route }[]) => {
  const root = node()
  for (const { method, path, route } of pairs) {
    const names: string[] = []
    const segments = path.split('/').slice(1)
    let at = root
    let tail = false
    segments.forEach((segment, i) => {
      const name = /^\{(\w+)\}$/.exec(segment)?.[1]
      if (name === undefined) {
        let next = at.fixed.get(segment)
        if (next === undefined) at.fixed.set(segment, (next = node()))
        at = next
        return
      }
      names.push(name)
      tail = i === segments.length - 1
      if (!tail) at = at.any ??= node()
    })
    const entries = tail ? at.rest : at.here
    if (entries.has(method)) throw new Error(`route ${method} ${path} is declared twice`)
    entries.set(method, { method, template: path, route, names, tail })
  }

  const find = (
    at: Node,
    segments: readonly string[],
    index: number,
    method: Method,
    values: readonly string[],
  ): Match | undefined => {
    const segment = segments[index]
    if (segment === undefined) {
      const entry = at.here.get(method)
      return entry === undefined ? undefined : { entry, values: [...values] }
    }
    const fixed = at.fixed.get(segment)
    const found = fixed === undefined ? undefined : find(fixed, segments, index + 1, method, values)
    if (found !== undefined || segment === '') return found
    const named =
      at.any === undefined ? undefined : find(at.any, segments, index + 1, method, [...values, segment])
    if (named !== undefined) return named
    const entry = at.rest.get(method)
    return entry === undefined ? undefined : { entry, values: [...values, segments.slice(index).join('/')] }
  }

  return {
    /** The pair for a path without its query, or undefined. */
    match: (method: Method, path: string): Match | undefined => find(root, path.split('/'), 1, method, []),
    /** Methods that the path has, for `Allow`; empty for an unknown path. */
    allowed(path: string): string[] {
      const segments = path.split('/')
      const methods = (['GET', 'POST', 'PUT', 'DELETE'] as const).filter(
        (method) => find(root, segments, 1, method, []) !== undefined,
      )
      return methods.length === 0
        ? []
        : [...methods.flatMap((method) => (method === 'GET' ? ['GET', 'HEAD'] : [method])), 'OPTIONS']
    },
  }
}

export type Table = ReturnType<typeof createTable>
