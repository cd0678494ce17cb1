import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { gcpNameProblem } from '../../drivers/cloud/gcp-names.ts'
import type { Problem } from '../../refusal.ts'
import { mask, secretPaths, secretsIn } from '../environments/secrets.ts'
import {
  knownConfiguration,
  type NewCapacityTarget,
  type TargetConfiguration,
  type TargetMachineConfiguration,
} from './schemas.ts'

/** The configuration that every machine gets first. */
export const builtInVersion = 'akoflow-scientific-worker-v7'

/** A target's configurations in their order. The built-in one comes first. */
export const withBuiltIn = (given: readonly TargetMachineConfiguration[]): TargetMachineConfiguration[] => {
  const sorted = given.toSorted((a, b) => a.executionOrder - b.executionOrder)
  if (given.some(({ configurationVersionId }) => configurationVersionId === builtInVersion)) return sorted
  const shift = sorted[0]?.executionOrder === 0 ? 1 : 0
  return [
    { configurationVersionId: builtInVersion, executionOrder: 0, required: true, enabled: true },
    ...sorted.map((each) => ({ ...each, executionOrder: each.executionOrder + shift })),
  ]
}

const VersionRow = z.object({
  id: z.string(),
  status: z.string(),
  configurationId: z.string(),
  enabled: z.boolean(),
  compatibility: z.object({
    providers: z.array(z.string()).optional(),
    architectures: z.array(z.string()).optional(),
  }),
  variablesSchema: z.record(z.string(), z.unknown()).nullish(),
})
type VersionRow = z.output<typeof VersionRow>

const variableProblems = (schema: VersionRow['variablesSchema'], variables: unknown): string[] => {
  if (schema == null) return []
  const result = z.fromJSONSchema(schema).safeParse(variables ?? {})
  return result.success
    ? []
    : result.error.issues.map(({ path, message }) =>
        path.length === 0 ? message : `${path.join('.')}: ${message}`,
      )
}

const versionProblems = (
  target: NewCapacityTarget,
  named: TargetMachineConfiguration,
  found: VersionRow | undefined,
): { member: string; message: string }[] => {
  const id = JSON.stringify(named.configurationVersionId)
  const of = (message: string, member = 'configurationVersionId') => ({ member, message })
  if (found === undefined)
    return [of(`${id} names no version of a machine configuration; add the version first`)]
  const { providers = [], architectures = [] } = found.compatibility
  return [
    ...(found.enabled
      ? []
      : [
          of(`${id} is of ${JSON.stringify(found.configurationId)}, which is disabled; name another version`),
        ]),
    ...(found.status === 'deprecated' ? [of(`${id} is deprecated; name a version that is published`)] : []),
    ...(providers.length > 0 && !providers.includes(target.provider)
      ? [of(`${id} is for ${providers.join(', ')} and not for ${target.provider}`)]
      : []),
    ...(architectures.length > 0 && !architectures.includes(target.architecture)
      ? [of(`${id} is for ${architectures.join(', ')} and not for ${target.architecture}`)]
      : []),
    ...variableProblems(found.variablesSchema, named.variables).map((message) => of(message, 'variables')),
  ]
}

/** Whether a range covers every address of its family. */
const everybody = (range: string): boolean => range.endsWith('/0')

const rangeProblems = ({ sshSourceRanges = [], allowPublicSsh }: TargetConfiguration): Problem[] =>
  sshSourceRanges.some(everybody) && allowPublicSsh !== true
    ? [
        {
          path: 'configuration.sshSourceRanges',
          message: 'lets every address reach SSH; name networks, or give allowPublicSsh: true',
        },
      ]
    : []

/** A configuration is shown and copied: it may hold no secret. */
const secretProblems = (configuration: Record<string, unknown> | undefined): Problem[] =>
  secretPaths(configuration).map((path) => ({
    path: `configuration.${path}`,
    message:
      'holds a secret in clear text; store it with POST /cloud-credentials/, or as a variable of a machine ' +
      'configuration, which is kept in the vault',
  }))

/** An answer shows masks in the places of secrets, and a new target has none behind them. */
const maskProblems = (given: readonly TargetMachineConfiguration[]): Problem[] =>
  given.flatMap(({ variables }, place) =>
    [...secretsIn(variables)].flatMap(([path, value]) =>
      value === mask
        ? [
            {
              path: ['machineConfigurations', place, 'variables', ...(JSON.parse(path) as string[])].join(
                '.',
              ),
              message: 'is the mask of a secret; give the secret itself, or leave the key out',
            },
          ]
        : [],
    ),
  )

/** What a target names at Google becomes part of addresses there. */
const googleProblems = (target: NewCapacityTarget): Problem[] => {
  if (target.provider !== 'gcp') return []
  const { diskType, network, projectId } = knownConfiguration(target.configuration)
  const named = [
    ['providerMachineType', target.providerMachineType, 'name'],
    ['imageReference', target.imageReference, 'image'],
    ['region', target.region, 'name'],
    ['fixedZone', target.fixedZone, 'name'],
    ['configuration.diskType', diskType, 'name'],
    ['configuration.network', network, 'subnetwork'],
    ['configuration.projectId', projectId, 'project'],
  ] as const
  return named.flatMap(([path, text = '', kind]) => {
    const message = text === '' ? undefined : gcpNameProblem(text, kind)
    return message === undefined ? [] : [{ path, message }]
  })
}

const zoneProblems = ({ zonePolicy, fixedZone }: NewCapacityTarget): Problem[] =>
  zonePolicy === 'fixed' && fixedZone === undefined
    ? [
        {
          path: 'fixedZone',
          message: 'is missing, and zonePolicy is fixed; name a zone, or leave zonePolicy out',
        },
      ]
    : []

const orderProblems = (given: readonly TargetMachineConfiguration[]): Problem[] =>
  given.flatMap(({ executionOrder }, place) =>
    given.findIndex((other) => other.executionOrder === executionOrder) === place
      ? []
      : [
          {
            path: `machineConfigurations.${String(place)}.executionOrder`,
            message: `${String(executionOrder)} is the order of another configuration; give each its own`,
          },
        ],
  )

/** Problems of a target by the rules and by the stored machine configurations. */
export const targetProblems = async (db: Db, target: NewCapacityTarget): Promise<Problem[]> => {
  const given = target.machineConfigurations
  const rows = await db.many(
    VersionRow,
    sql`select v.id, v.status, v.compatibility, v.variables_schema, c.id as configuration_id, c.enabled
      from machine_configuration_versions v join machine_configurations c on c.id = v.machine_configuration_id
      where v.id = any(${given.map(({ configurationVersionId }) => configurationVersionId)})`,
  )
  const byId = new Map(rows.map((row) => [row.id, row]))
  return [
    ...rangeProblems(target.configuration ?? {}),
    ...secretProblems(target.configuration),
    ...googleProblems(target),
    ...zoneProblems(target),
    ...orderProblems(given),
    ...maskProblems(given),
    ...given.flatMap((named, place) =>
      versionProblems(target, named, byId.get(named.configurationVersionId)).map(({ member, message }) => ({
        path: `machineConfigurations.${String(place)}.${member}`,
        message,
      })),
    ),
  ]
}
