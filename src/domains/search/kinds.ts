/** A kind of record that a search covers: its texts, and the members of its results. */
export interface Kind {
  type: string
  table: string
  /** Columns whose texts are searched; the migration of the index lists the same. */
  columns: readonly string[]
  title: string
  subtitle: string
  status: string
  /** Path in a client, before `at`. */
  path: string
  /** The record's id, and what stands behind the path; `id` where absent. */
  id?: string
  at?: string
}

export const searchKinds: readonly Kind[] = [
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
    columns: ['id', 'title', 'searched_places', 'failure_reason', 'status'],
    title: 'coalesce(title, id)',
    subtitle: 'mode',
    status: 'status',
    path: '/executions/',
  },
  {
    type: 'artifact',
    table: 'artifact_versions',
    columns: ['artifact_id', 'id', 'name', 'version'],
    title: 'name',
    subtitle: "nullif(version, '')",
    status: 'null',
    path: '/artifacts/',
    // A client shows all versions of an artifact at one place.
    id: 'artifact_id',
    at: 'artifact_id',
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
    columns: ['id', 'name', 'network_topology_id', 'searched_environments'],
    title: 'name',
    subtitle: "nullif(network_topology_id, '')",
    status: 'null',
    path: '/execution-scopes/',
  },
  {
    type: 'materialization',
    table: 'artifact_materializations',
    columns: [
      ...['id', 'variant_id', 'digest', 'resource_id', 'run_id', 'activity_id'],
      ...['destination_path', 'status'],
    ],
    title: 'destination_path',
    subtitle: 'resource_id',
    status: 'status',
    path: '/materializations?runId=',
    at: "coalesce(run_id, '')",
  },
]

/** Every text on its own line in lower case. */
export const textsOf = (columns: readonly string[]): string =>
  `lower((chr(10) || ${columns.map((column) => `coalesce(${column}, '') || chr(10)`).join(' || ')}) collate "default")`

/**
 * Stands before every line of an index. With it the first letter of a line is three characters,
 * which is what an index of trigrams finds; the beginning of a line is no other word's.
 */
export const lineMark = 'qq'

/** The texts as an index has them, so that a query can match the beginning and the end of a line. */
export const indexedTexts = (columns: readonly string[]): string =>
  `replace(${textsOf(columns)}, chr(10), chr(10) || '${lineMark}')`
