import { z } from 'zod'
import { memoryLimits } from '../../drivers/runtime/contract/cgroups.ts'
import { Id, Name, ofAnswer } from '../../http/schema.ts'

const MiB = 1024 * 1024
/** The bytes of memory for one transfer. */
export const transferBuffer = { usual: 8 * MiB, least: 5 * MiB, most: 64 * MiB } as const

const Label = z.string().max(65_536).optional()

/** The identity and settings of this installation. */
export const InstanceDocument = z.strictObject({
  id: Id,
  name: Name,
  description: Label.describe('free text'),
  organization: Label.describe('whose installation it is'),
  location: Label.describe('where it runs'),
  transferBufferBytes: z
    .int()
    .refine(
      (bytes) => bytes === 0 || (bytes >= transferBuffer.least && bytes <= transferBuffer.most),
      `must be from ${String(transferBuffer.least)} (5 MiB) to ${String(transferBuffer.most)} (64 ` +
        'MiB), or 0 for the default',
    )
    .default(0)
    .meta({ description: '5 MiB to 64 MiB; 0 means the default of 8 MiB' }),
  createdAt: z.string().optional().describe(ofAnswer),
  updatedAt: z.string().optional().describe(ofAnswer),
})
export type InstanceDocument = z.output<typeof InstanceDocument>

const Probe = z.strictObject({ available: z.boolean(), message: z.string() })
/** Whether a dependency of the service answers now. */
export type Probe = z.output<typeof Probe>

/**
 * The mechanism that limits the memory of tasks on this machine, as their records name it
 * (`limits`).
 */
const LimitsProbe = z.strictObject({
  ...Probe.shape,
  memory: z.enum(memoryLimits).optional().describe('absent: the machine did not answer'),
})
export type LimitsProbe = z.output<typeof LimitsProbe>

export const PreflightDocument = z.strictObject({
  server: Probe,
  docker: Probe,
  buildkit: Probe,
  limits: LimitsProbe,
})

export const themes = ['light', 'dark'] as const

/**
 * The preferences that a client stores for its user. The id in the path overrides that of the
 * document.
 */
export const PreferencesDocument = z.strictObject({
  clientId: z.string().optional().describe('the id in the path goes before it'),
  theme: z.enum(themes).default('light').describe('light by default'),
  animationsEnabled: z.boolean().default(false).describe('false by default'),
  updatedAt: z.string().optional().describe(ofAnswer),
})
export type PreferencesDocument = z.output<typeof PreferencesDocument>
