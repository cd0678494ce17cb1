/** What a search looks through: a kind of record, its texts, and what an answer shows of it. */
export interface Kind {
  type: string
  table: string
  /** Columns whose texts are searched; the migration of the index lists the same. */
  columns: readonly string[]
  title: string
  subtitle: string
  status: string
  /** Path in a client, before the id. */
  path: string
}

export const kinds: readonly Kind[] = [
  {
    type: 'workflow',
    table: 'workflow_definitions',
    columns: ['id', 'external_id', 'name', 'namespace'],
    title: 'name',
    subtitle: 'namespace',
    status: 'null',
    path: '/workflows/',
  },
  {
    type: 'execution',
    table: 'execution_runs',
    columns: ['id', 'title', 'failure_reason', 'status'],
    title: 'coalesce(title, id)',
    subtitle: 'mode',
    status: 'status',
    path: '/executions/',
  },
  {
    type: 'environment',
    table: 'environments',
    columns: ['id', 'name', 'description', 'status'],
    title: 'name',
    subtitle: "nullif(left(description, 200), '')",
    status: 'status',
    path: '/environments/',
  },
  {
    type: 'resource',
    table: 'resources',
    columns: ['id', 'name', 'provider_id', 'region', 'zone', 'type'],
    title: 'name',
    subtitle: "nullif(type, '')",
    status: 'null',
    path: '/resources/',
  },
  {
    type: 'plan',
    table: 'schedule_plans',
    columns: ['id', 'algorithm', 'objective', 'workflow_version_id', 'execution_scope_id'],
    title: 'id',
    subtitle: "nullif(algorithm, '')",
    status: 'status',
    path: '/plans/',
  },
  {
    type: 'scope',
    table: 'execution_scopes',
    columns: ['id', 'name', 'network_topology_id'],
    title: 'name',
    subtitle: "nullif(network_topology_id, '')",
    status: 'null',
    path: '/execution-scopes/',
  },
]

/** Every text on a line of its own in lower case, so that its beginning and its end can be asked for. An index has the same expression. */
export const textsOf = (columns: readonly string[]): string =>
  `lower((chr(10) || ${columns.map((column) => `coalesce(${column}, '') || chr(10)`).join(' || ')}) collate "default")`
