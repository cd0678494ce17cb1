import type { Api } from './api.ts'

/** A terminal's width without the indentation of the screen. */
const width = 76

const cut = (text: string): string => (text.length <= width ? text : `${text.slice(0, width - 1)}…`)

/**
 * A client's query and its answer: the inputs that made a file, the places, and the time of the
 * query.
 */
export const madeBy = async (api: Api, runId: string, file: string): Promise<string[]> => {
  const statement =
    'SELECT external_id, site, runtime_seconds, inputs FROM attempts\n  WHERE execution_run_id = ? AND ? = ANY(outputs)'
  const rows = await api.post('/provenance/sql/', { statement, params: [runId, file] })
  return [
    ...statement.split('\n'),
    ...rows.flatMap(
      (row: { external_id: string; site: string; runtime_seconds: number; inputs: string[] }) => [
        `→ ${row.external_id} at ${row.site}, ${row.runtime_seconds.toFixed(2)} s, of ` +
          `${row.inputs.length} ${row.inputs.length === 1 ? 'file' : 'files'}:`,
        ...row.inputs.slice(0, 3).map((input) => cut(`    ${input}`)),
        ...(row.inputs.length > 3 ? [`    and ${row.inputs.length - 3} more`] : []),
      ],
    ),
  ]
}

interface Lineage {
  nodes: { key: string; entity: string; label: string; record: Record<string, any> }[]
  edges: { source: string; target: string; label: string }[]
  truncated: boolean
}

/** The most children shown at one node of the tree. */
const most = 3

/**
 * A file's lineage as a tree: the task that made it, the input files of that task, the tasks that
 * made those, and so on.
 */
export const lineageTree = async (api: Api, runId: string, file: string): Promise<string[]> => {
  const { items } = await api.get(
    `/provenance/entities/data_instances/?q=${encodeURIComponent(file)}` +
      `&filterField=execution_run_id&filterValue=${runId}`,
  )
  const picture = items.find(({ relative_path: path }: { relative_path: string }) => path === file)
  if (picture === undefined) return [`no file ${file} is on record`]
  const of = `/provenance/lineage/data_instances/${encodeURIComponent(picture.id)}/`
  const path = `${of}?direction=prior&depth=5&maxNodes=500`
  const lineage = (await api.get(path)) as Lineage
  return treeLines(lineage, `data_instances:${picture.id}`)
}

/** @param lineage edges lead from the antecedent */
export const treeLines = ({ nodes, edges, truncated }: Lineage, root: string): string[] => {
  const byKey = new Map(nodes.map((node) => [node.key, node]))
  const nameOf = (key: string): string => {
    const node = byKey.get(key)
    if (node === undefined) return key
    return node.entity === 'task_executions'
      ? `${String(node.record['activity_id'])} (${Number(node.record['runtime_seconds']).toFixed(2)} s)`
      : String(node.record['relative_path'] ?? node.label)
  }
  const before = (key: string): string[] =>
    edges
      .filter(
        ({ target, label }) => target === key && (label === 'data_uses' || label === 'task_execution_id'),
      )
      .map(({ source }) => source)
  const lines: string[] = []
  const shown = new Set<string>()
  const draw = (key: string, lead: string, rest: string): void => {
    lines.push(cut(lead + nameOf(key)))
    if (shown.has(key)) return
    shown.add(key)
    const children = before(key)
    const last = Math.min(children.length, most) - 1
    children.slice(0, most).forEach((child, i) => {
      const end = i === last && children.length <= most
      draw(child, `${rest}${end ? '└─ ' : '├─ '}`, rest + (end ? '   ' : '│  '))
    })
    if (children.length > most) lines.push(`${rest}└─ and ${children.length - most} more`)
  }
  draw(root, '', '')
  if (truncated) lines.push('… the rest is in …/closure/')
  return lines
}
