import { z } from 'zod'
import { Id, JsonObject, Name, ServerManaged, Text, Timestamp } from '../../http/schema.ts'
import { variablesSchemaProblem } from './variables.ts'

const Words = z.array(Id).max(100)

const Compatibility = z.strictObject({
  providers: Words.optional(),
  operatingSystems: Words.optional(),
  architectures: Words.optional(),
})

const ValidationCheck = z.strictObject({
  name: Name,
  command: z.string().min(1).max(4_096).describe('for sh on the machine; 0 is success'),
  capability: z.string().max(255).optional(),
})

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
  id: Id.optional(),
  name: Name,
  description: Text.default(''),
  ownership: ServerManaged.describe('always user'),
  enabled: z.boolean().default(true).describe('false: no new capacity target may name a version'),
  versions: z
    .array(z.unknown())
    .max(0, 'are added with POST /machine-configurations/{configurationId}/versions/; leave them out here')
    .optional(),
  createdAt: ServerManaged,
  updatedAt: ServerManaged,
})
export type NewMachineConfiguration = z.output<typeof NewMachineConfiguration>

export const NewMachineConfigurationVersion = z.strictObject({
  id: Id.optional(),
  machineConfigurationId: Id.optional().describe('the id in the path'),
  version: VersionNumber.optional().describe('the next one where it is left out'),
  status: z.enum(versionStatuses).default('draft'),
  playbookYaml: PlaybookYaml,
  compatibility: Compatibility.default({}),
  variablesSchema: VariablesSchema.optional(),
  validationChecks: z.array(ValidationCheck).max(100).optional(),
  contentSha256: ServerManaged.describe('the service makes it of the playbook'),
  createdAt: ServerManaged,
})
export type NewMachineConfigurationVersion = z.output<typeof NewMachineConfigurationVersion>

/** A missing playbook is an empty one, so that its answer has `valid` and `errors` too. */
export const PlaybookToValidate = z.strictObject({ playbookYaml: PlaybookYaml.default('') })
export const PlaybookVerdict = z.strictObject({ valid: z.literal(true), sha256: z.string() })
