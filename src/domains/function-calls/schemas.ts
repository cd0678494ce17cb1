import { z } from 'zod'

/**
 * A call's own link, signed for one call, one purpose and a time. A request without a valid link is
 * 401.
 */
export const LinkQuery = z.strictObject({
  expires: z.string().max(16).optional().describe('end of the link, in seconds since the epoch'),
  signature: z.string().max(64).optional().describe('of the link, as the request of the call has it'),
})
export type LinkQuery = z.output<typeof LinkQuery>

/** The call's driver judges the content. */
export const GivenAnswer = z
  .record(z.string(), z.unknown())
  .meta({ description: 'The answer of the function, as the call protocol has it' })

/** A part of an output. */
export const OutputPart = z.strictObject({
  offset: z.int().min(0).describe('bytes from the start of the output'),
  contentBase64: z
    .string()
    .max(6 * 1024 * 1024)
    .refine((text) => text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text), 'must be base64'),
})

export type OutputPart = z.output<typeof OutputPart>

/** `kept`: true where this answer is the first and counts; an earlier answer stays. */
export const AnswerReceipt = z.strictObject({ name: z.string(), kept: z.boolean() })

export const PartReceipt = z.strictObject({ path: z.string(), sizeBytes: z.number() })
