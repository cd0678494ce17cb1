import { z } from 'zod'
import { Id, JsonObject, Name, ServerManaged, Text, Timestamp } from '../../http/schema.ts'
import { secretPaths } from '../environments/secrets.ts'

const Words = z.array(Id).max(100)

const Compatibility = z.strictObject({
  providers: Words.optional().describe('clouds on whose machines it works; empty: all'),
  operatingSystems: Words.optional().describe('on which it works; empty: all'),
  architectures: Words.optional().describe('of processors on which it works; empty: all'),
})

const ValidationCheck = z.strictObject({
  name: Name,
  command: z.string().min(1).max(4_096).describe('for sh on the machine; 0 is success'),
  capability: z.string().max(255).optional().describe('what the check shows that the machine has'),
})

/** Keywords that make a schema take unbounded time, or refer outside of itself. */
const refused = new Set(['pattern', 'patternProperties', '$ref', '$dynamicRef', '$id', '$anchor'])

const refusedKeyword = (value: unknown): string | undefined => {
  if (typeof value !== 'object' || value === null) return undefined
  for (const [key, item] of Object.entries(value)) {
    if (!Array.isArray(value) && refused.has(key)) return key
    const found = refusedKeyword(item)
    if (found !== undefined) return found
  }
  return undefined
}

/** The problem of a JSON schema for a playbook's variables; undefined where it can be used. */
const variablesSchemaProblem = (schema: Record<string, unknown>): string | undefined => {
  const keyword = refusedKeyword(schema)
  if (keyword !== undefined)
    return `the keyword ${JSON.stringify(keyword)} is not taken; describe the variables without it`
  if (schema['type'] !== 'object') return 'must have "type": "object", because variables are an object'
  const properties = Object.entries((schema['properties'] ?? {}) as Record<string, { default?: unknown }>)
  const [secret] = properties.filter(
    ([name, one]) => one?.default !== undefined && secretPaths({ [name]: one.default }).length > 0,
  )
  if (secret !== undefined)
    return `the default of ${JSON.stringify(secret[0])} is a secret in clear text; give it in each target`
  try {
    z.fromJSONSchema(schema)
    return undefined
  } catch (error) {
    return `is no JSON schema that can be used: ${error instanceof Error ? error.message : String(error)}`
  }
}

const VariablesSchema = JsonObject.superRefine((schema, context) => {
  const message = variablesSchemaProblem(schema)
  if (message !== undefined) context.addIssue({ code: 'custom', message })
})

const VersionNumber = z.int().min(1)
const versionStatuses = ['draft', 'published', 'deprecated'] as const
/** `openPlaybooks` checks the content, because its answer names lines. */
const PlaybookYaml = z.string()

export const MachineConfigurationVersion = z.strictObject({
  id: Id,
  machineConfigurationId: Id,
  version: VersionNumber,
  status: z.enum(versionStatuses),
  playbookYaml: z.string(),
  contentSha256: z.string(),
  compatibility: Compatibility,
  variablesSchema: JsonObject.optional(),
  validationChecks: z.array(ValidationCheck).optional(),
  createdAt: Timestamp,
})

export const MachineConfiguration = z.strictObject({
  id: Id,
  name: Name,
  description: Text.optional(),
  ownership: z.enum(['system', 'user']),
  enabled: z.boolean(),
  versions: z.array(MachineConfigurationVersion).describe('newest first'),
  createdAt: Timestamp,
  updatedAt: Timestamp,
})

export const NewMachineConfiguration = z.strictObject({
  id: Id.optional().describe('the service makes one by default'),
  name: Name,
  description: Text.default('').describe('free text'),
  ownership: ServerManaged.describe('always user'),
  enabled: z.boolean().default(true).describe('false: no new capacity target may name a version'),
  versions: z
    .array(z.unknown())
    .max(0, 'are added with POST /machine-configurations/{configurationId}/versions/; leave them out here')
    .optional()
    .describe('must be empty: versions are added one by one'),
  createdAt: ServerManaged,
  updatedAt: ServerManaged,
})
export type NewMachineConfiguration = z.output<typeof NewMachineConfiguration>

export const NewMachineConfigurationVersion = z.strictObject({
  id: Id.optional().describe('the service makes one by default'),
  machineConfigurationId: Id.optional().describe('the id in the path'),
  version: VersionNumber.optional().describe('the next one where it is left out'),
  status: z
    .enum(versionStatuses)
    .default('draft')
    .describe('draft by default; a published version does not change'),
  playbookYaml: PlaybookYaml,
  compatibility: Compatibility.default({}).describe('the machines on which it works; by default all'),
  variablesSchema: VariablesSchema.optional().describe('JSON Schema of the variables; none by default'),
  validationChecks: z
    .array(ValidationCheck)
    .max(100)
    .optional()
    .describe('commands that show that the machine is ready; none by default'),
  contentSha256: ServerManaged.describe('the service makes it of the playbook'),
  createdAt: ServerManaged,
})
export type NewMachineConfigurationVersion = z.output<typeof NewMachineConfigurationVersion>

/** A missing playbook is an empty one, so that its answer has `valid` and `errors` too. */
export const PlaybookToValidate = z.strictObject({
  playbookYaml: PlaybookYaml.default('').describe('an Ansible playbook'),
})
export const PlaybookVerdict = z.strictObject({ valid: z.literal(true), sha256: z.string() })
