/** A directed edge by node index. */
export interface IndexEdge {
  from: number
  to: number
}

/**
 * Edges by node, compressed: the edges that leave (or enter) node `n` are `edge[start[n]] …
 * edge[start[n + 1] - 1]`, indices into the given list, in its order.
 */
export interface Adjacency {
  start: Int32Array
  edge: Int32Array
}

/** The edges of `n` nodes by their node of origin (`from`) or of arrival (`to`). */
export function adjacency(n: number, edges: readonly IndexEdge[], by: 'from' | 'to'): Adjacency {
  const start = new Int32Array(n + 1)
  for (const edge of edges) start[edge[by] + 1]!++
  for (let i = 0; i < n; i++) start[i + 1]! += start[i]!
  const next = start.slice(0, n)
  const edge = new Int32Array(edges.length)
  for (let i = 0; i < edges.length; i++) edge[next[edges[i]![by]]!++] = i
  return { start, edge }
}

/**
 * The nodes in an order in which every edge leads forward (Kahn; nodes without mutual order stay in
 * index order of discovery, so the same input gives the same order). Undefined when there is a
 * cycle: `findCycle` names it.
 */
export function topologicalOrder(
  n: number,
  edges: readonly IndexEdge[],
  out: Adjacency = adjacency(n, edges, 'from'),
): Int32Array | undefined {
  const missing = new Int32Array(n)
  for (const { to } of edges) missing[to]!++
  const order = new Int32Array(n)
  let filled = 0
  for (let i = 0; i < n; i++) if (missing[i] === 0) order[filled++] = i
  for (let head = 0; head < filled; head++) {
    const node = order[head]!
    for (let k = out.start[node]!; k < out.start[node + 1]!; k++) {
      const to = edges[out.edge[k]!]!.to
      if (--missing[to]! === 0) order[filled++] = to
    }
  }
  return filled === n ? order : undefined
}

/**
 * One cycle as the list of its nodes in edge order, the smallest index first and not repeated at
 * the end; undefined when there is none. A node with an edge to itself is a cycle of one.
 * Iterative: a chain of 10⁶ nodes needs no stack.
 */
export function findCycle(n: number, edges: readonly IndexEdge[]): number[] | undefined {
  const out = adjacency(n, edges, 'from')
  const next = out.start.slice(0, n)
  const state = new Uint8Array(n) // 0 unseen, 1 on the path, 2 done
  const path: number[] = []
  for (let root = 0; root < n; root++) {
    if (state[root] !== 0) continue
    path.push(root)
    state[root] = 1
    while (path.length > 0) {
      const node = path.at(-1)!
      if (next[node] === out.start[node + 1]) {
        state[node] = 2
        path.pop()
        continue
      }
      const to = edges[out.edge[next[node]!++]!]!.to
      if (state[to] === 1) return smallestFirst(path.slice(path.indexOf(to)))
      if (state[to] === 0) {
        state[to] = 1
        path.push(to)
      }
    }
  }
  return undefined
}

function smallestFirst(cycle: number[]): number[] {
  const at = cycle.indexOf(cycle.reduce((a, b) => Math.min(a, b)))
  return [...cycle.slice(at), ...cycle.slice(0, at)]
}

/** `"a" → "b" → "a"` from the names of a cycle, shortened in the middle beyond 12. */
export function describeCycle(cycle: readonly string[]): string {
  const names = [...cycle, ...cycle.slice(0, 1)].map((name) => JSON.stringify(name))
  const shown =
    names.length <= 13 ? names : [...names.slice(0, 6), `… ${names.length - 12} more …`, ...names.slice(-6)]
  return shown.join(' → ')
}
