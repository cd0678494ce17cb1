import { z } from 'zod'
import { isBelow, nameOf, parsePath, type StoragePath } from '../../drivers/storage/paths.ts'
import type { StorageFacts } from '../environments/storages.ts'
import { startsOf } from './connection.ts'
import { refusing } from './errors.ts'
import { bytesOfParent, parentOfBytes } from './index-paths.ts'
import type { RootedStorage } from './open.ts'

const mostEntries = 10_000_000

/** The rules of an index run: the storage's policy at the run's acceptance. */
export const IndexRules = z.object({
  /** Hexadecimal digits of where the walk starts. */
  roots: z.array(z.string()),
  maxDepth: z.number(),
  maxEntries: z.number(),
  timeoutSeconds: z.number(),
  include: z.array(z.string()),
  exclude: z.array(z.string()),
})
export type IndexRules = z.output<typeof IndexRules>

export const rootsOfRules = ({ roots }: Pick<IndexRules, 'roots'>): StoragePath[] =>
  roots.map((root) => parentOfBytes(Buffer.from(root, 'hex')))

const texts = z
  .array(z.unknown())
  .catch([])
  .transform((all) => all.filter((text) => typeof text === 'string'))
const bounded = (usual: number, [least, most]: readonly [number, number]) =>
  z
    .number()
    .transform((value) => Math.min(most, Math.max(least, Math.floor(value))))
    .catch(usual)

/** A storage's own policy; what has a wrong shape counts as absent. */
const Policy = z.object({
  enabled: z.unknown().optional(),
  roots: texts,
  maxDepth: bounded(5, [0, 1_000]),
  maxEntries: bounded(10_000, [1, mostEntries]),
  timeoutSeconds: bounded(3_600, [1, 604_800]),
  include: texts,
  exclude: texts,
})
const policyOf = ({ configuration }: Pick<StorageFacts, 'configuration'>): z.output<typeof Policy> =>
  Policy.safeParse(configuration?.['indexPolicy']).data ?? Policy.parse({})

/** Whether the storage may be indexed. */
export const isIndexed = (facts: Pick<StorageFacts, 'configuration'>): boolean =>
  policyOf(facts).enabled !== false

/** The roots that are not below another root. */
const outermost = (roots: readonly StoragePath[]): StoragePath[] =>
  roots.filter(
    (root, at) =>
      !roots.some(
        (other, place) => place !== at && isBelow(root, other) && (root.length > other.length || place < at),
      ),
  )

/** The policy of a storage with its defaults. @throws Refusal 422 for a root that leads upwards */
export const indexRulesOf = async ({ facts, roots }: RootedStorage): Promise<IndexRules> => {
  const { enabled: _, roots: named, ...policy } = policyOf(facts)
  const own = await refusing('body', async () =>
    named.map((path) => parsePath(nameOf(path), ...startsOf(facts))),
  )
  const approved = roots.map(({ path }) => path)
  // Of the policy's roots, only approved ones count.
  const starts =
    own.length === 0
      ? approved
      : own.flatMap((path) =>
          approved.some((root) => isBelow(path, root))
            ? [path]
            : approved.filter((root) => isBelow(root, path)),
        )
  return {
    roots: outermost(starts).map((path) => bytesOfParent(path).toString('hex')),
    ...policy,
  }
}
