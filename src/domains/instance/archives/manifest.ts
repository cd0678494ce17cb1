import { z } from 'zod'

/** The limits of an archive, the same for export and import. */
export const limits = {
  packedBytes: 8 * 1024 ** 3,
  entries: 10_000,
  unpackedBytes: 64 * 1024 ** 3,
  ratio: 200,
  manifestBytes: 1024 ** 2,
  minutes: 30,
} as const

export const databaseEntry = 'database/instance.ndjson'
export const manifestEntry = 'manifest.json'
/** The bytes of an artifact follow it by their SHA-256 in hexadecimal. */
export const artifactPrefix = 'artifacts/sha256/'
export const format = 'akoflow-instance'

const Count = z.int().min(0).describe('number of records')
/** Numbers of records in an instance. */
export const Contents = z.strictObject({
  workflows: Count,
  environments: Count,
  plans: Count,
  runs: Count,
  artifacts: Count,
})
export type Contents = z.output<typeof Contents>

/** The tables that `Contents` counts. */
export const counted: Readonly<Record<keyof Contents, string>> = {
  workflows: 'workflow_definitions',
  environments: 'environments',
  plans: 'schedule_plans',
  runs: 'execution_runs',
  artifacts: 'artifact_versions',
}

const Text = z.string().min(1).max(1_000)
/** The last entry of an archive. */
export const Manifest = z.object({
  format: z.literal(format),
  formatVersion: z.literal(1),
  exportedAt: z.iso.datetime(),
  schemaVersion: z.int().min(1),
  instance: z.object({
    id: Text,
    name: Text,
    description: z.string().max(65_536).optional(),
    source: z.literal('export'),
    status: z.literal('snapshot'),
    readOnly: z.literal(true),
    credentialsSet: z.literal(false),
    exportedAt: z.iso.datetime(),
    akoflowVersion: Text,
  }),
  security: z.object({ credentialsIncluded: z.literal(false), credentialsRedacted: z.literal(true) }),
  contents: Contents,
  redacted: z.object({
    values: Count,
    places: z.array(z.object({ table: z.string(), id: z.string(), column: z.string() })).max(1_000),
    /** Columns with texts from which references of credentials were removed. */
    references: z
      .array(z.object({ table: z.string(), column: z.string(), texts: Count }))
      .max(limits.entries)
      .optional(),
    /** Digests of artifacts whose bytes were left out, because a secret stands in them. */
    artifacts: z.array(z.string()).max(limits.entries).optional(),
  }),
  checksums: z.record(z.string(), z.string().regex(/^[0-9a-f]{64}$/)),
})
export type Manifest = z.output<typeof Manifest>
